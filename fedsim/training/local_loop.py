"""The local loop: steps on the batches of one client, which every algorithm shares."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import Tensor

from fedsim.base import tree
from fedsim.base.precision import lower_precision
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, Context
from fedsim.models.net import Params
from fedsim.training.gradients import add_correction, compute_gradients
from fedsim.training.losses import supervised_loss
from fedsim.training.optimizers import make_update
from fedsim.training.private_steps import PrivateBatches, count_at_once, sum_clipped_gradients
from fedsim.training.trained_keys import iterate_followed_buffers, list_frozen_blocks, list_moving_keys


class TrainedModel(NamedTuple):
    """The result of a local loop.

    Attributes:
        params: after the last step; keys that do not train are the very tensors of the start.
        loss: mean loss of the steps, a scalar; 0 without steps.
        steps: number of steps.
    """

    params: Params
    loss: Tensor
    steps: int


class LocalLoop(NamedTuple):
    """A local loop to run for one client.

    Attributes:
        ctx: the round, for this client.
        task: the client's task, with the batches of the steps.
        start: parameters and buffers to start from.
        loss: scalar loss of (ctx, task, params, batch).
        trainable: keys that train; by default every parameter of the net.
        correction: added to the gradients; see `run_sgd`.
    """

    ctx: Context
    task: ClientTask
    start: Params
    loss: Callable[[Context, ClientTask, Params, Batch], Tensor]
    trainable: Collection[str] | None = None
    correction: Tree | None = None

    def run_alone(self) -> TrainedModel:
        """Run the loop of this client alone."""
        ctx, task, loss = self.ctx, self.task, self.loss
        return run_sgd(
            ctx,
            task,
            self.start,
            lambda params, batch: loss(ctx, task, params, batch),
            trainable=self.trainable,
            correction=self.correction,
        )


def run_local_loop(loop: LocalLoop) -> TrainedModel:
    """Run a local loop, alone or stacked with the loops of other clients.

    Stacked loops are one loop over stacked parameters, in which `torch.func.vmap` calls the loss once for all
    clients. The loss must therefore be the same function for all, such as a method of the algorithm. It reads
    the client's values from the task it is handed (not `batches` nor `examples`), never asks a tensor for its
    value, and leaves out the rows that `batch.mask` marks as padding, as `supervised_loss` and `masked_mean`
    do. A loss that ignores the mask runs one client at a time, and the record says why.
    """
    if isinstance(loop.task.batches, PrivateBatches):
        loop.task.batches.begin()
    lockstep = loop.task.lockstep
    if lockstep is None:
        return loop.run_alone()
    trained: TrainedModel = lockstep.run_loop(loop)
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
    """Train on every batch of the task, in order, by the optimizer of `ctx.local`.

    The steps change working copies in place, never `start`. A key that does not train needs no gradient:
    back-propagation stops at the first block, from the input on, that trains. Float buffers (batch
    statistics) follow the forward passes, except in blocks that do not train at all. With `PrivateBatches`,
    the steps are private: their gradients are clipped example by example, and noisy.

    Args:
        ctx: the round, for this client.
        task: the client's task.
        start: parameters and buffers to start from.
        loss: scalar loss of (params, batch).
        trainable: keys that train, by default every parameter of the net; `start` may have more keys, which
            only the loss knows.
        correction: added to the gradients before weight decay and momentum, over the trainable keys.
    """
    moving = list_moving_keys(ctx, start, trainable)
    frozen = list_frozen_blocks(ctx, moving)
    params = dict(start)
    for key in (*moving, *iterate_followed_buffers(ctx, start, frozen)):
        params[key] = tree.to_channels_last(start[key].detach()).clone()
    weights = [params[key].requires_grad_() for key in moving]
    shift = None if correction is None else [tree.to_channels_last(correction[key]) for key in moving]
    total, steps, update = torch.zeros(()), 0, make_update(ctx.local)
    private = task.batches if isinstance(task.batches, PrivateBatches) else None
    generator = None if private is None else private.make_generator(task.device)
    with ctx.net.training_mode(frozen):
        for batch in task.batches if private is None else private.batches:
            # The order is that of its twin `_StackedLoop._update_weights` in `fedsim.stacking.stacked`.
            if private is None or generator is None:
                with lower_precision(ctx.local.precision, task.device):
                    value = loss(params, batch)
                gradients = compute_gradients(value, weights, shift, ctx.local.clip_norm)
            else:
                moved = {key: params[key].detach() for key in moving}
                value, sums = _sum_clipped(ctx, loss, params, moved, batch, private.clip)
                value = value / private.expected_size
                gradients = add_correction(private.add_noise(sums, generator), shift)
            with torch.no_grad():
                update(weights, gradients)
                total = total + value.detach()
            steps += 1
    for weight in weights:
        weight.requires_grad_(False)
    return TrainedModel(params, total / max(steps, 1), steps)


def _sum_clipped(
    ctx: Context,
    loss: Callable[[Params, Batch], Tensor],
    params: Params,
    moved: Params,
    batch: Batch,
    clip: float,
) -> tuple[Tensor, list[Tensor]]:
    """Return the sum of the losses of a batch, and the sums of its clipped gradients by the moved weights."""

    def loss_of_weights(weights: Params, example: Batch) -> Tensor:
        with lower_precision(ctx.local.precision, example.y.device):
            return loss({**params, **weights}, example)

    at_once = count_at_once(list(moved.values()))
    return sum_clipped_gradients(
        loss_of_weights, moved, batch, clip, at_once=at_once, can_vmap=ctx.net.stackable
    )


def plain_loss(ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
    """Return the loss of the model on the batch, by the learning task."""
    return supervised_loss(ctx, ctx.net(params, batch.x), batch)
