"""The plan of a sweep: one run of each cell is measured, and the queue of a service is played through."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from pydantic import Field

from fedsim.errors import DoesNotFit
from jobs.plan.planner import describe_this_machine, plan, time_rounds
from jobs.settings import Settings
from jobs.spec.run_size import is_short
from jobs.spec.sections.run_fields import JobSize, fit_together
from jobs.spec.sweep import Sweep, members
from jobs.store.records import FrozenRecord

RUNNER_SECONDS = 1.0
"""Seconds of a short job besides its rounds: the queue, the runner and its files. Measured with the demo."""


class PlannedCell(FrozenRecord):
    """One cell of a sweep."""

    labels: dict[str, str] = Field(description="{axis: label}")
    runs: int = Field(description="number of seeds")
    seconds: float = Field(description="seconds of one run")
    cpus: float = Field(description="CPUs of one run")
    gpus: float = Field(default=0.0, description="GPUs of one run")


class SweepPlan(FrozenRecord):
    """The time that a sweep takes on a service without other jobs."""

    runs: int
    seconds: float = Field(description="seconds of the whole sweep, with runs side by side")
    at_once: int = Field(description="the most runs side by side")
    cells: list[PlannedCell]


def plan_sweep(
    sweep: Sweep,
    settings: Settings,
    *,
    seconds: float = 20.0,
    on_status: Callable[[str], None] = lambda _: None,
) -> SweepPlan:
    """Plan a sweep: measure the first seed of each cell, for about this many seconds in all.

    Raises:
        SpecError, DataNotFound, DataError: if a spec is wrong, or its data is missing.
        DoesNotFit: if a cell does not fit on the cluster.
    """
    runs = members(sweep)
    first = {member.run.cell: member for member in reversed(runs)}
    cells, there = dict[tuple[str, ...], PlannedCell](), describe_this_machine(settings)
    cluster = JobSize(float(there.cpus), float(there.gpus))
    for number, member in enumerate(reversed(first.values()), start=1):
        on_status(f"measuring cell {number} of {len(first)}")
        each = seconds / len(first)
        if settings.ray_address is None and is_short(member.spec, settings):
            size, taken = JobSize(1, 0), RUNNER_SECONDS + time_rounds(member.spec, settings, each)
        else:
            found = plan(member.spec, settings, seconds=each, on_status=on_status)
            if not found.fits or found.seconds is None:
                raise DoesNotFit(f"{member.run}: {found.message or found.notes}", found.hint)
            cluster = JobSize(sum(n.cpus for n in found.nodes), sum(n.gpus for n in found.nodes))
            size, taken = member.spec.resources.measure_job(cluster), found.seconds.total
        cells[member.run.cell] = PlannedCell(
            labels=member.run.labels, runs=len(sweep.seeds), seconds=taken, cpus=size.cpus, gpus=size.gpus
        )
    total, at_once = pack_runs((cells[member.run.cell] for member in runs), cluster)
    return SweepPlan(runs=len(runs), seconds=total, at_once=at_once, cells=list(cells.values()))


def pack_runs(runs: Iterable[PlannedCell], cluster: JobSize) -> tuple[float, int]:
    """Play the queue: each run starts, in order, as soon as it fits beside the runs before it.

    Args:
        runs: in the order of the queue.
        cluster: its CPUs and GPUs.

    Returns:
        The seconds until all runs have ended, and the most runs side by side.
    """
    now, at_once = 0.0, 0
    active = list[tuple[float, int, JobSize]]()
    for number, run in enumerate(runs):
        size = JobSize(run.cpus, run.gpus)
        while active and not fit_together([size, *(each for *_, each in active)], cluster):
            now = heapq.heappop(active)[0]
        heapq.heappush(active, (now + run.seconds, number, size))
        at_once = max(at_once, len(active))
    return max((end for end, *_ in active), default=0.0), at_once
