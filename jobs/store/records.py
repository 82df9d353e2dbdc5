"""What the store hands out: round records, jobs, events and pages of jobs, all frozen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from jobs.store.states import FailureReason, JobState

EventType = Literal["state", "round", "warning"]


def replace_non_finite(value: Any) -> Any:
    """The same value with every NaN and infinity replaced by None: JSON has no word for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item) for item in value]
    return value


FreeForm = Annotated[dict[str, JsonValue], BeforeValidator(replace_non_finite)]
"""A mapping whose keys the methods choose."""


class FrozenRecord(BaseModel):
    """A record that nobody changes. Fields that it does not know are of a newer service, and left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Seconds(FrozenRecord):
    """Wall-clock seconds of one round, by phase."""

    total: float
    survey: float = 0.0
    train: float = 0.0
    server: float = 0.0
    learn: float = 0.0
    evaluate: float = 0.0
    personal: float = 0.0


class Traffic(FrozenRecord):
    """Simulated bytes of one round, summed over the cohort.

    Attributes:
        personal: what went down besides, no part of `down`: the model to everybody whose own was scored.
    """

    down: int = Field(ge=0)
    up: int = Field(ge=0)
    by_payload: dict[str, int] = {}
    personal: int = Field(default=0, ge=0)


class Cost(FrozenRecord):
    """What the training of one round cost its clients.

    Attributes:
        updates: how often a parameter was moved: the moving parameters, summed over all local steps.
        flops: floating-point operations of the forward and backward passes.
        tuning_updates, tuning_flops: of fine-tuning, for everybody whose own model was scored.
    """

    updates: int = Field(ge=0)
    flops: int = Field(ge=0)
    tuning_updates: int = Field(default=0, ge=0)
    tuning_flops: int = Field(default=0, ge=0)

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in Cost.model_fields})


class Engine(BaseModel):
    """How the round was computed; more keys may stand beside these."""

    model_config = ConfigDict(frozen=True, extra="allow")

    pool: str
    width: int = 1
    actors: int = 0
    restarts: int = 0


class StateDigests(NamedTuple):
    """What two runs of a round are told apart by.

    Attributes:
        digest: of the server state.
        memory_digest: of what all clients keep; None where they keep nothing, or where nobody has said.
    """

    digest: str
    memory_digest: str | None

    def agrees_with(self, other: StateDigests) -> bool:
        """Whether both are the same, as far as both are known."""
        both = None not in (self.memory_digest, other.memory_digest)
        return self.digest == other.digest and (not both or self.memory_digest == other.memory_digest)


class RoundRecord(FrozenRecord):
    """One round of one job, the same in the store, in REST, in the SDK and in files.

    Attributes:
        round: how many rounds were finished with it, so the first is 1.
        digest: SHA-256 of the server state after the round.
        memory_digest: of what all clients keep after the round; None for methods whose clients keep nothing.
        cohort: how many clients took part.
        failed: the clients of the cohort that failed and were left out.
        seconds: wall-clock seconds by phase.
        bytes: simulated traffic of the round.
        cost: what the training cost the clients; None in records of older versions.
        metrics: named results; a value that is not finite is null.
        engine: the pool that ran, and how.
        method: what the method says about its own round.
    """

    round: int = Field(ge=0)
    digest: str
    memory_digest: str | None = None
    cohort: int = Field(ge=0)
    failed: list[int] = []
    seconds: Seconds
    bytes: Traffic
    cost: Cost | None = None
    metrics: FreeForm = {}
    engine: Engine
    method: FreeForm = {}

    def digests(self) -> StateDigests:
        """Its digests."""
        return StateDigests(self.digest, self.memory_digest)


def replace_unknown_reason(value: Any) -> Any:
    """The same reason, or INTERNAL for one that only a newer service knows."""
    is_new = isinstance(value, str) and value not in FailureReason.__members__
    return FailureReason.INTERNAL if is_new else value


def total_cost(records: Iterable[RoundRecord]) -> Cost:
    """What the rounds cost together; those whose record does not say count nothing."""
    total = Cost(updates=0, flops=0)
    for record in records:
        total += record.cost or Cost(updates=0, flops=0)
    return total


class Job(FrozenRecord):
    """One job as it stands now; all times are UTC.

    Attributes:
        reason: why it FAILED, for machines.
        message: what happened, for people.
        spec: the whole spec, every default filled in.
        rounds_total: rounds that the spec asks for.
        rounds_done: rounds in the store.
        last_metrics: the latest known value of every metric (a metric that is measured on some rounds only
            keeps its value between them).
        waiting: why a queued job waits.
        restarts: how often it was started again by itself, since it was last resumed.
        resumes: how often somebody resumed it.
        submission_id: the name of its Ray job.
        submitted_at: when it first left the queue.
        started_at: when its rounds began, since it was last resumed.
        heartbeat_at: when its runner last said that it lives.
    """

    id: str
    name: str
    state: JobState
    reason: Annotated[FailureReason | None, BeforeValidator(replace_unknown_reason)] = None
    message: str | None = None
    priority: int = 0
    labels: dict[str, str] = {}
    spec: dict[str, Any]
    rounds_total: int
    rounds_done: int = 0
    last_metrics: dict[str, Any] = {}
    waiting: str | None = None
    restarts: int = 0
    resumes: int = 0
    submission_id: str | None = None
    created_at: datetime
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    heartbeat_at: datetime | None = None


class JobEvent(FrozenRecord):
    """Something that happened to a job.

    Attributes:
        id: 1, 2, 3, ... within its job, without gaps, in the order in which readers see them.
        type: `state` (data: state, previous, reason, message, terminal), `round` (data: the round record) or
            `warning` (data: message).
    """

    id: int
    job_id: str
    type: EventType
    data: dict[str, Any]
    at: datetime


class JobPage(FrozenRecord):
    """A page of jobs; `next_page_token` is None on the last one."""

    jobs: list[Job]
    next_page_token: str | None = None


def get_ray_job_id(job: Job) -> str:
    """The id of a job's Ray job. Ray takes each id once, so a second submission does nothing.

    Each restart has another one, so that a runner that was given up knows itself not to be meant any more. A
    restart inside the runner counts too, but stays in the Ray job that the store names.
    """
    life = f"{job.resumes}-{job.restarts}" if job.resumes else f"{job.restarts}"
    return job.submission_id or f"fedsim-{job.id}-{life}"
