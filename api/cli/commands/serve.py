"""`fedsim serve` and `fedsim stop`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.commands.options import Format

if TYPE_CHECKING:
    from jobs.settings import Settings
    from jobs.store.job_store import JobStore


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port. 0: any free port.")] = 8000,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster, or 'auto' to find one. Default: a local Ray."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that callers must send. Or set FEDSIM_TOKEN.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Additional host name of the service. Repeatable.")
    ] = None,
    log_format: Annotated[
        Format | None, typer.Option(help="json: one object per line, including every request.")
    ] = None,
    idle_exit: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Stop after this many seconds without requests and without active jobs.",
        ),
    ] = None,
) -> None:
    """Run the service: REST, page and queue in one process, with a local Ray unless an address is given."""
    from api.server.security import close_beyond_loopback, read_token_file
    from api.server.web_server import open_listener
    from jobs.settings import Settings
    from jobs.tracking.trackers import check_trackers

    token = read_token_file(token_file) if token_file else None
    settings = Settings.from_env(ray_address=ray_address, token=token, log_format=log_format)
    settings = close_beyond_loopback(host, settings)
    check_trackers(settings.track)
    listener = open_listener(host, port)
    if settings.log_format != Format.JSON:
        from api.cli.display import print_message

        print_message("starting the service; this takes some seconds")
    raise typer.Exit(_serve(settings, host, listener, allow_host or (), idle_exit))


def _serve(
    settings: Settings, host: str, listener: socket, allowed: Sequence[str], idle_exit: float | None
) -> int:
    from api.server import service_log
    from api.server.app import create_app
    from api.server.security import AllowedHosts
    from api.server.web_server import serve_app as run
    from jobs.home_permissions import keep_private
    from jobs.store.job_store import JobStore

    service_log.install_log_handler(settings)
    keep_private(settings.make_home())

    with JobStore.open(settings.database_url) as store:
        _warn_of_lost_jobs(settings, store)
        app = create_app(settings, store, hosts=AllowedHosts.for_address(host, allowed))
        return run(
            app, settings, host, listener, idle_exit=idle_exit, announce=partial(announce_url, settings)
        )


def _warn_of_lost_jobs(settings: Settings, store: JobStore) -> None:
    """Say that an empty store stands beside folders of jobs, such as after its file was deleted."""
    from jobs.run.recovery import list_job_folders

    folders = list_job_folders(settings)
    if folders and not store.list(limit=1).jobs:
        logging.getLogger("fedsim.api").warning(
            "the store is empty, but %s has the folders of %d jobs: put back a backup of the store, or let "
            "`fedsim recover` read the folders",
            settings.home / "jobs",
            len(folders),
        )


def announce_url(settings: Settings, url: str) -> None:
    """Print the address of the service; with a JSON log, log it, because standard error is then JSON only."""
    from api.cli.display import print_message

    text = f"fedsim answers at {url} (page; REST under /api/v1); home: {settings.home}"
    if settings.log_format == Format.JSON:
        logging.getLogger("fedsim.api").info(text)
    else:
        print_message(f"{text}; Ctrl-C stops it")


def stop(
    force: Annotated[
        bool, typer.Option("--force", help="Stop even if jobs are active. The next service continues them.")
    ] = False,
) -> None:
    """Stop the services of this home on this machine, and then its local Ray."""
    from api.cli.display import print_message
    from api.sdk.started_service import StartedService
    from fedsim.errors import ServiceError
    from jobs.local_ray.embedded_ray import stop_ray
    from jobs.settings import Settings

    settings = Settings.from_env()
    living = StartedService.list_living(settings)
    for service in living:
        if not service.answers():
            raise ServiceError(
                f"the service at {service.url} (process {service.pid}) runs but does not answer",
                f"end process {service.pid}, then repeat `fedsim stop`",
            )
        if not force:
            _refuse_while_active(service.url)
    if not living and not force:
        _refuse_while_ray_works(settings)
    for service in living:
        if not service.stop():
            raise ServiceError(
                f"the service at {service.url} (process {service.pid}) does not stop",
                f"end process {service.pid}, then repeat `fedsim stop`",
            )
        print_message(f"the service at {service.url} has stopped")
    stop_ray(settings)
    if not living:
        print_message(f"no service of {settings.home} is running")


def _refuse_while_ray_works(settings: Settings) -> None:
    from fedsim.errors import Conflict
    from jobs.local_ray.keeper import has_running_jobs
    from jobs.local_ray.keeper_files import is_keeper_alive, read_addresses, read_or_make_token

    ray = read_addresses(settings.home)
    if (
        ray is not None
        and ray.gcs
        and is_keeper_alive(settings.home)
        and has_running_jobs(ray, read_or_make_token(settings.home))
    ):
        raise Conflict(
            f"no service answers for {settings.home}, but its Ray cluster still runs jobs",
            "start `fedsim serve` to continue them, or stop them with `fedsim stop --force`",
        )


def _refuse_while_active(url: str) -> None:
    from api.sdk.client import FedSimClient
    from fedsim.errors import Conflict
    from jobs.store.states import ACTIVE

    with FedSimClient(url) as client:
        active = [job.id for job in client.jobs(state=sorted(ACTIVE))]
    if active:
        raise Conflict(
            f"{len(active)} job{'s' * (len(active) != 1)} active: {', '.join(active)}",
            "cancel them first, or stop the service with `fedsim stop --force`",
        )


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (serve, stop):
        app.command(rich_help_panel="The service")(command)
