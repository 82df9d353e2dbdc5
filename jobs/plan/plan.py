"""What the planner answers: the same by REST, in the SDK and on the command line."""

from __future__ import annotations

from pydantic import Field

from jobs.store.records import FrozenRecord, RoundTraffic, Seconds


class PlannedClients(FrozenRecord):
    """Who takes part."""

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
    personal: float = Field(
        default=0.0, description="that it waits for one scoring of the clients' own models"
    )
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
    """What a spec needs, and what it will take.

    Attributes:
        fits: whether it can run here.
        message: why not, with the arithmetic.
        hint: the way out.
        personal_evaluations: how often the clients' own models are scored.
        device: where clients train, "cpu" or "cuda".
        workers: how many actors there would be.
        stack: how many clients would train at once in an actor, as far as memory allows it.
        faster: what would make it faster, where the numbers say so.
        notes: what to know of the figures.
    """

    fits: bool
    message: str = ""
    hint: str = ""
    rounds: int
    evaluations: int
    personal_evaluations: int = 0
    clients: PlannedClients
    device: str | None = None
    workers: int | None = None
    stack: int | None = None
    nodes: list[PlannedNode] = Field(default_factory=list)
    memory: PlannedMemory | None = None
    seconds: PlannedSeconds | None = None
    bytes: PlannedBytes | None = None
    measured: Measurement | None = None
    faster: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
