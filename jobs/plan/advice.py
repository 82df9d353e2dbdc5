"""What would make a run faster, where the measured numbers say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actors.device import CUDA_CONTEXT_BYTES
from actors.plan.measured import Measured
from actors.resources import ClusterNode
from jobs.plan.plan import Plan, PlannedSeconds
from jobs.spec import JobSpec

WORTH = 0.1
"""The share of a round that a change has to save to be worth a word."""


def advice(plan: Plan, spec: JobSpec, nodes: Sequence[ClusterNode], found: Measured) -> list[str]:
    """What would make the run faster, in words for people; [] where nothing that is known would.

    Args:
        plan: with its figures.
        spec: what would run.
        nodes: the cluster.
        found: what was measured.
    """
    if plan.seconds is None or plan.workers is None:
        return []
    return [
        *_more_workers(plan.seconds, spec, plan.workers, nodes, found),
        *_idle_workers(plan, found),
        *_smaller_share(spec, nodes, found),
        *_fewer_evaluations(plan, plan.seconds, spec),
        *_long_client(plan, plan.seconds, spec, found),
        *_short_rounds(plan.seconds),
    ]


def _more_workers(
    seconds: PlannedSeconds, spec: JobSpec, now: int, nodes: Sequence[ClusterNode], found: Measured
) -> Iterator[str]:
    """More workers, by the spec or by more machines."""
    asked = spec.resources
    room = sum(node.count_fitting_actors(asked.cpus_per_worker, asked.gpus_per_worker) for node in nodes)
    useful = max(found.train)
    within = min(room, useful)
    if within > now and (text := _gain(seconds, found, now, within)):
        yield f"resources.workers: {within} has room here: {text}"
    elif useful > room and (text := _gain(seconds, found, now, useful)):
        narrow = asked.cpus_per_worker > 1 and not asked.gpus_per_worker
        if narrow and sum(node.count_fitting_actors(1, 0) for node in nodes) > room:
            yield (
                f"a worker trains with one thread: resources.cpus_per_worker: 1 makes room for "
                f"{sum(node.count_fitting_actors(1, 0) for node in nodes)} workers instead of {room}"
            )
        else:
            yield f"room for {useful} workers (more CPUs, GPUs or nodes), one for each client: {text}"


def _gain(seconds: PlannedSeconds, found: Measured, now: int, then: int) -> str:
    """What another number of workers would make of a round; "" where it is not worth it."""
    if then not in found.train:
        return ""
    saved = found.train[now] - found.train[then]
    if saved < WORTH * seconds.round.total:
        return ""
    total = seconds.round.total
    return f"a round would take about {_time(total - saved)} instead of {_time(total)}"


def _idle_workers(plan: Plan, found: Measured) -> Iterator[str]:
    """Workers that a round has nothing to do for, with its stacks and clients that train one by one."""
    clients, workers, width = plan.clients.per_round, plan.workers or 0, plan.stack or 1
    pieces = found.pieces
    if workers > clients:
        yield (
            f"{workers - clients} of {workers} workers have nothing to do, because {clients} clients "
            f"come to a round; resources.workers: {clients} leaves their room to other jobs"
        )
    elif workers > pieces:
        # On a CPU narrow stacks are slower than one client after another.
        each = 1 if found.device == "cpu" else clients // workers
        stack = each if each > 1 else "off"
        yield (
            f"{workers - pieces} of {workers} workers have nothing to do, because up to {width} of {clients} "
            f"clients train at once; resources.stack: {stack} has something for all of them"
        )


def _smaller_share(spec: JobSpec, nodes: Sequence[ClusterNode], found: Measured) -> Iterator[str]:
    """A smaller share of a GPU, where workers hold only a part of theirs and more of them had clients."""
    share, usage = spec.resources.gpus_per_worker, found.usage
    if not 0 < share <= 1 or usage.gpu is None or usage.gpu_cap is None:
        return
    whole = (usage.gpu_cap + CUDA_CONTEXT_BYTES) / share
    # A quarter more than was needed: rounds to come may bring larger clients.
    need = round((1.25 * usage.gpu + CUDA_CONTEXT_BYTES) / whole + 0.005, 2)
    room = sum(node.count_fitting_actors(spec.resources.cpus_per_worker, need) for node in nodes)
    now = sum(node.count_fitting_actors(spec.resources.cpus_per_worker, share) for node in nodes)
    if need < share and room > now and max(found.train) > now:
        yield (
            f"a worker held {_gigabytes(usage.gpu)} of its {_gigabytes(usage.gpu_cap)} of GPU memory: "
            f"resources.gpus_per_worker: {need:g} makes room for {room} workers instead of {now}"
        )


def _fewer_evaluations(plan: Plan, seconds: PlannedSeconds, spec: JobSpec) -> Iterator[str]:
    if seconds.round.evaluate < 2 * WORTH * seconds.round.total or plan.evaluations < 2:
        return
    every = min(5 * spec.evaluation.every, plan.rounds)
    fewer = plan.rounds // every + (plan.rounds % every > 0)
    saved = (plan.evaluations - fewer) * seconds.evaluation
    share = seconds.round.evaluate / seconds.round.total
    yield f"scoring is {share:.0%} of the time: evaluation.every: {every} saves {_time(saved)} of the run"


def _long_client(plan: Plan, seconds: PlannedSeconds, spec: JobSpec, found: Measured) -> Iterator[str]:
    """One client that all others wait for."""
    longest, train = found.longest, seconds.round.train
    if plan.workers is None or plan.workers < 2 or longest < 0.7 * train or train < WORTH:
        return
    way_out = (
        " local.steps in place of local.epochs would even the work out" if spec.local.steps is None else ""
    )
    yield (
        f"the largest client of a round takes {_time(longest)} of its {_time(train)}, and more workers "
        f"cannot help that;{way_out or ' it makes as many steps as all others'}"
    )


def _short_rounds(seconds: PlannedSeconds) -> Iterator[str]:
    if seconds.overhead > 0.5 * seconds.round.total:
        yield (
            f"{seconds.overhead / seconds.round.total:.0%} of a round is the engine's own work: more work in "
            "each round (local.epochs, clients.fraction) costs little"
        )


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"
