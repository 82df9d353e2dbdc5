"""The local loop that every algorithm shares, and the losses that many do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.base import tree
from fedsim.base.precision import lower_precision
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, Context
from fedsim.models.net import Params


class TrainedModel(NamedTuple):
    """The outcome of a local loop.

    Attributes:
        params: after the last step; the keys that did not move are the very tensors that came in.
        loss: mean of the loss over the steps, a scalar; 0 where there were none.
        steps: how many steps were made.
    """

    params: Params
    loss: Tensor
    steps: int


class LocalLoop(NamedTuple):
    """A local loop that a client asks for.

    Attributes:
        ctx: the round, for this client.
        task: whose batches to train on.
        start: parameters and buffers to start from.
        loss: scalar loss of (ctx, visit, params, batch).
        trainable: keys that move, by default every parameter of the net.
        correction: added to the gradients; see `sgd`.
    """

    ctx: Context
    task: ClientTask
    start: Params
    loss: Callable[[Context, ClientTask, Params, Batch], Tensor]
    trainable: Collection[str] | None = None
    correction: Tree | None = None

    def run_alone(self) -> TrainedModel:
        """The outcome for this client by itself."""
        ctx, task, loss = self.ctx, self.task, self.loss
        return run_sgd(
            ctx,
            task,
            self.start,
            lambda params, batch: loss(ctx, task, params, batch),
            trainable=self.trainable,
            correction=self.correction,
        )


def run_local_loop(descent: LocalLoop) -> TrainedModel:
    """A local loop: by itself, or together with those of the clients that train at once.

    Together they are one loop over stacked parameters, in which `torch.func.vmap` calls the loss once for
    all of them. So the loss must be the same function for all, such as a method of the algorithm; it has to
    take whatever is the client's own from the visit that it is handed (numbers, what came down, what is
    kept; neither `batches` nor `held`), without asking tensors for their values. And it has to leave out the
    rows of a batch that `batch.mask` says are no examples, as `cross_entropy` and `masked_mean` do: a batch
    that is smaller than the others' of its step is filled up. One by one the mask is always None. A loss
    that does not heed it is made one by one, and the record says why.
    """
    company = descent.task.lockstep
    if company is None:
        return descent.run_alone()
    trained: TrainedModel = company.run_loop(descent)
    return trained


def run_sgd(
    ctx: Context,
    task: ClientTask,
    start: Params,
    loss: Callable[[Params, Batch], Tensor],
    *,
    trainable: Collection[str] | None = None,
    correction: Tree | None = None,
) -> TrainedModel:
    """Train on every batch of the visit, in order, by SGD as `ctx.local` says.

    The working copies are updated in place; `start` is never changed. A key outside `trainable` needs no
    gradient and so costs none: back-propagation stops at the first block, from the input on, that moves.
    Float buffers (batch statistics) follow the forward passes, except in blocks whose parameters all stay as
    they are: those are in evaluation mode, and do not change in any way.

    Args:
        ctx: the round, for this client.
        task: whose batches to train on.
        start: parameters and buffers to start from.
        loss: scalar loss of (params, batch).
        trainable: keys that move, by default every parameter of the net; `start` may have others, which the
            loss knows of.
        correction: added to the gradients before weight decay and momentum, over (at least) the trainable
            keys.
    """
    moving = list_moving_keys(ctx, start, trainable)
    frozen = list_frozen_blocks(ctx, moving)
    params = dict(start)
    for key in (*moving, *_followed_buffers(ctx, start, frozen)):
        params[key] = tree.to_channels_last(start[key].detach()).clone()
    weights = [params[key].requires_grad_() for key in moving]
    shift = None if correction is None else [tree.to_channels_last(correction[key]) for key in moving]
    total, steps, update = torch.zeros(()), 0, SgdUpdate(ctx)
    with ctx.net.training_mode(frozen):
        for batch in task.batches:
            with lower_precision(ctx.local.precision, task.device):
                value = loss(params, batch)
            gradients = list(torch.autograd.grad(value, weights)) if weights else []
            with torch.no_grad():
                if shift is not None:
                    gradients = list(torch._foreach_add(gradients, shift))
                update(weights, gradients)
                total = total + value.detach()
            steps += 1
    for weight in weights:
        weight.requires_grad_(False)
    return TrainedModel(params, total / max(steps, 1), steps)


def fine_tune(ctx: Context, task: ClientTask, start: Params) -> Params:
    """A model after plain training of all its layers on this visit: for `Algorithm.personalise`.

    Args:
        ctx: the round, with `tuning` as its local training.
        task: without batches, the model comes back as it was.
        start: all keys of the net.
    """
    return run_local_loop(LocalLoop(ctx, task, start, plain_loss)).params


def mark_correct(logits: Tensor, y: Tensor) -> Tensor:
    """Which answers are right; what is no number is wrong.

    Args:
        logits: `[batch, classes]`.
        y: int64 `[batch]`, or float32 `[batch, labels]`, of which the known ones mean something.

    Returns:
        bool, of the labels' shape.
    """
    if y.dim() == 2:
        return ((logits > 0) == (y > 0.5)) & ~logits.isnan()
    return (logits.argmax(-1) == y) & ~logits.isnan().any(-1)


def plain_loss(ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
    """The cross-entropy of the model on the batch: what plain training descends, for `Descent.loss`."""
    return cross_entropy(ctx.net(params, batch.x), batch)


def list_moving_keys(ctx: Context, start: Params, trainable: Collection[str] | None) -> list[str]:
    """The keys that are to move: the net's own, then others, each in their order."""
    if trainable is None:
        return list(ctx.net.parameters)
    wanted = set(trainable)
    others = wanted.difference(ctx.net.keys)
    return [key for key in ctx.net.parameters if key in wanted] + [key for key in start if key in others]


def list_frozen_blocks(ctx: Context, moving: Collection[str]) -> list[str]:
    """The blocks that have parameters of which none moves."""
    fixed = set(ctx.net.parameters).difference(moving)
    return [
        block
        for block, keys in ctx.net.blocks.items()
        if not fixed.isdisjoint(keys) and set(moving).isdisjoint(keys)
    ]


def _followed_buffers(ctx: Context, start: Params, frozen: Collection[str]) -> Iterator[str]:
    """The buffers that follow the forward passes."""
    parameters = set(ctx.net.parameters)
    for block, keys in ctx.net.blocks.items():
        if block not in frozen:
            yield from (key for key in keys if key in start and key not in parameters)


class SgdUpdate:
    """SGD steps in place, as `ctx.local` says, with the velocity of this visit.

    Args:
        ctx: the round.
    """

    def __init__(self, ctx: Context) -> None:
        self.local, self.step = ctx.local, 0
        self.velocity: list[Tensor] | None = None

    def __call__(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Move the weights by one step."""
        local = self.local
        if not weights:
            return
        if local.weight_decay:
            gradients = list(torch._foreach_add(gradients, weights, alpha=local.weight_decay))
        if local.momentum:
            if self.velocity is None:
                self.velocity = [gradient.clone() for gradient in gradients]
            else:
                torch._foreach_mul_(self.velocity, local.momentum)
                torch._foreach_add_(self.velocity, gradients)
            gradients = self.velocity
        torch._foreach_add_(weights, gradients, alpha=-local.lr_at(self.step))
        self.step += 1

    def keep_first(self, clients: int) -> None:
        """Of stacked weights, go on with those of the first so many clients alone."""
        if self.velocity is not None:
            self.velocity = [velocity[:clients] for velocity in self.velocity]


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy over the batch's real examples.

    Where an example has several yes-or-no labels it is the binary cross-entropy, over the labels that are
    known.

    Args:
        logits: `[batch, classes]`.
        batch: its labels, int64 `[batch]` or float32 `[batch, labels]` (NaN: unknown), and its mask.
    """
    if batch.y.dim() == 2:
        return _binary_cross_entropy(logits, batch)
    if batch.mask is None:
        return F.cross_entropy(logits, batch.y)
    per_example = F.cross_entropy(logits, batch.y, reduction="none")
    return (per_example * batch.mask).sum() / batch.mask.sum().clamp(min=1)


def example_losses(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each example, `[batch]`; with several labels, its mean over those that are known.

    Args:
        logits: `[batch, classes]`.
        y: int64 `[batch]`, or float32 `[batch, labels]` (NaN: unknown).
    """
    if y.dim() == 1:
        return F.cross_entropy(logits, y, reduction="none")
    known = (~torch.isnan(y)).to(logits.dtype)
    each = F.binary_cross_entropy_with_logits(logits, y.nan_to_num(), reduction="none")
    return (each * known).sum(-1) / known.sum(-1).clamp(min=1)


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of `[batch]` values over the examples; padding (mask 0) does not count."""
    return values.mean() if mask is None else (values * mask).sum() / mask.sum().clamp(min=1)


def _binary_cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    known = (~torch.isnan(batch.y)).to(logits.dtype)
    if batch.mask is not None:
        known = known * batch.mask.unsqueeze(-1)
    each = F.binary_cross_entropy_with_logits(logits, batch.y.nan_to_num(), reduction="none")
    return (each * known).sum() / known.sum().clamp(min=1)
