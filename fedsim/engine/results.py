"""RoundResult: one finished round, as `simulate` yields it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsim.core import PersonalScores, Traffic
from fedsim.training.effort import NOTHING, Cost


@dataclass(frozen=True)
class RoundResult:
    """One finished round.

    Attributes:
        round: how many rounds are finished now, from 1.
        state: the server state after it; None once it has crossed a process boundary.
        digest: of that state.
        memory_digest: of what all clients keep; None unless the algorithm is stateful.
        cohort: the clients that took part.
        failed: those of them whose work was left out.
        metrics: scores and the cohort's averages; `train_loss` is the mean local loss.
        traffic: simulated bytes.
        cost: what the round's training cost its clients.
        tuning: what fine-tuning cost everybody whose own model was scored.
        seconds: wall clock by phase: total, survey, train, server, learn (what the server trains itself),
            evaluate, personal. They add up over a run: clients that began while the round before was scored
            had those seconds for nothing, as had the scoring that went on while the server learnt. What is
            done with a round after it was yielded, such as a checkpoint, is in none.
        engine: how the pool did it.
        method: what the method decided.
        personal: how the clients' own models do, client by client; None where they were not scored.
    """

    round: int
    state: Any
    digest: str
    cohort: tuple[int, ...]
    memory_digest: str | None = None
    failed: tuple[int, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    cost: Cost = NOTHING
    tuning: Cost = NOTHING
    seconds: Mapping[str, float] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    personal: PersonalScores | None = None

    def record(self) -> dict[str, Any]:
        """The round as plain data, as it stands in stores and files."""
        return {
            "round": self.round,
            "digest": self.digest,
            "memory_digest": self.memory_digest,
            "cohort": len(self.cohort),
            "failed": list(self.failed),
            "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
            "bytes": {
                "down": self.traffic.down,
                "up": self.traffic.up,
                "by_payload": dict(self.traffic.by_payload),
                "personal": self.traffic.personal,
            },
            "cost": {
                "updates": self.cost.updates,
                "flops": self.cost.flops,
                "tuning_updates": self.tuning.updates,
                "tuning_flops": self.tuning.flops,
            },
            "metrics": dict(self.metrics),
            "engine": dict(self.engine),
            "method": dict(self.method),
        }
