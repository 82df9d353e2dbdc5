"""Plan: the planner's answer, the same in REST, SDK and command line; and advice for a faster run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from actors.resources import CUDA_CONTEXT_BYTES, ClusterNode
from fedsim.base.costs import Traffic
from jobs.spec import JobSpec
from jobs.store.records import FrozenRecord, Seconds

WORTH = 0.1
"""Smallest share of a round's time that a change must save to be suggested."""


class PlannedClients(FrozenRecord):
    """Numbers of clients that take part."""

    total: int = Field(description="number of clients, N")
    per_round: int = Field(description="number of clients in a cohort, K")
    per_worker: int = Field(description="largest number of clients of a worker in a round")


class PlannedNode(FrozenRecord):
    """One node of the cluster, and the workers that fit on it."""

    name: str
    cpus: float
    gpus: float
    memory: int | None = Field(default=None, description="bytes for workers and data; null if unknown")
    fit: int = Field(description="workers of the spec's size that the CPUs and GPUs hold")
    fit_per_gpu: int | None = Field(default=None, description="workers that one GPU holds")
    fit_in_memory: int | None = Field(default=None, description="workers that the memory holds")
    workers: int | None = Field(default=None, description="workers that were measured on the node")


class PlannedMemory(FrozenRecord):
    """Peak memory in bytes."""

    worker: int = Field(description="memory of a worker's process, without the shared data")
    shared: int = Field(description="the data, which all workers of a node share")
    gpu: int | None = Field(default=None, description="GPU memory of a worker")
    gpu_cap: int | None = Field(default=None, description="limit of a worker's GPU memory")


class PlannedSeconds(FrozenRecord):
    """Wall-clock seconds."""

    startup: float = Field(description="seconds before the first round")
    round: Seconds = Field(description="seconds of a round, the mean over the run")
    overhead: float = Field(description="the engine's own seconds in a round's training")
    evaluation: float = Field(description="seconds that a round waits for one evaluation")
    personal: float = Field(default=0.0, description="seconds that a round waits for one personal evaluation")
    total: float = Field(description="seconds of the run")


class PlannedBytes(FrozenRecord):
    """Simulated traffic in bytes."""

    round: Traffic
    total: Traffic


class PlannedClock(FrozenRecord):
    """Simulated time of a run with devices, from its first rounds."""

    round: float = Field(description="simulated seconds of a round, the mean over the measured rounds")
    total: float = Field(description="simulated seconds of the run")
    joules: float = Field(description="energy of the clients in the run")


class Measurement(FrozenRecord):
    """The measurement behind a plan."""

    seconds: float = Field(description="seconds spent on the measurement")
    workers: int = Field(description="number of workers measured side by side")
    whole_rounds: int = Field(description="number of whole rounds; 0 if there was no time for one")


class Plan(FrozenRecord):
    """Resources, time and traffic that a spec needs."""

    fits: bool = Field(description="whether the spec can run on this cluster")
    message: str = Field(default="", description="why it does not fit, with the calculation")
    hint: str = Field(default="", description="how to make it fit")
    rounds: int
    evaluations: int
    personal_evaluations: int = Field(default=0, description="number of personal evaluations")
    clients: PlannedClients
    device: str | None = Field(default=None, description='device of the clients, "cpu" or "cuda"')
    workers: int | None = Field(default=None, description="number of workers")
    stack: int | None = Field(default=None, description="number of clients that train at once in a worker")
    nodes: list[PlannedNode] = Field(default_factory=list)
    memory: PlannedMemory | None = None
    seconds: PlannedSeconds | None = None
    bytes: PlannedBytes | None = None
    clock: PlannedClock | None = None
    measured: Measurement | None = None
    faster: list[str] = Field(default_factory=list, description="changes that would make the run faster")
    notes: list[str] = Field(default_factory=list, description="limits of the figures")


def advise_on_workers(
    plan: Plan, spec: JobSpec, nodes: Sequence[ClusterNode], train: Mapping[int, float], busy: int
) -> Iterator[str]:
    """Yield the changes of workers, stacks and GPU shares that the measured numbers support.

    `train` has the seconds of a round's training by number of workers; `busy` workers have work in a round.
    """
    if plan.seconds is None or plan.memory is None or plan.workers is None:
        return
    cpus, share = spec.resources.cpus_per_worker, spec.resources.gpus_per_worker
    capacity = sum(node.count_fitting_actors(cpus, share) for node in nodes)
    workers, clients, useful = plan.workers, plan.clients.per_round, max(train)
    within = min(capacity, useful)
    more = within if within > workers else useful
    saved = (train[workers] - train[more]) / plan.seconds.round.total
    if more > workers and saved >= WORTH:
        change = f"resources.workers: {more} fits here, and shortens"
        if more > capacity:
            change = f"{more} workers need more CPUs, GPUs or nodes, and shorten"
        yield f"{change} a round by about {saved:.0%}"
    if workers > clients:
        yield (
            f"{workers - clients} of {workers} workers have nothing to do, because {clients} clients come "
            f"to a round: resources.workers: {clients} leaves their resources to other jobs"
        )
    elif workers > busy:
        # On a CPU narrow stacks are slower than one client after another.
        stack = clients // workers if plan.device == "cuda" else 1
        yield (
            f"{workers - busy} of {workers} workers have nothing to do, because up to {plan.stack} of "
            f"{clients} clients train at once: resources.stack: {stack if stack > 1 else 'off'} gives all of "
            "them work"
        )
    yield from _advise_on_gpu_share(plan.memory, spec, nodes, useful)


def _advise_on_gpu_share(
    memory: PlannedMemory, spec: JobSpec, nodes: Sequence[ClusterNode], useful: int
) -> Iterator[str]:
    """Suggest a smaller share of a GPU, if it makes room for more of the `useful` workers."""
    cpus, share = spec.resources.cpus_per_worker, spec.resources.gpus_per_worker
    if not 0 < share <= 1 or memory.gpu is None or memory.gpu_cap is None:
        return
    whole = (memory.gpu_cap + CUDA_CONTEXT_BYTES) / share
    # A quarter more than the measured peak: later rounds may have larger clients.
    need = round((1.25 * memory.gpu + CUDA_CONTEXT_BYTES) / whole + 0.005, 2)
    now, then = (sum(node.count_fitting_actors(cpus, gpus) for node in nodes) for gpus in (share, need))
    if need < share and useful > now < then:
        yield (
            f"a worker needed {memory.gpu / 1e9:.3g} GB of its {memory.gpu_cap / 1e9:.3g} GB of GPU memory: "
            f"resources.gpus_per_worker: {need:g} makes room for {then} workers instead of {now}"
        )


def advise_on_rounds(plan: Plan, spec: JobSpec, longest: float) -> Iterator[str]:
    """Yield advice on the part that takes most of a round; the longest client trains `longest` seconds."""
    if plan.seconds is None:
        return
    each, rounds = plan.seconds.round, plan.rounds
    every = min(5 * spec.evaluation.every, rounds)
    saved = (plan.evaluations - -(-rounds // every)) * plan.seconds.evaluation / (rounds * each.total)
    if saved >= WORTH:
        yield (
            f"evaluation takes {each.evaluate / each.total:.0%} of the time: evaluation.every: {every} saves "
            f"{saved:.0%}"
        )
    if (plan.workers or 1) > 1 and not spec.local.steps and longest >= 0.7 * each.train:
        yield (
            f"the largest client takes {longest / each.train:.0%} of a round's training, which more workers "
            "do not shorten: local.steps in place of local.epochs gives all clients the same work"
        )
    overhead = plan.seconds.overhead / each.total
    if overhead > 0.5:
        yield (
            f"{overhead:.0%} of a round is the engine's own work: more work in each round (local.epochs, "
            "clients.fraction) costs little"
        )
