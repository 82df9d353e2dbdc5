"""Draw the faults of `Chaos` from the run's seed, so that a run with faults is reproducible.

The settings are in `fedsim.engine.faults`, which imports no random numbers and loads fast.
"""

from __future__ import annotations

from fedsim.base import rng
from fedsim.engine.faults import Faults


def should_kill_actor(faults: Faults, seed: int, round: int, start: int, attempt: int) -> bool:
    """Return whether the actor must die before it trains this span.

    Args:
        faults: the policy.
        seed: of the run.
        round: counted from 0.
        start: the span's first block.
        attempt: how often the span was begun before.
    """
    may = attempt < faults.max_retries
    return may and _draw_fault(faults.chaos.kill_actor, seed, "chaos-actor", round, start, attempt)


def should_fail_client(faults: Faults, seed: int, round: int, client: int, attempt: int) -> bool:
    """Return whether a client must raise.

    Args:
        faults: the policy.
        seed: of the run.
        round: counted from 0.
        client: its number.
        attempt: how often it was trained before in this round.
    """
    may = faults.client_error != "retry" or attempt < faults.max_retries
    return may and _draw_fault(faults.chaos.fail_client, seed, "chaos-client", round, client, attempt)


def _draw_fault(probability: float, seed: int, purpose: str, *numbers: int) -> bool:
    return probability > 0 and rng.stream(seed, purpose, *numbers).random() < probability
