"""Run the local loops of many clients as one: stacked parameters, and one call of the loss under `vmap`.

The clients are independent. The gradient of the sum of their losses, by the stacked parameters, is therefore
the gradient of each client's loss by its own parameters. The clients with the most steps come first, so the
active clients are always the first ones, and a client leaves the stack after its last step. No step is wasted
and no momentum moves a finished client. A batch smaller than the largest of the same step is padded with its
own first example, and its mask marks the padding. A loss that ignores the mask is not stacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedsim.base import tree
from fedsim.base.precision import lower_precision
from fedsim.base.tree import Tree
from fedsim.core import Batch, Batches, Context
from fedsim.core.optimizers import SGD
from fedsim.models.net import Params
from fedsim.stacking.graph_replay import LEAST_STEPS, RecordedStep, Recorder
from fedsim.stacking.mask_check import (
    MASK_IGNORED,
    find_largest_client,
    has_mask,
    respects_mask,
    select_client,
)
from fedsim.stacking.stacked_batches import make_joint_batch
from fedsim.stacking.stacked_trees import make_loss_view, stack_loss_inputs, stack_trees
from fedsim.training.gradients import add_correction, compute_gradients
from fedsim.training.local_loop import LocalLoop, TrainedModel
from fedsim.training.optimizers import make_update
from fedsim.training.private_steps import PrivateBatches, count_at_once, sum_clipped_gradients
from fedsim.training.trained_keys import list_frozen_blocks, list_moving_keys


def group_loops(loops: Sequence[LocalLoop]) -> list[list[int]]:
    """Group local loops that can run as one stack; each group lists positions, the most steps first."""
    groups: list[tuple[_Kind, list[int]]] = []
    for number, loop in enumerate(loops):
        kind = _kind(loop)
        for other, positions in groups:
            if other == kind:
                positions.append(number)
                break
        else:
            groups.append((kind, [number]))
    return [sorted(positions, key=lambda n: -len(loops[n].task.batches)) for _, positions in groups]


class _Kind(NamedTuple):
    """Properties that local loops must share to run as one stack."""

    works: bool
    clip: float | None
    loss: Any
    ctx: Context
    moving: tuple[str, ...]
    shapes: Any


def _kind(loop: LocalLoop) -> _Kind:
    """Return the properties of a local loop that decide which stack it fits."""
    task = loop.task
    own = (
        loop.start,
        task.broadcast,
        task.instruction,
        task.client_state,
        task.round_noise,
        loop.correction,
    )
    moving = tuple(list_moving_keys(loop.ctx, loop.start, loop.trainable))
    clip = task.batches.clip if isinstance(task.batches, PrivateBatches) else None
    return _Kind(len(task.batches) > 0, clip, loop.loss, loop.ctx, moving, _shapes(own))


def _shapes(value: Any) -> Any:
    """Return the paths, shapes and number types of a tree; equal for trees that can be stacked."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, Mapping):
        return {key: _shapes(each) for key, each in value.items()}
    return [_shapes(each) for each in value] if isinstance(value, list | tuple) else type(value)


def run_stacked_loop(loops: Sequence[LocalLoop], recorder: Recorder | None = None) -> list[TrainedModel]:
    """Run the local loops of one group as one; results equal `LocalLoop.run_alone` up to rounding.

    Args:
        loops: a group of `group_loops`; every loop has steps, the first one the most.
        recorder: records steps for replay; None to run every step normally.

    Returns:
        The trained models, in the order of the loops.

    Raises:
        ValueError: if a batch needs padding and the loss does not leave out masked rows.
    """
    stacked = _StackedLoop(loops, recorder)
    with stacked.ctx.net.training_mode(list_frozen_blocks(stacked.ctx, stacked.moving)):
        for step in range(stacked.steps[0]):
            stacked.run_step(step)
    return stacked.list_outcomes()


@dataclass
class _StackedLoop:
    """State of a stacked loop while it runs. "Active" clients still have steps to make.

    Attributes:
        loops: the local loops of the stack.
        recorder: records steps for replay; None to run every step normally.
        active: number of active clients.
        weights: stacked parameters that train, of the active clients.
        own: other inputs of the loss, of the active clients: fixed parameters, and the client tasks.
        shifts: corrections added to the gradients of the active clients; empty without corrections.
        begun: first step with this number of active clients.
        tape: a recorded step for this number of active clients; None if there is none.
        mask_checked: whether the loss is known to leave out masked rows.
    """

    loops: Sequence[LocalLoop]
    recorder: Recorder | None = None
    active: int = field(init=False, default=0)
    weights: list[Tensor] = field(init=False, default_factory=list)
    own: tuple[Tree, Tree] = field(init=False, default=({}, {}))
    shifts: list[Tensor] = field(init=False, default_factory=list)
    begun: int = field(init=False, default=0)
    tape: RecordedStep | None = field(init=False, default=None)
    mask_checked: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        first = self.loops[0]
        self.ctx, self.loss = first.ctx, first.loss
        self.moving = list_moving_keys(first.ctx, first.start, first.trainable)
        self.steps = [len(loop.task.batches) for loop in self.loops]
        starts = [loop.start for loop in self.loops]
        with torch.no_grad():
            self.stacks = [torch.stack([start[key] for start in starts]) for key in self.moving]
        self.fixed = stack_trees([tree.drop(start, self.moving) for start in starts])
        self.shown = stack_loss_inputs([loop.task for loop in self.loops])
        corrections = [d.correction for d in self.loops if d.correction is not None]
        self.shift = (
            stack_trees([tree.select(each, self.moving) for each in corrections]) if corrections else None
        )
        self.update = make_update(self.ctx.local)
        self.total = torch.zeros(len(starts), device=first.task.device)
        drawn = [loop.task.batches for loop in self.loops]
        self.private = [each for each in drawn if isinstance(each, PrivateBatches)]
        self.batches: list[Batches] = [each.batches for each in self.private] or drawn
        self.expected_sizes = self.total.new_tensor([each.expected_size for each in self.private])
        self.generators = [each.make_generator(self.total.device) for each in self.private]

    def run_step(self, step: int) -> None:
        """Run one step for all clients that have at least `step + 1` steps."""
        active = sum(steps > step for steps in self.steps)
        if active != self.active:
            self._keep_active(active)
            self.begun, self.tape = step, None
        batch, dims = make_joint_batch(self.batches[:active], step)
        # Private steps leave padding out themselves.
        if not self.mask_checked and not self.private and has_mask(batch):
            self._check_mask(batch, dims)
        if self.recorder is not None and self.tape is None and self._is_worth_recording(step):
            self.tape = RecordedStep(self.recorder, self._update_weights, batch, dims)
        if self.tape is not None and self.tape.fits_batch(batch):
            self.tape.replay_on(batch)
        else:
            self._update_weights(batch, dims)

    def _check_mask(self, batch: Batch, dims: Any) -> None:
        """Raise ValueError if the loss ignores masks; checked on one client's part of this batch."""
        number = find_largest_client(batch)
        fixed, shown = self.fixed.client_tree(number), self.shown.client_tree(number)
        respects = respects_mask(
            lambda moving, part: self._one(moving, fixed, shown, part),
            {key: stack[number] for key, stack in zip(self.moving, self.weights, strict=True)},
            select_client(batch, dims, number),
            self.ctx.local.precision,
        )
        if respects is False:
            raise ValueError(MASK_IGNORED)
        self.mask_checked = respects is True

    def _is_worth_recording(self, step: int) -> bool:
        """Return whether enough later steps equal an earlier one, including momentum and learning rate."""
        local = self.ctx.local
        # The other optimizers count their steps outside the recording.
        alike = local.has_constant_rate and isinstance(local.optimizer, SGD)
        # A recording would repeat its noise.
        return (
            alike
            and not self.private
            and step > self.begun
            and self.steps[self.active - 1] - step >= LEAST_STEPS
        )

    def _update_weights(self, batch: Batch, dims: Any) -> None:
        """Run forward pass, backward pass and update of the active clients."""
        active, shifts = self.active, self.shifts or None
        # The order is that of its twin `run_sgd` in `fedsim.training.local_loop`.
        gradients: Sequence[Tensor | None]
        if self.private:
            values, sums = self._clipped_sums(batch, dims)
            gradients = add_correction(self._add_noise(sums), shifts)
        else:
            with lower_precision(self.ctx.local.precision, self.total.device):
                values = self._values(batch, dims)
            clip_norm = self.ctx.local.clip_norm
            gradients = compute_gradients(values.sum(), self.weights, shifts, clip_norm, stacked=True)
        with torch.no_grad():
            self.update(self.weights, gradients)
            self.total[:active] += values.detach()

    def _keep_active(self, active: int) -> None:
        """Drop the clients that have made their last step; keep the first `active` clients."""
        self.active = active
        # The weights are views of `stacks`: a step writes through to it, and `list_outcomes` reads it there.
        self.weights = [stack[:active].detach().requires_grad_() for stack in self.stacks]
        self.own = self.fixed.first_clients(active), self.shown.first_clients(active)
        shift = {} if self.shift is None else self.shift.first_clients(active)
        self.shifts = [shift[key] for key in self.moving] if shift else []
        self.update.keep_first(active)

    def _values(self, batch: Batch, dims: Any) -> Tensor:
        """Return the loss of each active client, `[active]`."""
        moving = dict(zip(self.moving, self.weights, strict=True))
        every = vmap(self._one, in_dims=(0, self.fixed.dims, self.shown.dims, dims))
        values: Tensor = every(moving, *self.own, batch)
        return values

    def _clipped_sums(self, batch: Batch, dims: Any) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the loss of each active client, `[active]`, and its sums of clipped gradients."""
        moving = {key: each.detach() for key, each in zip(self.moving, self.weights, strict=True)}
        clip, at_once = self.private[0].clip, count_at_once(self.weights)

        def sum_one(own: Params, fixed: Params, shown: Tree, part: Batch) -> tuple[Tensor, list[Tensor]]:
            def loss(weights: Params, example: Batch) -> Tensor:
                with lower_precision(self.ctx.local.precision, self.total.device):
                    return self._one(weights, fixed, shown, example)

            return sum_clipped_gradients(loss, own, part, clip, at_once=at_once)

        every = vmap(sum_one, in_dims=(0, self.fixed.dims, self.shown.dims, dims))
        totals, sums = every(moving, *self.own, batch)
        return totals / self.expected_sizes[: self.active].to(totals.dtype), sums

    def _add_noise(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """Return the noisy means of the active clients; each draws the noise that it draws alone."""
        active = zip(self.private, self.generators, range(self.active), strict=False)
        means = [each.add_noise([s[number] for s in sums], drawn) for each, drawn, number in active]
        return [torch.stack(parts) for parts in zip(*means, strict=True)]

    def _one(self, moving: Params, fixed: Params, shown: Tree, batch: Batch) -> Tensor:
        """Return the loss of one client; `vmap` calls this for all active clients at once."""
        first = self.loops[0]
        params = {key: moving[key] if key in moving else fixed[key] for key in first.start}
        return self.loss(self.ctx, make_loss_view(first.task, shown), params, batch)

    @torch.no_grad()
    def list_outcomes(self) -> list[TrainedModel]:
        """List the trained models, as copies: keeping one does not keep the whole stack in memory."""
        copies: list[Any] = [torch.unbind_copy(stack) for stack in self.stacks]  # type: ignore[func-returns-value]
        steps = tree.send_to_device(torch.tensor(self.steps, dtype=torch.float32), self.total.device)
        losses, found = (self.total / steps).unbind(), []
        for number, loop in enumerate(self.loops):
            own = {
                key: tree.to_channels_last(copy[number])
                for key, copy in zip(self.moving, copies, strict=True)
            }
            params = {key: own.get(key, value) for key, value in loop.start.items()}
            found.append(TrainedModel(params, losses[number], self.steps[number]))
        return found
