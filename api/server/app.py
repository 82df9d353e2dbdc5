"""The web application: its routes, layers and lifespan."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

import fedsim
from api.sdk.calls import PREFIX
from api.server import errors
from api.server.activity import Activity
from api.server.dependencies import refuse_unknown_parameters
from api.server.head_requests import HeadLayer
from api.server.limits import OpenStreams
from api.server.metrics import ServiceMetrics
from api.server.openapi import Application
from api.server.request_log import RequestLogLayer
from api.server.routes import (
    artifacts,
    catalogue,
    check,
    claims,
    class_map,
    cluster,
    comparison,
    curves,
    health,
    jobs,
    method_curves,
    page,
    streams,
)
from api.server.security import AllowedHosts, SecurityLayer
from api.server.service import DispatcherProtocol, Service
from jobs.settings import Settings
from jobs.store.job_store import JobStore

REFUSALS = errors.describe_problems(401, 403, 422, 429)


def create_app(
    settings: Settings,
    store: JobStore | None = None,
    dispatcher: DispatcherProtocol | None = None,
    *,
    hosts: AllowedHosts | None = None,
) -> FastAPI:
    """Create the application.

    Args:
        settings: home, database and token of the service.
        store: the job store. Default: the store of the settings.
        dispatcher: starts queued jobs on the cluster. Default: a `Dispatcher`, which starts a local Ray if
            the settings name no cluster.
        hosts: allowed host names. Default: the loopback names.
    """
    app = Application(
        title="fedsim",
        version=fedsim.__version__,
        summary="Simulate federated learning.",
        lifespan=_lifespan(settings, store, dispatcher),
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        telemetry={"auto_configure": False},
    )
    app.state.instance = secrets.token_hex(8)
    app.state.activity = Activity()
    app.state.streams = OpenStreams(settings.limits.streams)
    app.state.metrics = ServiceMetrics(app.state.streams)
    app.state.stopping = False
    errors.install_error_handlers(app)
    for part in (
        *(jobs, streams, artifacts, catalogue, check, cluster),
        *(comparison, claims, curves, class_map, method_curves),
    ):
        app.include_router(
            part.router, prefix=PREFIX, responses=REFUSALS, dependencies=[Depends(refuse_unknown_parameters)]
        )
    app.include_router(health.router)
    page.mount_page(app)
    # The last layer is the outermost.
    app.add_middleware(HeadLayer)
    app.add_middleware(
        SecurityLayer, token=settings.token, hosts=hosts or AllowedHosts(), limits=settings.limits
    )
    app.add_middleware(app.state.activity.wrap_app)
    app.add_middleware(errors.UnexpectedErrorLayer)
    app.add_middleware(RequestLogLayer, metrics=app.state.metrics)
    return app


def _lifespan(
    settings: Settings, store: JobStore | None, dispatcher: DispatcherProtocol | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Start the service before the first request, and stop it after the last."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = await asyncio.to_thread(_build, settings, store, dispatcher)
        app.state.service = service
        app.state.loop = asyncio.get_running_loop()
        service.dispatcher.start()
        if dispatcher is None:
            threading.Thread(target=_load_catalogue, args=(service,), daemon=True, name="warm up").start()
            app.state.warming = asyncio.create_task(service.data_checker.warm_up())
        try:
            yield
        finally:
            service.close()
            await asyncio.to_thread(service.dispatcher.stop)
            await service.data_checker.wait_until_closed()

    return lifespan


def _operation_id(route: APIRoute) -> str:
    return route.name


def _build(settings: Settings, store: JobStore | None, dispatcher: DispatcherProtocol | None) -> Service:
    if store is None:
        settings.make_home()
        store = JobStore.open(settings.database_url)
    if dispatcher is None:
        from jobs.queue.dispatcher import Dispatcher

        dispatcher = Dispatcher(store, settings)
    return Service(settings, store, dispatcher)


def _load_catalogue(service: Service) -> None:
    # These imports take seconds; the first submission would wait for them.
    import jobs.spec.resolve  # noqa: F401

    service.catalogue.list_entries("algorithms")
