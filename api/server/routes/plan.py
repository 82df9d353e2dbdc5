"""The plan of a spec: what it needs here and what it will take."""

from __future__ import annotations

from fastapi import APIRouter, Request

from api.server.dependencies import ServiceOf, SpecBody
from api.server.errors import describe_problems
from api.server.openapi import SPEC_BODY
from jobs.plan.plan import Plan
from jobs.spec import JobSpec

router = APIRouter(tags=["plan"])


@router.post("/plan", responses=describe_problems(400, 413, 415, 422, 503), openapi_extra=SPEC_BODY)
async def make_plan(request: Request, data: SpecBody, service: ServiceOf) -> Plan:
    """Measure a spec on the cluster; takes from half a minute to five minutes.

    What does not fit is an answer too: `fits` is false, and `message` has the arithmetic.
    """

    def parse_checked_spec() -> JobSpec:
        from jobs.spec.resolve import resolve_spec

        spec = service.parse_spec(data)
        resolve_spec(spec, service.settings)
        return spec

    return await service.planning.plan(
        await service.check_lookups.run_work(parse_checked_spec), request.is_disconnected
    )
