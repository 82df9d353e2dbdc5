"""Checks or plans a spec without submitting it, e.g. for a form."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from api.server.dependencies import ServiceOf, SpecBody, read_spec
from api.server.errors import Fault, describe_problems
from api.server.openapi import SPEC_BODY
from api.server.request_errors import MOST_FAULTS
from api.server.service import Service
from fedsim.errors import DataError, DoesNotFit, FedsimError, SpecError
from jobs.plan.plan import Plan
from jobs.spec.error_messages import LARGEST_BITS, holds_large_number, shorten_value

router = APIRouter()

FIELD_OF_CODE = {
    SpecError.code: "spec",
    DataError.code: "data.dataset",
    DoesNotFit.code: "resources.workers",
}
"""The errors of a spec that cannot run, with the field of the spec for errors that name none."""

REFUSALS = describe_problems(400, 413, 415, 422, 503)


class SpecCheck(BaseModel):
    """The result of a check."""

    valid: bool = Field(description="Whether the service would accept the spec.")
    errors: list[Fault] = Field(
        description="All errors, each with its field; path `spec` if the text could not be parsed."
    )
    data: dict[str, Any] | None = Field(
        description="The spec as plain data; null if it is no mapping, or no answer can hold it."
    )
    name: str | None = Field(description="Name that the job would have; null for an invalid spec.")
    warning: str | None = Field(default=None, description="For a run of hours on the cluster's CPUs.")


@router.post("/check", tags=["jobs"], response_model=SpecCheck, responses=REFUSALS, openapi_extra=SPEC_BODY)
async def check_spec(request: Request, service: ServiceOf) -> Response:
    """Check a spec (JSON or YAML). Errors in the spec are returned with status 200."""
    found = await _check_spec(request, service)
    # The text is made in a thread, too: it repeats the spec.
    text = await service.body_lookups.run_work(found.model_dump_json)
    return Response(text, media_type="application/json")


async def _check_spec(request: Request, service: Service) -> SpecCheck:
    try:
        data = await read_spec(request)
    except SpecError as error:
        return SpecCheck(valid=False, errors=_make_faults(error), data=None, name=None)
    is_kept = isinstance(data, dict) and await service.body_lookups.run_work(is_sendable, data)
    plain = data if is_kept else None
    try:
        spec = await service.spec_lookups.run_work(service.parse_spec, data)
        checked = await service.check_spec(spec, request.is_disconnected)
    except FedsimError as error:
        if error.code not in FIELD_OF_CODE:
            raise
        return SpecCheck(valid=False, errors=_make_faults(error), data=plain, name=None)
    return SpecCheck(valid=True, errors=[], data=plain, name=spec.name, warning=checked.warning)


@router.post("/plan", tags=["plan"], responses=REFUSALS, openapi_extra=SPEC_BODY)
async def make_plan(request: Request, data: SpecBody, service: ServiceOf) -> Plan:
    """Measure a spec on the cluster, which takes 30 seconds to 5 minutes.

    If the job does not fit, `fits` is false, and `message` has the calculation.
    """
    spec = await service.spec_lookups.run_work(service.parse_spec, data)
    found = await service.planner.run(spec.model_dump(mode="json"), request.is_disconnected)
    return Plan.model_validate(found)


def is_sendable(data: Any) -> bool:
    """Whether an answer can hold these data: no half characters, and no number that a client cannot read."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, ValueError, TypeError, RecursionError):
        return False
    return not holds_large_number(data, LARGEST_BITS)


def _make_faults(error: FedsimError) -> list[Fault]:
    if error.errors:
        found = [
            Fault(**{**f._asdict(), "value": shorten_value(f.value)}) for f in error.errors[:MOST_FAULTS]
        ]
        if len(error.errors) > MOST_FAULTS:
            more = f"has {len(error.errors) - MOST_FAULTS:,} more errors"
            found.append(Fault(path="spec", message=more, hint="fix these first"))
        return found
    return [Fault(path=FIELD_OF_CODE[error.code], message=error.message, hint=error.hint)]
