"""Looking over a spec without submitting it: what a form asks while somebody fills it in."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from api.server.dependencies import ServiceOf
from api.server.dependencies import read_spec as read_spec
from api.server.errors import Fault, describe_problems
from api.server.openapi import SPEC_BODY
from api.server.request_errors import MOST_FAULTS
from api.server.service import Service
from fedsim.errors import DataError, DoesNotFit, FedsimError, SpecError
from jobs.spec.error_messages import shorten_value

router = APIRouter(tags=["jobs"])

FIELD_OF_ERROR: dict[type[FedsimError], str] = {DataError: "data.dataset", DoesNotFit: "resources.workers"}
"""The field of a spec that an error without one is about."""


class SpecCheck(BaseModel):
    """What is to be said of a spec."""

    valid: bool = Field(description="Whether it would be accepted as a job.")
    errors: list[Fault] = Field(
        description="Every fault, each at its field; `spec` where there was no reading it."
    )
    data: dict[str, Any] | None = Field(
        description="What was sent, as plain data; null where it is no mapping."
    )
    name: str | None = Field(description="The name that the job would have; null where it is not valid.")


@router.post("/check", responses=describe_problems(400, 413, 415, 422, 503), openapi_extra=SPEC_BODY)
async def check_spec(request: Request, service: ServiceOf) -> SpecCheck:
    """Look over a spec, as JSON or YAML. Faults are an answer here, not a refusal."""
    try:
        data = await read_spec(request)
    except SpecError as error:
        return SpecCheck(valid=False, errors=_faults(error), data=None, name=None)
    return await service.check_lookups.run_work(_check, service, data)


def _check(service: Service, data: Any) -> SpecCheck:
    plain = data if isinstance(data, dict) else None
    try:
        spec = service.parse_spec(data)
        service.check_spec(spec)
    except (SpecError, DataError, DoesNotFit) as error:
        return SpecCheck(valid=False, errors=_faults(error), data=plain, name=None)
    return SpecCheck(valid=True, errors=[], data=plain, name=spec.name)


def _faults(error: FedsimError) -> list[Fault]:
    if error.errors:
        found = [
            Fault(**{**f._asdict(), "value": shorten_value(f.value)}) for f in error.errors[:MOST_FAULTS]
        ]
        if len(error.errors) > MOST_FAULTS:
            more = f"has {len(error.errors) - MOST_FAULTS:,} more errors"
            found.append(Fault(path="spec", message=more, hint="mend these first"))
        return found
    place = next((path for kind, path in FIELD_OF_ERROR.items() if isinstance(error, kind)), "spec")
    return [Fault(path=place, message=error.message, hint=error.hint)]
