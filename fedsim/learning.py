"""What the server trains itself after a round, and how far it is."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from .causes import server_side
from .core import Algorithm, Context, Progress, Reduced
from .worker import one_thread

TELL_SECONDS = 1.0
"""How often to say how far something is that takes long."""


@dataclass(frozen=True)
class Learning:
    """How far something is that the server trains itself after a round."""

    round: int
    progress: Progress


def learnt(
    algorithm: Algorithm, ctx: Context, state: Any, reduced: Reduced
) -> Generator[Learning, None, Any]:
    """The state with what the server trains itself; see `Algorithm.learn`."""
    if not algorithm.has("learn"):
        return state
    learning, told = algorithm.learn(ctx, state, reduced), perf_counter()
    while True:
        with one_thread(), server_side(algorithm, "learn"):
            try:
                progress = next(learning)
            except StopIteration as end:
                return end.value
        if perf_counter() - told > TELL_SECONDS:
            told = perf_counter()
            yield Learning(ctx.round + 1, progress)
