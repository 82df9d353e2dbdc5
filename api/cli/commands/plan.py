"""`fedsim plan`: memory, traffic and time of a spec, measured before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.commands.options import Format, FormatOption, SetOption, SpecArgument

if TYPE_CHECKING:
    from jobs.plan.plan import Plan, PlannedNode

DOES_NOT_FIT = 3

SecondsOption = Annotated[
    float,
    typer.Option(
        "--seconds", min=1, max=3600, help="Approximate seconds of measuring, without the start-up time."
    ),
]


def plan(
    spec: SpecArgument,
    sets: SetOption = None,
    seconds: SecondsOption = 20,
    format: FormatOption = Format.TEXT,
) -> None:
    """Measure a spec on this machine; print the memory, traffic and time that it needs.

    Exit code 3 if it does not fit.
    """
    from api.cli.display import (
        make_data_console,
        make_table,
        print_error,
        print_json,
        print_message,
        show_waiting,
    )
    from fedsim.errors import DoesNotFit
    from jobs.settings import Settings
    from jobs.spec import read_spec
    from jobs.spec.resolve import parse_spec_and_names

    loaded = parse_spec_and_names(read_spec(spec, sets or ()))
    with show_waiting("loading the libraries") as show:
        show("loading the libraries")
        from jobs.plan.planner import plan as measure

        found = measure(loaded, Settings.from_env(), seconds=seconds, on_status=show)
    if format is Format.JSON:
        print_json(found.model_dump(mode="json"))
    elif found.fits:
        make_data_console().print(make_table(("resource", "forecast", "detail"), format_plan(found)))
        for line in found.faster:
            print_message(f"faster: {line}")
    for note in found.notes:
        print_message(f"note: {note}")
    if not found.fits:
        print_error(DoesNotFit(found.message, found.hint))
        raise typer.Exit(DOES_NOT_FIT)


def format_plan(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield the rows (resource, forecast, detail) of a plan."""
    from api.reports.formatting import format_bytes

    yield from (("node " + node.name, *_node(node, plan)) for node in plan.nodes)
    clients, workers = plan.clients, plan.workers or 0
    each = (
        f"cohort {clients.per_round:,} of {clients.total:,} clients; at most {clients.per_worker} per worker"
    )
    yield "workers", str(workers), f"on {plan.device}" if plan.device else ""
    yield "cohort", f"{clients.per_round:,}", each
    if (plan.stack or 1) > 1:
        yield "stack size", str(plan.stack), "in each worker"
    if plan.memory is not None:
        memory = plan.memory
        yield (
            "memory of a worker",
            format_bytes(memory.worker),
            f"plus {format_bytes(memory.shared)} of data on each node",
        )
        if memory.gpu is not None and memory.gpu_cap is not None:
            yield (
                "GPU memory of a worker",
                format_bytes(memory.gpu),
                f"limit {format_bytes(memory.gpu_cap)}",
            )
    yield from _seconds(plan)
    if plan.bytes is not None:
        each_way = "{} down, {} up".format
        one, total_traffic = plan.bytes.round, plan.bytes.total
        yield (
            "traffic of a round",
            format_bytes(one.down + one.up),
            each_way(format_bytes(one.down), format_bytes(one.up)),
        )
        total = format_bytes(total_traffic.down + total_traffic.up)
        yield (
            "traffic of the run",
            total,
            each_way(format_bytes(total_traffic.down), format_bytes(total_traffic.up)),
        )


def _node(node: PlannedNode, plan: Plan) -> tuple[str, str]:
    limits = f"limited by {node.cpus:g} CPUs" + (f" and {node.gpus:g} GPUs" if node.gpus else "")
    if node.fit_per_gpu is not None:
        limits += f", {node.fit_per_gpu} on each GPU"
    if node.fit_in_memory is not None:
        limits += f"; {node.fit_in_memory} fit into its memory"
    return f"{node.fit} workers fit", limits


def _seconds(plan: Plan) -> Iterator[tuple[str, str, str]]:
    if plan.seconds is None:
        return
    from api.reports.formatting import format_duration

    seconds, each = plan.seconds, plan.seconds.round
    parts = (
        f"local training {format_duration(each.train)} "
        f"(including {format_duration(seconds.overhead)} of engine overhead), "
    )
    parts += f"client survey {format_duration(each.survey)}, " if each.survey else ""
    parts += f"server update {format_duration(each.server)}, "
    parts += f"server training {format_duration(each.learn)}, " if each.learn else ""
    parts += f"evaluation {format_duration(each.evaluate)}"
    parts += f", personal evaluation {format_duration(each.personal)}" if each.personal else ""
    yield "time of a round", format_duration(each.total), parts
    evaluated = (
        f"{plan.rounds:,} rounds, {plan.evaluations:,} evaluations of {format_duration(seconds.evaluation)}"
    )
    if plan.personal_evaluations:
        personal = format_duration(seconds.personal)
        evaluated += f", {plan.personal_evaluations:,} personal evaluations of {personal}"
    yield (
        "run time",
        format_duration(seconds.total),
        f"{evaluated}, start-up {format_duration(seconds.startup)}",
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Specs")(plan)
