"""`fedsim plan`: what a spec needs and what it will take, before it runs."""

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
    typer.Option("--seconds", min=1, max=3600, help="How long to measure, about; starting comes on top."),
]


def plan(
    spec: SpecArgument,
    sets: SetOption = None,
    seconds: SecondsOption = 20,
    format: FormatOption = Format.TEXT,
) -> None:
    """Measure a spec here, and tell what it will need and take. Exit code 3 where it does not fit."""
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

        found = measure(loaded, Settings.from_env(), seconds=seconds, on_phase=show)
    if format is Format.JSON:
        print_json(found.model_dump(mode="json"))
    elif found.fits:
        make_data_console().print(make_table(("", "planned", ""), format_plan(found)))
        for line in found.faster:
            print_message(f"faster: {line}")
    for note in found.notes:
        print_message(f"note: {note}")
    if not found.fits:
        print_error(DoesNotFit(found.message, found.hint))
        raise typer.Exit(DOES_NOT_FIT)


def format_plan(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """What a plan says, line by line: of what, how much, and how that comes about."""
    from api.reports.formatting import format_bytes

    yield from (("node " + node.name, *_node(node, plan)) for node in plan.nodes)
    clients, workers = plan.clients, plan.workers or 0
    each = (
        f"{clients.per_round:,} in a round, of {clients.total:,}; at most {clients.per_worker} for a worker"
    )
    yield "workers", str(workers), f"on {plan.device}" if plan.device else ""
    yield "clients", f"{clients.per_round:,}", each
    if (plan.stack or 1) > 1:
        yield "clients at once", str(plan.stack), "in a worker"
    if plan.memory is not None:
        memory = plan.memory
        yield (
            "memory of a worker",
            format_bytes(memory.worker),
            f"and {format_bytes(memory.shared)} of data for each node",
        )
        if memory.gpu is not None and memory.gpu_cap is not None:
            yield (
                "GPU memory of a worker",
                format_bytes(memory.gpu),
                f"of {format_bytes(memory.gpu_cap)} that it may use",
            )
    yield from _seconds(plan)
    if plan.bytes is not None:
        each_way = "{} down, {} up".format
        one, all_of_them = plan.bytes.round, plan.bytes.total
        yield (
            "bytes of a round",
            format_bytes(one.down + one.up),
            each_way(format_bytes(one.down), format_bytes(one.up)),
        )
        total = format_bytes(all_of_them.down + all_of_them.up)
        yield (
            "bytes of the run",
            total,
            each_way(format_bytes(all_of_them.down), format_bytes(all_of_them.up)),
        )


def _node(node: PlannedNode, plan: Plan) -> tuple[str, str]:
    limits = f"by its {node.cpus:g} CPUs" + (f" and {node.gpus:g} GPUs" if node.gpus else "")
    if node.fit_per_gpu is not None:
        limits += f", {node.fit_per_gpu} on each GPU"
    if node.fit_in_memory is not None:
        limits += f"; {node.fit_in_memory} by its memory"
    return f"{node.fit} fit", limits


def _seconds(plan: Plan) -> Iterator[tuple[str, str, str]]:
    if plan.seconds is None:
        return
    from api.reports.formatting import format_duration

    seconds, each = plan.seconds, plan.seconds.round
    of_it = (
        f"training {format_duration(each.train)} (of it {format_duration(seconds.overhead)} the engine's), "
    )
    of_it += f"asking {format_duration(each.survey)}, " if each.survey else ""
    of_it += f"server {format_duration(each.server)}, "
    of_it += f"what it trains itself {format_duration(each.learn)}, " if each.learn else ""
    of_it += f"evaluation {format_duration(each.evaluate)}"
    of_it += f", clients' own models {format_duration(each.personal)}" if each.personal else ""
    yield "a round", format_duration(each.total), of_it
    scored = (
        f"{plan.rounds:,} rounds, {plan.evaluations:,} evaluations of {format_duration(seconds.evaluation)}"
    )
    if plan.personal_evaluations:
        scored += f", {plan.personal_evaluations:,} of the clients' own models of {format_duration(seconds.personal)}"
    yield (
        "the run",
        format_duration(seconds.total),
        f"{scored}, {format_duration(seconds.startup)} to begin with",
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="What a spec can say")(plan)
