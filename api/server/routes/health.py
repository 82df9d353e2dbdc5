"""Is it alive, can it work, what is it."""

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
    """Who answers here."""

    service: Literal["fedsim"] = "fedsim"
    status: Literal["ok"] = "ok"
    instance: str = Field(description="Another one after each start.")


class Readiness(BaseModel):
    """Jobs can run."""

    status: Literal["ready"] = "ready"


class Version(BaseModel):
    """Versions of the service and of what it stands on."""

    fedsim: str
    api: Literal["v1"] = "v1"
    python: str
    ray: str
    torch: str
    plugins: dict[str, str] = Field(description="Packages and modules of plug-ins, with their versions.")


@router.get("/healthz")
async def get_health(request: Request) -> Health:
    """Tell that the process lives."""
    return Health(instance=request.app.state.instance)


@router.get("/readyz", response_model=Readiness, responses=describe_problems(503))
async def get_readiness(request: Request, service: ServiceOf) -> Readiness | Response:
    """Tell whether jobs can run now: the store answers, Ray is up, and the service is not about to end."""
    if request.app.state.stopping:
        return make_problem(503, "the service is stopping", hint="ask another one, or come again")
    try:
        await service.store_probe.wait_for_answer()
    except (SQLAlchemyError, TimeoutError) as error:
        logger.error("the store does not answer: %s", error or "not in time")
        return make_problem(503, "the store does not answer", hint="the server's log says why")
    missing = service.queue.find_obstacle()
    return Readiness() if missing is None else make_problem(503, missing)


@router.get("/version", responses=describe_problems(401, 429))
def get_version() -> Version:
    """Tell the versions."""
    return Version(
        fedsim=fedsim.__version__,
        python=platform.python_version(),
        ray=metadata.version("ray"),
        torch=metadata.version("torch"),
        plugins=list_plugin_versions(),
    )


@router.get("/metrics", response_class=Response, responses=describe_problems(401, 429, 503, also=FIGURES))
def get_metrics(request: Request, service: ServiceOf) -> Response:
    """Give the figures for Prometheus: jobs, rounds, client updates, seconds, bytes, waiting, requests."""
    ready = service.queue.find_obstacle() is None and not request.app.state.stopping
    try:
        text: bytes = request.app.state.metrics.format_text(service.store.totals, ready)
    except SQLAlchemyError as error:
        logger.error("the store does not answer: %s", error)
        return make_problem(503, "the store does not answer", hint="the server's log says why")
    return Response(text, media_type=PROMETHEUS)
