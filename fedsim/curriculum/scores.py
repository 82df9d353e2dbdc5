"""Scores: how easy each of a client's examples is, by the models that it has at hand.

"When Do Curricula Work in Federated Learning?" (ICCV 2023), section 3.1, scores an example by
s_i = r_i / sum(r) with r_i = 1 / loss_i. Only the order matters, and minus the loss has the same.

| name | the paper's | an example is easy when |
| --- | --- | --- |
| `global_loss` | s_G | the model that came down has a small loss on it |
| `local_loss` | s_L | the client's own model, as its last round left it, has |
| `both_loss` | s_LG | the mean of the two losses is small |
| `global_prediction` | s_G^pred | the model that came down is right |
| `local_prediction` | s_L^pred | the client's own model is right |
| `both_prediction` | s_LG^pred | the two models say the same |
| `expert_loss` | s_E | an expert, trained centrally on everybody's data, has a small loss on it |

Before its first round a client's own model is the one that came down. Where an example has several
yes-or-no labels, its loss is the mean over those that are known, and a model is right when it is right on
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import tree
from fedsim.core import Context
from fedsim.core.client_task import ClientExamples
from fedsim.models.net import Params
from fedsim.training.local_loop import example_losses

ScoreName: TypeAlias = Literal[
    "global_loss",
    "local_loss",
    "both_loss",
    "global_prediction",
    "local_prediction",
    "both_prediction",
    "expert_loss",
]
Order: TypeAlias = Literal["curriculum", "anti", "random"]
Easiness: TypeAlias = NDArray[np.float32]


class Judgement(NamedTuple):
    """What one model says of a client's examples.

    Attributes:
        losses: float32 `[n]`.
        right: bool `[n]`.
        said: the class, int64 `[n]`, or each label's yes or no, bool `[n, labels]` (no where not known).
    """

    losses: Easiness
    right: NDArray[np.bool_]
    said: NDArray[np.int64] | NDArray[np.bool_]


class ScoreRule(NamedTuple):
    """A score: which models judge, and what comes of their judgements.

    Attributes:
        judges: "global" and "local", in the order of the arguments of `easiness`.
        easiness: higher is easier.
    """

    judges: tuple[str, ...]
    easiness: Callable[..., Easiness]


RULES: Mapping[ScoreName, ScoreRule] = {
    "global_loss": ScoreRule(("global",), lambda g: -g.losses),
    "local_loss": ScoreRule(("local",), lambda own: -own.losses),
    "both_loss": ScoreRule(("global", "local"), lambda g, own: -(g.losses + own.losses) / 2),
    "global_prediction": ScoreRule(("global",), lambda g: g.right.astype(np.float32)),
    "local_prediction": ScoreRule(("local",), lambda own: own.right.astype(np.float32)),
    "both_prediction": ScoreRule(("global", "local"), lambda g, own: _agreement(g.said, own.said)),
    "expert_loss": ScoreRule((), lambda: np.zeros(0, np.float32)),  # no model of the client's judges
}


def _agreement(a: NDArray[np.generic], b: NDArray[np.generic]) -> Easiness:
    same = a == b
    return np.asarray(same if same.ndim == 1 else same.all(axis=1), np.float32)


@torch.inference_mode()
def judge_examples(ctx: Context, model: Params, held: ClientExamples) -> Judgement:
    """Have a model judge all of a client's examples, in evaluation mode.

    Args:
        ctx: the round, for this client.
        model: all keys of the net.
        held: the examples, at least one.
    """
    parts = [_judge_batch(logits, y) for logits, y in _answers(ctx, model, held)]
    losses, right, said = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    return Judgement(losses, right, said)


@torch.inference_mode()
def measure_losses(ctx: Context, model: Params, held: ClientExamples) -> Tensor:
    """A model's loss on each of a client's examples, `[n]`, in evaluation mode; see `judge`."""
    found = [example_losses(logits, y) for logits, y in _answers(ctx, model, held)]
    return torch.cat(found) if found else torch.zeros(0)


def _answers(ctx: Context, model: Params, held: ClientExamples) -> list[tuple[Tensor, Tensor]]:
    """A model's logits for all of a client's examples, in evaluation mode, with their labels."""
    laid_out = tree.map(tree.to_channels_last, model)
    with ctx.net.evaluation_mode():
        return [(ctx.net(laid_out, batch.x), batch.y) for batch in held.batches()]


def _judge_batch(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    losses = example_losses(logits, y)
    if y.dim() == 1:
        said = logits.argmax(-1)
        return losses, said == y, said
    known = ~torch.isnan(y)
    said = (logits > 0) & known
    return losses, (said == (y > 0.5)).all(-1), said


def rank_by_easiness(easiness: Easiness, order: Order, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions in the order in which they open: the easiest first, the hardest first, or at random.

    Args:
        easiness: `[n]`; NaN comes last.
        order: `curriculum`, `anti` or `random`.
        rng: decides among equals.
    """
    chance = rng.permutation(len(easiness))
    if order == "random":
        return chance
    # Sorting what is in a random order already, and keeping equals in it, is faster than two keys by far.
    shuffled = np.empty_like(chance)
    shuffled[chance] = np.arange(len(chance))
    key = easiness[shuffled]
    return shuffled[np.argsort(-key if order == "curriculum" else key, kind="stable")]
