"""Plan: the planner's answer, the same in REST, SDK and command line; and advice for a faster run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from actors.resources import CUDA_CONTEXT_BYTES, ClusterNode
from jobs.spec import JobSpec
from jobs.store.records import FrozenRecord, RoundTraffic, Seconds

WORTH = 0.1
"""Smallest share of a round's time that a change must save to be suggested."""


class PlannedClients(FrozenRecord):
    """Numbers of clients that take part."""

    total: int = Field(description="N")
    per_round: int = Field(description="K")
    per_worker: int = Field(description="of a round, at most")


class PlannedNode(FrozenRecord):
    """One node of the cluster, and what fits there."""

    name: str
    cpus: float
    gpus: float
    memory: int | None = Field(default=None, description="bytes for workers and data, where known")
    fit: int = Field(description="workers of the spec's size, by CPUs and GPUs")
    fit_per_gpu: int | None = Field(default=None, description="of these, on each GPU")
    fit_in_memory: int | None = Field(default=None, description="workers that the memory holds, where known")
    workers: int | None = Field(default=None, description="that were measured there")


class PlannedMemory(FrozenRecord):
    """Peak memory in bytes."""

    worker: int = Field(description="of a worker's process, without what it shares")
    shared: int = Field(description="the data, which all workers of a node share")
    gpu: int | None = Field(default=None, description="that a worker holds of its GPU")
    gpu_cap: int | None = Field(default=None, description="that it may hold")


class PlannedSeconds(FrozenRecord):
    """Wall-clock seconds."""

    startup: float = Field(description="until the first round begins")
    round: Seconds = Field(description="of a round, the mean over the run")
    overhead: float = Field(description="of a round's training, the engine's own part")
    evaluation: float = Field(description="that a round waits for one evaluation")
    personal: float = Field(default=0.0, description="that it waits for one personal evaluation")
    total: float = Field(description="of the run")


class PlannedBytes(FrozenRecord):
    """Simulated traffic in bytes."""

    round: RoundTraffic
    total: RoundTraffic


class Measurement(FrozenRecord):
    """How the plan was found."""

    seconds: float = Field(description="that the measuring took")
    workers: int = Field(description="measured side by side")
    whole_rounds: int = Field(description="run in full; 0 where a round is longer than there was time for")


class Plan(FrozenRecord):
    """Resources, time and traffic that a spec needs."""

    fits: bool = Field(description="whether it can run here")
    message: str = Field(default="", description="why not, with the arithmetic")
    hint: str = Field(default="", description="the way out")
    rounds: int
    evaluations: int
    personal_evaluations: int = Field(default=0, description="how often the clients' own models are scored")
    clients: PlannedClients
    device: str | None = Field(default=None, description='where clients train, "cpu" or "cuda"')
    workers: int | None = Field(default=None, description="how many actors there would be")
    stack: int | None = Field(default=None, description="clients that train at once, as memory allows it")
    nodes: list[PlannedNode] = Field(default_factory=list)
    memory: PlannedMemory | None = None
    seconds: PlannedSeconds | None = None
    bytes: PlannedBytes | None = None
    measured: Measurement | None = None
    faster: list[str] = Field(default_factory=list, description="what would make it faster")
    notes: list[str] = Field(default_factory=list, description="what to know of the figures")


def advise(
    plan: Plan,
    spec: JobSpec,
    nodes: Sequence[ClusterNode],
    train: Mapping[int, float],
    longest: float,
    pieces: int,
) -> Iterator[str]:
    """The changes that would make the run faster, as far as the measured numbers say so.

    `train` has the seconds of a round's training by number of workers, `longest` those of its longest client;
    `pieces` is how many workers have something to do in a round.
    """
    if plan.seconds is None or plan.workers is None:
        return
    yield from _advise_more_workers(plan.seconds.round.total, spec, plan.workers, nodes, train)
    yield from _advise_fewer_workers(plan, plan.workers, pieces)
    yield from _advise_smaller_share(plan.memory, spec, nodes, max(train))
    yield from _advise_on_parts(plan, plan.seconds, spec, longest)


def _advise_more_workers(
    total: float, spec: JobSpec, now: int, nodes: Sequence[ClusterNode], train: Mapping[int, float]
) -> Iterator[str]:
    """More workers, by the spec or by more machines."""
    asked, useful = spec.resources, max(train)
    room = sum(node.count_fitting_actors(asked.cpus_per_worker, asked.gpus_per_worker) for node in nodes)
    narrow = 0 if asked.gpus_per_worker else sum(node.count_fitting_actors(1, 0) for node in nodes)
    within = min(room, useful)
    then = within if within > now else useful
    saved = train[now] - train.get(then, train[now])
    if then <= now or saved < WORTH * total:
        return
    gain = f"a round would take about {_time(total - saved)} instead of {_time(total)}"
    if then == within:
        yield f"resources.workers: {within} has room here: {gain}"
    elif asked.cpus_per_worker > 1 and narrow > room:
        yield (
            "a worker trains with one thread: resources.cpus_per_worker: 1 makes room for "
            f"{narrow} workers instead of {room}"
        )
    else:
        yield f"room for {useful} workers (more CPUs, GPUs or nodes), one for each client: {gain}"


def _advise_fewer_workers(plan: Plan, workers: int, pieces: int) -> Iterator[str]:
    """Workers that have nothing to do in a round, with its stacks and clients that train one by one."""
    clients = plan.clients.per_round
    if workers > clients:
        yield (
            f"{workers - clients} of {workers} workers have nothing to do, because {clients} clients "
            f"come to a round; resources.workers: {clients} leaves their room to other jobs"
        )
    elif workers > pieces:
        # On a CPU narrow stacks are slower than one client after another.
        each = 1 if plan.device == "cpu" else clients // workers
        yield (
            f"{workers - pieces} of {workers} workers have nothing to do, because up to {plan.stack} of "
            f"{clients} clients train at once; resources.stack: {each if each > 1 else 'off'} has something "
            "for all of them"
        )


def _advise_smaller_share(
    memory: PlannedMemory | None, spec: JobSpec, nodes: Sequence[ClusterNode], useful: int
) -> Iterator[str]:
    """A smaller share of a GPU, where workers hold a part of theirs and more workers would have clients."""
    cpus, share = spec.resources.cpus_per_worker, spec.resources.gpus_per_worker
    if not 0 < share <= 1 or memory is None or memory.gpu is None or memory.gpu_cap is None:
        return
    whole = (memory.gpu_cap + CUDA_CONTEXT_BYTES) / share
    # A quarter more than was needed: rounds to come may bring larger clients.
    need = round((1.25 * memory.gpu + CUDA_CONTEXT_BYTES) / whole + 0.005, 2)
    now, room = (sum(node.count_fitting_actors(cpus, gpus) for node in nodes) for gpus in (share, need))
    if need < share and useful > now < room:
        yield (
            f"a worker held {memory.gpu / 1e9:.3g} GB of its {memory.gpu_cap / 1e9:.3g} GB of GPU memory: "
            f"resources.gpus_per_worker: {need:g} makes room for {room} workers instead of {now}"
        )


def _advise_on_parts(plan: Plan, seconds: PlannedSeconds, spec: JobSpec, longest: float) -> Iterator[str]:
    """Fewer evaluations, evener clients, longer rounds: where one part takes most of a round."""
    each, rounds, every = seconds.round, plan.rounds, min(5 * spec.evaluation.every, plan.rounds)
    if each.evaluate >= 2 * WORTH * each.total and plan.evaluations > 1:
        saved = (plan.evaluations - -(-rounds // every)) * seconds.evaluation
        share = each.evaluate / each.total
        yield f"scoring is {share:.0%} of the time: evaluation.every: {every} saves {_time(saved)} of the run"
    if (plan.workers or 1) > 1 and longest >= 0.7 * each.train >= 0.7 * WORTH:
        even = "it makes as many steps as all others"
        uneven = "local.steps in place of local.epochs would even the work out"
        yield (
            f"the largest client of a round takes {_time(longest)} of its {_time(each.train)}, and more "
            f"workers cannot help that; {even if spec.local.steps else uneven}"
        )
    if seconds.overhead > 0.5 * each.total:
        yield (
            f"{seconds.overhead / each.total:.0%} of a round is the engine's own work: more work in "
            "each round (local.epochs, clients.fraction) costs little"
        )


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:.0f} min"
