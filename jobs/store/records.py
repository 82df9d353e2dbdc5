"""The records of the store: rounds, jobs, events and pages of jobs, all frozen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from functools import reduce
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from fedsim.base.costs import ClockReading, Cost, Traffic
from fedsim.engine.stopping import RunEnd
from jobs.store.states import FailureReason, JobState

EventType = Literal["state", "round", "warning"]


def replace_non_finite(value: Any) -> Any:
    """Return the value with None for every NaN and infinity, which JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item) for item in value]
    return value


FreeForm = Annotated[dict[str, JsonValue], BeforeValidator(replace_non_finite)]
"""A mapping with free keys, such as metric names."""


class FrozenRecord(BaseModel):
    """An immutable record. It ignores unknown fields, which come from a newer service."""

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


class Engine(BaseModel):
    """The pool that computed the round, the code, and a hash of the data; a pool may add keys."""

    model_config = ConfigDict(frozen=True, extra="allow")

    pool: str
    width: int = 1
    actors: int = 0
    restarts: int = 0
    code: dict[str, str] = Field(default={}, exclude_if=lambda code: not code)
    data: str = Field(default="", exclude_if=lambda data: not data)


class StateDigests(NamedTuple):
    """The digests that two runs of a round are compared by.

    Attributes:
        digest: of the server state.
        memory_digest: of all client states; None without client states, or if unknown.
    """

    digest: str
    memory_digest: str | None

    def agrees_with(self, other: StateDigests) -> bool:
        """Return whether the digests that both have are equal."""
        both = None not in (self.memory_digest, other.memory_digest)
        return self.digest == other.digest and (not both or self.memory_digest == other.memory_digest)


class RoundRecord(FrozenRecord):
    """One round of one job, the same in the store, in REST, in the SDK and in files.

    Attributes:
        round: the round's number; the first round is 1.
        digest: SHA-256 of the server state after the round.
        memory_digest: of all client states after the round; None for algorithms without client states.
        cohort: the number of clients that took part.
        failed: the clients of the cohort that failed and were left out.
        seconds: wall-clock seconds by phase.
        bytes: simulated traffic of the round.
        cost: of the clients' training and fine-tuning; None in records of older versions.
        metrics: results by name; a value that is not finite is null.
        engine: the pool that computed the round.
        method: the algorithm's own figures for the round.
        clock: simulated seconds and energy; missing in a run without `devices`.
        end: of the last round of a run with `stop`: why the run ended, and of which round its result is.
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
    end: RunEnd | None = None
    clock: ClockReading | None = Field(default=None, exclude_if=lambda clock: clock is None)

    @property
    def result_metrics(self) -> FreeForm:
        """The metrics of the round of the result, which a stop rule may have chosen before this one."""
        return {**self.metrics, **(self.end.metrics if self.end else {})}

    def digests(self) -> StateDigests:
        """Return the digests of the round."""
        return StateDigests(self.digest, self.memory_digest)


def replace_unknown_reason(value: Any) -> Any:
    """Return the reason; INTERNAL for a reason that only a newer service knows."""
    is_new = isinstance(value, str) and value not in FailureReason.__members__
    return FailureReason.INTERNAL if is_new else value


class RunTotals(NamedTuple):
    """Sums over the rounds of a run.

    Attributes:
        rounds: their number.
        seconds: of computing time.
        down, up, personal: bytes, as in `Traffic`.
        cost: a record without a cost counts 0.
        simulated_seconds, joules: of a run with `devices`; else None.
    """

    rounds: int = 0
    seconds: float = 0.0
    down: int = 0
    up: int = 0
    personal: int = 0
    cost: Cost = Cost()
    simulated_seconds: float | None = None
    joules: float | None = None

    @classmethod
    def of(cls, records: Iterable[RoundRecord]) -> RunTotals:
        """Return the sums over these rounds."""
        return reduce(cls.add, records, cls())

    def add(self, record: RoundRecord) -> RunTotals:
        """Return the sums with one more round."""
        clock = record.clock
        return RunTotals(
            rounds=self.rounds + 1,
            seconds=self.seconds + record.seconds.total,
            down=self.down + record.bytes.down,
            up=self.up + record.bytes.up,
            personal=self.personal + record.bytes.personal,
            cost=self.cost + (record.cost or Cost()),
            simulated_seconds=self.simulated_seconds if clock is None else clock.total,
            joules=self.joules if clock is None else (self.joules or 0.0) + clock.joules,
        )


class Job(FrozenRecord):
    """One job as it stands now; all times are UTC.

    Each field has the name of its column of the table `jobs`.

    Attributes:
        algorithm: the name of the spec's algorithm.
        reason: of a failure, for programs.
        message: of the last change of state, for people.
        spec: the whole spec, with every default.
        rounds_total: rounds that the spec asks for.
        rounds_done: rounds in the store.
        last_metrics: the last value of every metric; a metric that only some rounds have keeps its value.
            After the end of a run with `stop`, the values of the round of the result.
        waiting: why a queued job waits; what a starting job does before its first round.
        restarts: how often the job restarted by itself since it was last resumed.
        resumes: how often a user resumed the job.
        submission_id: the id of its Ray job.
        submitted_at: despite its name, when the job first left the queue.
        started_at: when its rounds began, since it was last resumed.
        heartbeat_at: the runner's last heartbeat.
    """

    id: str
    name: str
    algorithm: str = ""  # an older service does not send it
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
    """An event of a job.

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
    """A page of jobs.

    Attributes:
        jobs: of the page.
        next_page_token: None on the last page.
        counts: of all jobs that pass the filters, except that by state: how many are in each state. States
            without a job are left out.
    """

    jobs: list[Job]
    next_page_token: str | None = None
    counts: dict[str, int] = {}  # an older service does not send it


def get_ray_job_id(job: Job) -> str:
    """Return the id of a job's Ray job. Ray takes each id once, so that a second submission does nothing.

    Each restart has another id, so that an abandoned runner knows that the job is no longer its own. A
    restart inside the runner counts too, but keeps the Ray job that the store names.
    """
    suffix = f"{job.resumes}-{job.restarts}" if job.resumes else f"{job.restarts}"
    return job.submission_id or f"fedsim-{job.id}-{suffix}"
