"""Measured: what a Prober found."""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.client_actor import MemoryUsage
from actors.plan.forecast import Change
from fedsim.core import Traffic


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured, and what follows for a round of the run.

    Attributes:
        device: where clients trained.
        workers: how many actors were measured side by side.
        stack: how many clients train at once in an actor, and how many that would be with more memory.
        pieces: how many workers a round has something to do for, at most, with clients that train at once.
        by_node: actors of each node, by Ray's name of it.
        startup: seconds until the first round can begin, Ray's own start left out.
        survey: seconds of a round's survey.
        train: seconds of a round's training on so many workers, a mean over the run's cohorts.
        overhead: of these, the engine's own.
        longest: seconds of the longest client of a round, a mean likewise.
        server: seconds of the server in a round.
        learn: seconds of what the server trains itself after a round.
        evaluation: seconds that a round waits for one evaluation.
        examination: seconds that it waits for one scoring of the clients' own models.
        examinations: how many of these the run has.
        examination_bytes: that go down for one.
        traffic: bytes of a round, the last that was run; without those of `once`.
        once: bytes before the first round, of asking all clients what the first state rests on.
        sent: bytes of the whole rounds that were run, `once` included.
        change: how what comes down changes in the rounds to come.
        at_most: whether `change` and `examination_bytes` are what can be sent at most, as the course of the
            run decides what will be.
        whole_rounds: how many these were.
        usage: the most that any actor needed.
        shared_bytes: of the data that the actors of a node share.
        seconds: that the measuring took.
        load, cores: how many processes wanted a CPU before it began, and how many CPUs there are.
    """

    device: str
    workers: int
    stack: tuple[int, int] = (1, 1)
    pieces: int
    by_node: dict[str, int]
    startup: float
    survey: float
    train: dict[int, float]
    overhead: float
    longest: float
    server: float
    learn: float = 0.0
    evaluation: float
    examination: float = 0.0
    examinations: int = 0
    examination_bytes: int = 0
    traffic: Traffic
    sent: list[Traffic] = field(default_factory=list)
    once: Traffic = field(default_factory=Traffic)
    change: Change = field(default_factory=lambda: Change({}, {}))
    at_most: bool = False
    whole_rounds: int = 0
    usage: MemoryUsage
    shared_bytes: int
    seconds: float
    load: float
    cores: int
