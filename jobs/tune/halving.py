"""Asynchronous successive halving (ASHA): which trial trains next, and until which round.

Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar: A System for Massively Parallel
Hyperparameter Tuning, MLSys 2020, arXiv:1810.05934, Algorithm 2.

All trials train until the round of the first rung. Of the trials at a rung, the best 1 / reduction are
promoted: they go on, from their checkpoints, until the next rung. Nobody waits until a rung is full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

WORST = float("-inf")
"""The score of a trial that failed: it is never promoted."""


class Step(NamedTuple):
    """What trains next.

    Attributes:
        trial: its number; the first number without a trial begins a new one.
        rung: the place of the rung to train to, in the list of rungs.
    """

    trial: int
    rung: int


def list_rungs(rounds: int, first: int, reduction: int) -> list[int]:
    """Return the rounds at which trials are compared; the last one is the end of the run.

    Args:
        rounds: of the whole run.
        first: rounds of the first rung; `rounds` gives one rung, thus no early stopping.
        reduction: each rung has this many times the rounds of the rung before.

    Example:
        >>> list_rungs(30, 3, 3)
        [3, 9, 30]
    """
    rungs = [first]
    while rungs[-1] * reduction * reduction <= rounds:
        rungs.append(rungs[-1] * reduction)
    return [*rungs, rounds] if rungs[-1] < rounds else rungs


def choose_step(
    scores: Sequence[Mapping[int, float]], running: Collection[int], most: int, trials: int, reduction: int
) -> Step | None:
    """Return what trains next; None if nothing can, or only after a running trial has ended.

    Args:
        scores: of each trial by rung, the higher the better; -inf for a trial that failed there.
        running: the trials that train now.
        most: the last rung.
        trials: how many trials there may be.
        reduction: of the trials at a rung, one in this many is promoted.
    """
    for rung in reversed(range(most)):
        ranked = _rank(scores, rung)
        for trial in ranked[: len(ranked) // reduction]:
            if trial not in running and rung + 1 not in scores[trial]:
                return Step(trial, rung + 1)
    for trial, reached in enumerate(scores):
        if not reached and trial not in running:
            return Step(trial, 0)  # it was interrupted before its first rung
    if len(scores) < trials:
        return Step(len(scores), 0)
    if running or _rank(scores, most):
        return None
    # So few trials that none is promoted, or those that were failed: the best one left trains to the end.
    for rung in reversed(range(most)):
        if left := [trial for trial in _rank(scores, rung) if rung + 1 not in scores[trial]]:
            return Step(left[0], rung + 1)
    return None


def _rank(scores: Sequence[Mapping[int, float]], rung: int) -> list[int]:
    """List the trials with a score at this rung, best first; of equals the first trial."""
    there = [trial for trial, reached in enumerate(scores) if reached.get(rung, WORST) > WORST]
    return sorted(there, key=lambda trial: -scores[trial][rung])
