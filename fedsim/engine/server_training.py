"""What the server trains itself after a round, and how far it is."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from fedsim.base.precision import tensor_cores
from fedsim.core import Algorithm, Context, Progress, Reduced
from fedsim.core.error_attribution import server_side
from fedsim.engine.worker import one_thread

TELL_SECONDS = 1.0
"""How often to say how far something is that takes long."""


@dataclass(frozen=True)
class Learning:
    """How far something is that the server trains itself after a round."""

    round: int
    progress: Progress


def learnt(
    algorithm: Algorithm, ctx: Context, state: Any, reduced: Reduced, device: torch.device
) -> Generator[Learning, None, Any]:
    """The state with what the server trains itself on this device; see `Algorithm.learn`."""
    if not algorithm.has("learn"):
        return state
    learning, told = _learning(algorithm, ctx, state, reduced, device), perf_counter()
    while True:
        try:
            progress = next(learning)
        except StopIteration as end:
            return end.value
        if perf_counter() - told > TELL_SECONDS:
            told = perf_counter()
            yield Learning(ctx.round + 1, progress)


def _learning(
    algorithm: Algorithm, ctx: Context, state: Any, reduced: Reduced, device: torch.device
) -> Generator[Progress, None, Any]:
    """As `learnt`, whenever the method says how far it is."""
    learning = algorithm.learn(replace(ctx, device=device), state, reduced)
    while True:
        with one_thread(), tensor_cores("float32", device), server_side(algorithm, "learn"):
            try:
                progress = next(learning)
            except StopIteration as end:
                return end.value
        yield progress
