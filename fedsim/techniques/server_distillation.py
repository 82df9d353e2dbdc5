"""Learning from soft predictions: the losses, and the training of a server's model on the public set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Generator as Steps
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import cos, pi
from typing import NamedTuple

import torch
from torch import Tensor

from fedsim.base import rng
from fedsim.core import Batch
from fedsim.core.exchange import Progress
from fedsim.core.public_set import PublicBatches, PublicSet
from fedsim.models.net import Net, Params
from fedsim.training.adam import Adam
from fedsim.training.local_loop import mark_correct

TELL_EVERY = 25
"""Steps between two words on how far it is."""

ModelJudge = Callable[[Params], float]
"""How good a model is; more is better."""


def all_finite(*said: Tensor) -> Tensor:
    """Whether all of these are numbers, as one boolean that a stacked client may compute with."""
    return torch.stack([each.isfinite().all() for each in said]).all()


def average_logits_by_class(logits: Sequence[Tensor], counts: Sequence[Tensor]) -> Tensor:
    """Every class's logit as the mean of the clients', weighted by how much of that class each holds.

    Args:
        logits: `[n, classes]` of each client.
        counts: `[classes]` of each client; a class that nobody holds is averaged evenly.
    """
    held = torch.stack(list(counts)).double()
    weights = torch.where(held.sum(0) > 0, held / held.sum(0).clamp(min=1), 1 / len(held))
    said = torch.stack(list(logits)).double()
    return (weights.unsqueeze(1) * said).sum(0).float()


def make_accuracy_judge(net: Net, public: PublicSet, rows: Tensor) -> ModelJudge | None:
    """The accuracy on these examples of the public set; with several labels, over those that are known.

    None where there are no such labels.
    """
    if not (~torch.isnan(public.y[rows])).any():
        return None

    def judge(params: Params) -> float:
        said, y = public.predict_examples(lambda x: net(params, x), rows), public.y[rows]
        if public.several_labels:
            known = ~torch.isnan(y)
            return float(mark_correct(said, y)[known].float().mean())
        return float(mark_correct(said, y).float().mean())

    return judge


@dataclass(frozen=True, kw_only=True)
class DistillationSettings:
    """One training on the server, by Adam.

    Attributes:
        lr: the rate in the beginning.
        cosine: whether it falls to 0 by a cosine.
        clip: the greatest norm of a step's gradient; 0 for any.
        check_every: steps between two looks of the judge, if there is one; it looks at the last one besides.
        patience: steps without gain after which it then ends.
    """

    lr: float
    cosine: bool = False
    clip: float = 0.0
    check_every: int = 100
    patience: int = 0

    def learning_rate(self, step: int, steps: int) -> float:
        """Of a step, counted from 0."""
        return self.lr * (1 + cos(pi * step / steps)) / 2 if self.cosine else self.lr


class DistilledModel(NamedTuple):
    """What came of it.

    Attributes:
        params: the model, on the CPU; the best one where it was judged.
        steps: how many were made.
        score: the judge's; NaN without one.
        loss: of the last step.
    """

    params: Params
    steps: int
    score: float
    loss: float


def distil_model(
    net: Net,
    start: Params,
    batches: PublicBatches,
    loss: Callable[[Params, Batch], Tensor],
    settings: DistillationSettings,
    judge: ModelJudge | None = None,
    *,
    address: tuple[int, ...],
) -> Steps[Progress, None, DistilledModel]:
    """Train a model on the public set.

    Args:
        net: which.
        start: where from; it is left as it is.
        batches: of each step, on the device where it shall be trained.
        loss: what a step descends.
        settings: how.
        judge: of a model, on the same device; without one the last model counts.
        address: where dropout draws from: the experiment's seed, then whole numbers such as the round.

    Yields:
        How far it is.

    Returns:
        The outcome.
    """
    device = batches.public.y.device
    params = {key: value.detach().to(device, copy=True) for key, value in start.items()}
    weights = [params[key].requires_grad_() for key in net.parameters]
    adam = Adam(weights, [[torch.zeros_like(weight) for weight in weights] for _ in range(2)], lr=settings.lr)
    best, looks = _Best(judge, params), settings.check_every if judge else 0
    for step, batch in enumerate(batches, start=1):
        with net.training_mode(), _seed_dropout(net, *address, step):
            value = loss(params, batch)
            gradients = list(torch.autograd.grad(value, weights))
        adam.lr = settings.learning_rate(step - 1, len(batches))
        adam(_clip_gradients(gradients, settings.clip), step)
        best.steps, best.loss = step, value.detach()
        if looks and (step % looks == 0 or step == len(batches)):
            best.judge_model(params)
            if step - best.since >= settings.patience:
                break
        if step % TELL_EVERY == 0:
            yield Progress("distillation", step, len(batches))
    return best.to_result(params)


def _seed_dropout(net: Net, seed: int, *numbers: int) -> AbstractContextManager[None]:
    """What a forward pass of this step draws, whatever else this process does between two steps."""
    return rng.torch_stream(seed, "distillation-dropout", *numbers) if net.stochastic else nullcontext()


class _Best:
    """The best model so far, the first one included."""

    def __init__(self, judge: ModelJudge | None, params: Params) -> None:
        self.judge, self.steps, self.since, self.score = judge, 0, 0, float("nan")
        self.params: Params = {}
        self.loss = torch.full((), float("nan"))
        if judge is not None:
            self.score, self.params = judge(params), _to_cpu(params)

    def judge_model(self, params: Params) -> None:
        """Judge the model as it is now."""
        score = self.judge(params) if self.judge else self.score
        if score > self.score:
            self.score, self.since, self.params = score, self.steps, _to_cpu(params)

    def to_result(self, last: Params) -> DistilledModel:
        """The outcome, when it ends with this model."""
        return DistilledModel(
            self.params if self.judge else _to_cpu(last), self.steps, self.score, float(self.loss)
        )


def _to_cpu(params: Params) -> dict[str, Tensor]:
    return {key: value.detach().to("cpu", copy=True) for key, value in params.items()}


def _clip_gradients(gradients: list[Tensor], most: float) -> list[Tensor]:
    if not most:
        return gradients
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    return list(torch._foreach_mul(gradients, (most / (norm + 1e-6)).clamp(max=1.0)))


def make_public_batches(
    public: PublicSet, seed: int, round: int, *, steps: int, batch_size: int, rows: Tensor | None = None
) -> PublicBatches:
    """So many steps over the public set (or these rows of it), in passes as of `PublicSet.shuffled`."""
    each = max(1, -(-(len(public) if rows is None else len(rows)) // batch_size))
    whole = public.shuffle_batches(seed, round, epochs=-(-steps // each), batch_size=batch_size, rows=rows)
    return PublicBatches(public, whole.rows[:steps])


__all__ = [
    "DistillationSettings",
    "DistilledModel",
    "ModelJudge",
    "all_finite",
    "average_logits_by_class",
    "distil_model",
    "make_accuracy_judge",
    "make_public_batches",
]
