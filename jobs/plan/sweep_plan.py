"""The plan of a sweep: one run of each cell is measured, and the queue of a service is played through."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from pydantic import Field

from fedsim.errors import DoesNotFit
from jobs.plan.planner import describe_this_machine, plan, time_rounds
from jobs.settings import Settings
from jobs.spec.run_size import is_short
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
    cpus, gpus = float(there.cpus), float(there.gpus)
    for number, member in enumerate(reversed(first.values()), start=1):
        on_status(f"measuring cell {number} of {len(first)}")
        labels, each = member.run.labels, seconds / len(first)
        if settings.ray_address is None and is_short(member.spec, settings):
            taken = RUNNER_SECONDS + time_rounds(member.spec, settings, each)
            cell = PlannedCell(labels=labels, runs=len(sweep.seeds), seconds=taken, cpus=1)
        else:
            found = plan(member.spec, settings, seconds=each, on_status=on_status)
            if not found.fits or found.seconds is None or found.workers is None:
                raise DoesNotFit(f"{member.run}: {found.message or found.notes}", found.hint)
            cpus, gpus = sum(n.cpus for n in found.nodes), sum(n.gpus for n in found.nodes)
            asked = member.spec.resources
            cell = PlannedCell(
                labels=labels,
                runs=len(sweep.seeds),
                seconds=found.seconds.total,
                cpus=cpus if asked.workers == "auto" else found.workers * asked.cpus_per_worker,
                gpus=gpus
                if asked.workers == "auto"
                else found.workers * asked.gpus_per_worker + asked.server_gpus,
            )
        cells[member.run.cell] = cell
    total, at_once = pack_runs((cells[member.run.cell] for member in runs), cpus, gpus)
    return SweepPlan(runs=len(runs), seconds=total, at_once=at_once, cells=list(cells.values()))


def pack_runs(runs: Iterable[PlannedCell], cpus: float, gpus: float) -> tuple[float, int]:
    """Play the queue: each run starts, in order, as soon as it fits beside the runs before it.

    Args:
        runs: in the order of the queue.
        cpus: of the cluster.
        gpus: of the cluster.

    Returns:
        The seconds until all runs have ended, and the most runs side by side.
    """
    now, at_once = 0.0, 0
    active = list[tuple[float, int, PlannedCell]]()
    for number, run in enumerate(runs):
        while active and not _fits(run, [each for *_, each in active], cpus, gpus):
            now = heapq.heappop(active)[0]
        heapq.heappush(active, (now + run.seconds, number, run))
        at_once = max(at_once, len(active))
    return max((end for end, *_ in active), default=0.0), at_once


def _fits(run: PlannedCell, active: list[PlannedCell], cpus: float, gpus: float) -> bool:
    beside = [run, *active]
    return sum(r.cpus for r in beside) <= cpus + 1e-6 and sum(r.gpus for r in beside) <= gpus + 1e-6
