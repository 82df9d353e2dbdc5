"""RoundResult: the result of one round, yielded by `simulate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedsim.base.costs import ClockReading, Cost, Traffic
from fedsim.clock.flights import InFlight
from fedsim.core import PersonalScores
from fedsim.engine.stopping import RunEnd


@dataclass(frozen=True)
class RoundResult:
    """The result of one finished round.

    Attributes:
        round: the round's number, counted from 1.
        state: the server state after the round; None in a result received from another process.
        digest: digest of the server state.
        memory_digest: digest of all client states; None unless the algorithm is stateful.
        cohort: the numbers of the round's clients.
        failed: the clients of the cohort that failed and were left out.
        metrics: scores of the models and means over the cohort, such as `global_accuracy` and `train_loss`
            (the mean local loss).
        traffic: simulated bytes between server and clients.
        cost: parameter updates and FLOPs of the clients, for training and for fine-tuning.
        seconds: wall-clock seconds by phase: total, survey, train, server, learn (server training),
            evaluate, personal. Phases may overlap, and each second counts only once: clients that start
            during the evaluation of the previous round do not count these seconds, nor does an evaluation
            that runs during server training. Time after the result is yielded (a checkpoint, for example)
            is not counted, so the seconds of all rounds may be added.
        engine: facts about the pool, such as its name and the number of retries.
        method: the algorithm's own facts about the round (`Algorithm.describe_round`).
        personal: scores of the personal models, per client; None if they were not evaluated.
        is_result: whether the result of the run is that of this round, if the run ends here; see `StopRule`.
        clock: the simulated seconds of the round; None in a run without devices.
        in_flight: the clients that train on after the round, with an asynchronous policy; else None, as in a
            result received from another process.
        end: why the run ends after this round; None if it goes on, and in a run without a stop rule.
    """

    round: int
    state: Any
    digest: str
    cohort: tuple[int, ...]
    memory_digest: str | None = None
    failed: tuple[int, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    cost: Cost = field(default_factory=Cost)
    seconds: Mapping[str, float] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    personal: PersonalScores | None = None
    is_result: bool = True
    end: RunEnd | None = None
    clock: ClockReading | None = None
    in_flight: InFlight | None = None

    def add_sources(self, code: Mapping[str, str], data: str) -> RoundResult:
        """Return the result with what it was computed from.

        Args:
            code: {package: version}; {} adds nothing.
            data: `Dataset.fingerprint`; "" adds nothing.
        """
        sources = {"code": dict(code), "data": data}
        named = {name: value for name, value in sources.items() if value}
        return replace(self, engine={**self.engine, **named})

    def record(self) -> dict[str, Any]:
        """Return the round as plain data, as stores and files hold it."""
        record: dict[str, Any] = {
            "round": self.round,
            "digest": self.digest,
            "memory_digest": self.memory_digest,
            "cohort": len(self.cohort),
            "failed": list(self.failed),
            "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
            "bytes": asdict(self.traffic),
            "cost": asdict(self.cost),
            "metrics": dict(self.metrics),
            "engine": dict(self.engine),
            "method": dict(self.method),
            "end": self.end and asdict(self.end),
        }
        return record if self.clock is None else {**record, "clock": asdict(self.clock)}
