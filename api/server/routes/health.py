"""Health, readiness, versions and metrics of the service."""

from __future__ import annotations

import logging
import platform
from importlib import metadata
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

import fedsim
from api.server.dependencies import ServiceOf
from api.server.errors import describe_problems, make_problem
from fedsim.plugins import list_plugin_versions

router = APIRouter(tags=["service"])

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
TEXT = {"text/plain": {"schema": {"type": "string"}}}
FIGURES: dict[int | str, dict[str, Any]] = {200: {"description": "Prometheus' text.", "content": TEXT}}

logger = logging.getLogger("fedsim.api")


class Health(BaseModel):
    """The running service."""

    service: Literal["fedsim"] = "fedsim"
    status: Literal["ok"] = "ok"
    instance: str = Field(description="A new random id after each start.")


class Readiness(BaseModel):
    """Jobs can run."""

    status: Literal["ready"] = "ready"


class Version(BaseModel):
    """Versions of fedsim, Python, Ray, torch and plug-ins."""

    fedsim: str
    api: Literal["v1"] = "v1"
    python: str
    ray: str
    torch: str
    plugins: dict[str, str] = Field(description="Plug-in packages and their versions.")


@router.get("/healthz")
async def get_health(request: Request) -> Health:
    """Report that the process is alive."""
    return Health(instance=request.app.state.instance)


@router.get("/readyz", response_model=Readiness, responses=describe_problems(503))
async def get_readiness(request: Request, service: ServiceOf) -> Readiness | Response:
    """Report whether jobs can run: the database and Ray answer, and the service is not stopping."""
    if request.app.state.stopping:
        return make_problem(503, "the service is stopping", hint="try again later")
    try:
        await service.store_probe.wait_for_answer()
    except (SQLAlchemyError, TimeoutError) as error:
        logger.error("the database does not answer: %s", error or "not in time")
        return make_problem(503, "the database does not answer", hint="see the server's log")
    missing = service.dispatcher.find_obstacle()
    return Readiness() if missing is None else make_problem(503, missing)


@router.get("/version", responses=describe_problems(401, 429))
def get_version() -> Version:
    """Get the versions of fedsim, Python, Ray, torch and plug-ins."""
    return Version(
        fedsim=fedsim.__version__,
        python=platform.python_version(),
        ray=metadata.version("ray"),
        torch=metadata.version("torch"),
        plugins=list_plugin_versions(),
    )


@router.get("/metrics", response_class=Response, responses=describe_problems(401, 429, 503, also=FIGURES))
def get_metrics(request: Request, service: ServiceOf) -> Response:
    """Get the metrics for Prometheus: jobs, rounds, client updates, seconds, traffic, queue, requests."""
    ready = service.dispatcher.find_obstacle() is None and not request.app.state.stopping
    text: bytes = request.app.state.metrics.format_text(service.store.totals, ready)
    return Response(text, media_type=PROMETHEUS)
