"""`fedsim demo`: a small federated job in half a minute, on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.commands.options import Format, FormatOption

if TYPE_CHECKING:
    from api.sdk.job_handle import JobHandle
    from api.server.local_service import BackgroundService
    from jobs.settings import Settings

IDLE_EXIT = 900
"""Seconds without requests after which the service of the demo stops."""


def demo(
    seed: Annotated[int | None, typer.Option(min=0, help="Use this seed instead of the preset's.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep the service running, so that the page stays open.")
    ] = True,
    format: FormatOption = Format.TEXT,
) -> None:
    """Start here: run a small job from start to end and keep its page open."""
    from api.cli.display import print_message
    from api.sdk.client import FedSimClient
    from api.sdk.started_service import StartedService
    from jobs.settings import Settings

    settings = Settings.from_env()
    url, started = _service(settings)
    try:
        with FedSimClient(url) as client:
            succeeded = _run(client.submit("demo", set={} if seed is None else {"seed": seed}), format)
    finally:
        if started is not None and not keep:
            _stop(settings, url)
    if keep:
        print_message(f"\nThe page: {url}/")
        if started is not None:
            print_message(
                f"The service stops after {IDLE_EXIT // 60} idle minutes. To stop it now: fedsim stop"
            )
        elif StartedService.list_living(settings):
            print_message("To stop the service: fedsim stop")
    raise typer.Exit(0 if succeeded else 1)


def _service(settings: Settings) -> tuple[str, BackgroundService | None]:
    """Find a service that answers, or start one.

    Returns:
        The address of the service, and the service if it was started here.
    """
    from api.cli.display import print_message, show_waiting
    from api.sdk.started_service import DEFAULT_PORT, find_default_url
    from api.server.local_service import (
        BackgroundService,
        find_free_port,
        identify_service,
        wait_until_ready,
    )
    from fedsim.base.secret_urls import remove_secrets
    from fedsim.errors import Unreachable

    url = find_default_url()
    found, shown = identify_service(url), remove_secrets(url)
    if found == "fedsim":
        print_message(f"using the service at {shown}")
        with show_waiting("waiting for the service") as show:
            wait_until_ready(url, show)
        return url, None
    if "FEDSIM_URL" in os.environ:
        raise Unreachable(
            f"no fedsim service answers at FEDSIM_URL ({shown})", "unset it to start a service here"
        )
    port = DEFAULT_PORT
    if found == "somebody":
        port = find_free_port()
        print_message(f"another program uses {url}; using port {port} instead")
    started = BackgroundService(settings, port, IDLE_EXIT)
    print_message(f"starting a service at {started.url} (its log is {started.log})")
    with show_waiting("waiting for the service") as show:
        started.wait_for_start(show)
    return started.url, started


def _run(job: JobHandle, format: Format) -> bool:
    """Show a job until it ends, then print its rounds; return whether it succeeded."""
    from api.cli.display import (
        format_end,
        make_rounds_table,
        print_json,
        print_message,
        print_table,
    )
    from api.cli.job_progress import follow_job, open_live_view

    spec = job.job.spec
    clients, partition = spec["clients"], spec["data"]["partition"]
    cohort = max(1, round(clients["total"] * clients["fraction"]))
    print_message(
        f"job {job.id}: {spec['algorithm']['name']} on {spec['data']['dataset']['name']}, "
        f"{clients['total']} clients ({partition['kind']}), cohort {cohort}"
    )
    with open_live_view(job.job.name, job.job.rounds_total) as view:
        follow_job(job, view)
    rounds = job.rounds()
    if format is Format.JSON:
        records = [record.model_dump(mode="json") for record in rounds]
        print_json({"job": job.job.model_dump(mode="json"), "rounds": records})
    else:
        print_table(make_rounds_table(rounds))
    accuracy = job.job.last_metrics.get("global_accuracy")
    reached = f" with a global accuracy of {accuracy:.4f}" if isinstance(accuracy, float) else ""
    print_message(f"job {job.id} {format_end(job.job, reached)}")
    return job.state == "SUCCEEDED"


def _stop(settings: Settings, url: str) -> None:
    from api.sdk.started_service import StartedService
    from jobs.local_ray.embedded_ray import stop_ray

    for service in StartedService.list_living(settings):
        if service.url == url:
            service.stop()
    if not StartedService.list_living(settings):
        stop_ray(settings)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Start here")(demo)
