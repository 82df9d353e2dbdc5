"""Run an algorithm's server training after a round, and report its progress."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fedsim.base import tree
from fedsim.base.error_attribution import attribute_server_errors
from fedsim.base.precision import use_precision
from fedsim.base.progress import relay_progress
from fedsim.base.tree import Tree
from fedsim.core import Algorithm, Context, Progress, ReducedUpdates
from fedsim.core.capabilities import ServerTraining, capability
from fedsim.engine.worker import one_thread

_LOG = logging.getLogger(__name__)

UNCOUNTED: AbstractContextManager[None] = nullcontext()

TELL_SECONDS = 1.0
"""Seconds between two progress reports."""


@dataclass(frozen=True)
class ServerTrainingProgress:
    """Progress of the server training after a round (`round` is counted from 1)."""

    round: int
    progress: Progress


def train_server(
    algorithm: Algorithm,
    ctx: Context,
    state: Any,
    reduced: ReducedUpdates,
    device: torch.device,
    counter: AbstractContextManager[None] = UNCOUNTED,
) -> Generator[ServerTrainingProgress, None, Any]:
    """Run the server training on this device, yield its progress, return the new server state.

    An algorithm without `ServerTraining` gets its state back unchanged. `counter` counts its operations.
    """
    training = capability(algorithm, ServerTraining)
    if training is None:
        return state
    learning = _iterate_server_training(algorithm, training, ctx, state, reduced, device, counter)
    after = yield from relay_progress(learning, partial(ServerTrainingProgress, ctx.round + 1), TELL_SECONDS)
    if not ctx.round and not training.trains_before_evaluation:
        _warn_if_deployed_changed(algorithm, ctx, state, after)
    return after


def _warn_if_deployed_changed(algorithm: Algorithm, ctx: Context, before: Any, after: Any) -> None:
    """Log a warning if the server training of round 1 changed the models that were scored before it."""
    if not algorithm.deploys_models:
        return
    with attribute_server_errors(algorithm, "deploy_models"):
        pairs = [
            (algorithm.deploy_models(each, before), algorithm.deploy_models(each, after))
            for each in ctx.architectures.values()
        ]
        changed = [name for old, new in pairs for name in old if not _are_equal(old[name], new.get(name, {}))]
    if changed:
        _LOG.warning(
            "%s: train_server changes the model %r after it was scored: the scores are not those of "
            "the saved model; set trains_before_evaluation = True",
            type(algorithm).__name__,
            changed[0],
        )


def _are_equal(one: Tree, other: Tree) -> bool:
    pairs = zip(tree.leaves(one), tree.leaves(other), strict=True)
    return tree.layout(one) == tree.layout(other) and all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def _iterate_server_training(
    algorithm: Algorithm,
    training: ServerTraining,
    ctx: Context,
    state: Any,
    reduced: ReducedUpdates,
    device: torch.device,
    counter: AbstractContextManager[None],
) -> Generator[Progress, None, Any]:
    """Run `train_server` and yield every progress report of the algorithm; return the new server state."""
    learning = training.train_server(replace(ctx, device=device), state, reduced)
    while True:
        with (
            one_thread(),
            use_precision("float32", device),
            attribute_server_errors(algorithm, "train_server"),
            counter,
        ):
            try:
                progress = next(learning)
            except StopIteration as end:
                return end.value
        yield progress
