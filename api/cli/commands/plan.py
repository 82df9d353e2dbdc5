"""`fedsim plan`: what a spec needs and what it will take, before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.commands.options import DataFormat, Format, Sets, Spec

if TYPE_CHECKING:
    from jobs.plan.plan import Plan, PlannedNode

DOES_NOT_FIT = 3

Measuring = Annotated[
    float,
    typer.Option("--seconds", min=1, max=3600, help="How long to measure, about; starting comes on top."),
]


def plan(spec: Spec, sets: Sets = None, seconds: Measuring = 20, format: DataFormat = Format.TEXT) -> None:
    """Measure a spec here, and tell what it will need and take. Exit code 3 where it does not fit."""
    from api.cli.display import data, print_error, print_json, say, table, waiting
    from fedsim.errors import DoesNotFit
    from jobs.settings import Settings
    from jobs.spec import read_spec
    from jobs.spec.resolve import parse_whole

    loaded = parse_whole(read_spec(spec, sets or ()))
    with waiting("loading the libraries") as show:
        show("loading the libraries")
        from jobs.plan.planner import plan as measure

        found = measure(loaded, Settings.from_env(), seconds=seconds, on_phase=show)
    if format is Format.JSON:
        print_json(found.model_dump(mode="json"))
    elif found.fits:
        data().print(table(("", "planned", ""), rows(found)))
        for line in found.faster:
            say(f"faster: {line}")
    for note in found.notes:
        say(f"note: {note}")
    if not found.fits:
        print_error(DoesNotFit(found.message, found.hint))
        raise typer.Exit(DOES_NOT_FIT)


def rows(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """What a plan says, line by line: of what, how much, and how that comes about."""
    from api.reports.formatting import size

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
        yield "memory of a worker", size(memory.worker), f"and {size(memory.shared)} of data for each node"
        if memory.gpu is not None and memory.gpu_cap is not None:
            yield "GPU memory of a worker", size(memory.gpu), f"of {size(memory.gpu_cap)} that it may use"
    yield from _seconds(plan)
    if plan.bytes is not None:
        each_way = "{} down, {} up".format
        one, all_of_them = plan.bytes.round, plan.bytes.total
        yield "bytes of a round", size(one.down + one.up), each_way(size(one.down), size(one.up))
        total = size(all_of_them.down + all_of_them.up)
        yield "bytes of the run", total, each_way(size(all_of_them.down), size(all_of_them.up))


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
    from api.reports.formatting import duration

    seconds, each = plan.seconds, plan.seconds.round
    of_it = f"training {duration(each.train)} (of it {duration(seconds.overhead)} the engine's), "
    of_it += f"asking {duration(each.survey)}, " if each.survey else ""
    of_it += f"server {duration(each.server)}, "
    of_it += f"what it trains itself {duration(each.learn)}, " if each.learn else ""
    of_it += f"evaluation {duration(each.evaluate)}"
    of_it += f", clients' own models {duration(each.personal)}" if each.personal else ""
    yield "a round", duration(each.total), of_it
    scored = f"{plan.rounds:,} rounds, {plan.evaluations:,} evaluations of {duration(seconds.evaluation)}"
    if plan.personal_evaluations:
        scored += (
            f", {plan.personal_evaluations:,} of the clients' own models of {duration(seconds.personal)}"
        )
    yield "the run", duration(seconds.total), f"{scored}, {duration(seconds.startup)} to begin with"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="What a spec can say")(plan)
