"""`fedsim plan`: memory, traffic and time of a spec, measured before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.commands.options import Format, FormatOption, SetOption, SpecArgument
from api.reports.formatting import format_bytes, format_duration

if TYPE_CHECKING:
    from jobs.plan.plan import Plan, PlannedMemory, PlannedSeconds

DOES_NOT_FIT = 3

SECONDS_HELP = "Approximate seconds of measuring, without the start-up time."


def plan(
    spec: SpecArgument,
    sets: SetOption = None,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help=SECONDS_HELP)] = 20,
    format: FormatOption = Format.TEXT,
) -> None:
    """Measure a spec on this machine; print the memory, traffic and time that it needs.

    Of a sweep file: print the time of all runs, side by side as on a service. Exit code 3 if it does not fit.
    """
    from api.cli import display
    from fedsim.errors import DoesNotFit
    from jobs.settings import Settings
    from jobs.spec import read_spec
    from jobs.spec.resolve import parse_spec_and_names
    from jobs.spec.sweep import is_sweep_file

    if is_sweep_file(spec):
        _plan_sweep(spec, sets or (), seconds, format)
        return
    loaded = parse_spec_and_names(read_spec(spec, sets or ()))
    with display.show_waiting("loading the libraries") as show:
        show("loading the libraries")
        from jobs.plan.planner import plan as measure

        found = measure(loaded, Settings.from_env().add_local_folders(spec), seconds=seconds, on_status=show)
    if format is Format.JSON:
        display.print_json(found.model_dump(mode="json"))
    elif found.fits:
        table = display.make_table(("resource", "forecast", "detail"), format_plan(found))
        display.print_table(table)
        for line in found.faster:
            display.print_message(f"faster: {line}")
    for note in found.notes:
        display.print_message(f"note: {note}")
    if not found.fits:
        display.print_error(DoesNotFit(found.message, found.hint))
        raise typer.Exit(DOES_NOT_FIT)


def _plan_sweep(file: str, sets: Sequence[str], seconds: float, format: Format) -> None:
    """Measure a sweep, and print the time of each run and of all."""
    from api.cli import display
    from jobs.settings import Settings
    from jobs.spec.sweep import read_sweep

    sweep = read_sweep(file, sets)
    with display.show_waiting("loading the libraries") as show:
        from jobs.plan.sweep_plan import plan_sweep

        settings = Settings.from_env().add_local_folders(file)
        found = plan_sweep(sweep, settings, seconds=seconds, on_status=show)
    if format is Format.JSON:
        display.print_json(found.model_dump(mode="json"))
        return
    heads = (*sweep.axes, "runs", "time of a run", "CPUs", "GPUs")
    rows = [
        (
            *cell.labels.values(),
            str(cell.runs),
            format_duration(cell.seconds),
            f"{cell.cpus:g}",
            f"{cell.gpus:g}",
        )
        for cell in found.cells
    ]
    display.print_table(display.make_table(heads, rows, numbers=heads[-4:]))
    whole = format_duration(found.seconds)
    display.print_message(f"{found.runs} runs take {whole} in all, at most {found.at_once} side by side")


def format_plan(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield the rows (resource, forecast, detail) of a plan."""
    for node in plan.nodes:
        limits = f"limited by {node.cpus:g} CPUs" + (f" and {node.gpus:g} GPUs" if node.gpus else "")
        if node.fit_per_gpu is not None:
            limits += f", {node.fit_per_gpu} on each GPU"
        if node.fit_in_memory is not None:
            limits += f"; {node.fit_in_memory} fit into its memory"
        yield f"node {node.name}", f"{node.fit} workers fit", limits
    yield "workers", str(plan.workers or 0), f"on {plan.device}" if plan.device else ""
    cohort, most = f"{plan.clients.per_round:,}", plan.clients.per_worker
    yield "cohort", cohort, f"cohort {cohort} of {plan.clients.total:,} clients; at most {most} per worker"
    if (plan.stack or 1) > 1:
        yield "stack size", str(plan.stack), "in each worker"
    if plan.memory:
        yield from _format_memory(plan.memory)
    if plan.seconds:
        yield from _format_seconds(plan, plan.seconds)
    if plan.clock:
        yield "simulated time of a round", format_duration(plan.clock.round), ""
        energy = f"if all rounds are as the first ones; the clients take {plan.clock.joules:.3g} J"
        yield "simulated time of the run", format_duration(plan.clock.total), energy
    if plan.bytes:
        for name, traffic in (("a round", plan.bytes.round), ("the run", plan.bytes.total)):
            ways = f"{format_bytes(traffic.down)} down, {format_bytes(traffic.up)} up"
            yield f"traffic of {name}", format_bytes(traffic.down + traffic.up), ways


def _format_memory(memory: PlannedMemory) -> Iterator[tuple[str, str, str]]:
    data = f"plus {format_bytes(memory.shared)} of data on each node"
    yield "memory of a worker", format_bytes(memory.worker), data
    if memory.gpu is not None and memory.gpu_cap is not None:
        yield "GPU memory of a worker", format_bytes(memory.gpu), f"limit {format_bytes(memory.gpu_cap)}"


def _format_seconds(plan: Plan, seconds: PlannedSeconds) -> Iterator[tuple[str, str, str]]:
    each, overhead = seconds.round, format_duration(seconds.overhead)
    parts = [f"local training {format_duration(each.train)} (including {overhead} of engine overhead)"]
    others = {
        "client survey": each.survey,
        "server update": each.server,
        "server training": each.learn,
        "evaluation": each.evaluate,
        "personal evaluation": each.personal,
    }
    parts += [f"{phase} {format_duration(taken)}" for phase, taken in others.items() if taken]
    yield "time of a round", format_duration(each.total), ", ".join(parts)
    parts = [f"{plan.rounds:,} rounds"]
    parts += [f"{plan.evaluations:,} evaluations of {format_duration(seconds.evaluation)}"]
    if times := plan.personal_evaluations:
        parts += [f"{times:,} personal evaluations of {format_duration(seconds.personal)}"]
    parts += [f"start-up {format_duration(seconds.startup)}"]
    yield "run time", format_duration(seconds.total), ", ".join(parts)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Specs")(plan)
