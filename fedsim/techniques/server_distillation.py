"""Distillation on the server: train a model on the public set, and combine the clients' logits."""

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
from fedsim.core.measures import PROGRESS_STEPS, Progress
from fedsim.core.public_set import PublicBatches, PublicSet
from fedsim.models.net import Net, Params
from fedsim.training.losses import mark_correct
from fedsim.training.optimizers import Adam

ModelJudge = Callable[[Params], float]
"""A function that returns the score of a model; higher is better."""


def all_finite(*said: Tensor) -> Tensor:
    """Whether all numbers of these tensors are finite, as one boolean tensor that works inside a stack."""
    return torch.stack([each.isfinite().all() for each in said]).all()


def average_logits_by_class(logits: Sequence[Tensor], counts: Sequence[Tensor]) -> Tensor:
    """The mean of the clients' logits, class by class, weighted by the clients' examples of the class.

    Args:
        logits: `[n, classes]` of each client.
        counts: `[classes]` of each client; a class without examples is averaged with equal weights.
    """
    held = torch.stack(list(counts)).double()
    weights = torch.where(held.sum(0) > 0, held / held.sum(0).clamp(min=1), 1 / len(held))
    said = torch.stack(list(logits)).double()
    return (weights.unsqueeze(1) * said).sum(0).float()


def make_accuracy_judge(net: Net, public: PublicSet, rows: Tensor) -> ModelJudge | None:
    """Return a judge that measures the accuracy on these examples of the public set.

    With several labels per example, the accuracy is over the known labels. None if no label is known.
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
    """The settings of a server distillation, with Adam.

    Attributes:
        lr: initial learning rate.
        cosine: whether the learning rate falls to 0 by a cosine.
        clip: largest norm of a step's gradient; 0 for no limit.
        check_every: steps between two checks by the judge, if there is one; the last step is always checked.
        patience: steps without a better score after which the training ends.
    """

    lr: float
    cosine: bool = False
    clip: float = 0.0
    check_every: int = 100
    patience: int = 0

    def learning_rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.lr * (1 + cos(pi * step / steps)) / 2 if self.cosine else self.lr


class DistilledModel(NamedTuple):
    """The outcome of a server distillation.

    Attributes:
        params: the model, on the CPU; with a judge, the best model.
        steps: number of steps made.
        score: the judge's score; NaN without a judge.
        loss: loss of the last step.
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
        net: the model's structure.
        start: initial weights; they are not changed.
        batches: the batches of all steps, on the device of the training.
        loss: loss of (params, batch), a scalar.
        settings: learning rate, checks and limits.
        judge: scores a model on the same device; without a judge the last model counts.
        address: key of the stream for dropout: the experiment's seed, then whole numbers such as the round.

    Yields:
        The progress.

    Returns:
        The outcome.
    """
    device = batches.public.y.device
    params = {key: value.detach().to(device, copy=True) for key, value in start.items()}
    weights = [params[key].requires_grad_() for key in net.parameters]
    adam = Adam(weights, [[torch.zeros_like(weight) for weight in weights] for _ in range(2)], lr=settings.lr)
    best, looks = _BestModel(judge, params), settings.check_every if judge else 0
    for step, batch in enumerate(batches, start=1):
        with net.training_mode(), _seed_dropout(net, *address, step):
            value = loss(params, batch)
            # A loss may leave parameters out, such as those of an auxiliary head.
            gradients = list(torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True))
        adam.lr = settings.learning_rate(step - 1, len(batches))
        adam(_clip_gradients(gradients, settings.clip), step)
        best.steps, best.loss = step, value.detach()
        if looks and (step % looks == 0 or step == len(batches)):
            best.judge_model(params)
            if step - best.since >= settings.patience:
                break
        if step % PROGRESS_STEPS == 0:
            yield Progress("distillation", step, len(batches))
    return best.to_result(params)


def _seed_dropout(net: Net, seed: int, *numbers: int) -> AbstractContextManager[None]:
    """Fix the random numbers of a step's forward pass, whatever else this process draws between two steps."""
    return rng.torch_stream(seed, "distillation-dropout", *numbers) if net.stochastic else nullcontext()


class _BestModel:
    """The best model so far, including the initial one."""

    def __init__(self, judge: ModelJudge | None, params: Params) -> None:
        self.judge, self.steps, self.since, self.score = judge, 0, 0, float("nan")
        self.params: Params = {}
        self.loss = torch.full((), float("nan"))
        if judge is not None:
            self.score, self.params = judge(params), _to_cpu(params)

    def judge_model(self, params: Params) -> None:
        """Score the present model, and keep it if it is the best."""
        score = self.judge(params) if self.judge else self.score
        if score > self.score:
            self.score, self.since, self.params = score, self.steps, _to_cpu(params)

    def to_result(self, last: Params) -> DistilledModel:
        """The outcome, given the last model."""
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
    """Batches for `steps` steps over the public set (or over `rows` of it), in shuffled passes.

    See `PublicSet.shuffle_batches`.
    """
    each = max(1, -(-(len(public) if rows is None else len(rows)) // batch_size))
    whole = public.shuffle_batches(seed, round, epochs=-(-steps // each), batch_size=batch_size, rows=rows)
    return PublicBatches(public, whole.rows[:steps])
