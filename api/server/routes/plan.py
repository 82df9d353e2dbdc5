"""The plan of a spec: memory, traffic and time."""

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
    """Measure a spec on the cluster, which takes 30 seconds to 5 minutes.

    If the job does not fit, `fits` is false, and `message` has the calculation.
    """

    def parse_checked_spec() -> JobSpec:
        from jobs.spec.resolve import resolve_spec

        spec = service.parse_spec(data)
        resolve_spec(spec, service.settings)
        return spec

    return await service.planning.plan(
        await service.check_lookups.run_work(parse_checked_spec), request.is_disconnected
    )
