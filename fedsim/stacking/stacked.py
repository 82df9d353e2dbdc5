"""The local loops of many clients as one: stacked parameters, and one call of the loss under `vmap`.

Clients do not touch each other, so the gradient of the sum of their losses, by the stacked parameters, is the
gradient of each by its own. The clients with the most steps come first: those that are still at work are
always the first so many, and who has made its last step leaves the stack. So no step is ever made in vain,
and no momentum has to be kept from moving. A batch that is smaller than another's of the same step is filled
up with its own first example, and its mask says so; a loss that does not heed it is not stacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.func import vmap

from fedsim.base import tree
from fedsim.base.precision import lower_precision
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, Context
from fedsim.models.net import Params
from fedsim.stacking.graph_replay import LEAST_STEPS, RecordedStep, Recorder
from fedsim.stacking.mask_check import (
    MASK_IGNORED,
    MaskChecks,
    find_largest_client,
    has_mask,
    respects_mask,
    select_client,
)
from fedsim.stacking.stacked_batches import make_joint_batch
from fedsim.training.local_loop import LocalLoop, TrainedModel, list_frozen_blocks, list_moving_keys
from fedsim.training.optimizers import SgdUpdate


class StackedTrees(NamedTuple):
    """The trees of many clients as one.

    Attributes:
        leaves: the tree; each leaf has the clients as its first dimension, unless all have the very same one.
        dims: a tree of 0 for the leaves of the former kind, None for the latter.
    """

    leaves: Tree
    dims: Tree

    def first_clients(self, clients: int) -> Tree:
        """That of the first so many clients."""
        return tree.map(lambda leaf, dim: leaf if dim is None else leaf[:clients], self.leaves, self.dims)

    def client_tree(self, number: int) -> Tree:
        """That of one client."""
        return tree.map(lambda leaf, dim: leaf if dim is None else leaf[number], self.leaves, self.dims)


def stack_trees(trees: Sequence[Tree]) -> StackedTrees:
    """The trees of many clients, all of one shape, as one."""
    dims = tree.map(lambda *leaves: None if _are_same(leaves) else 0, *trees)
    return StackedTrees(
        tree.map(lambda *leaves: leaves[0] if _are_same(leaves) else torch.stack(leaves), *trees), dims
    )


def _are_same(leaves: Sequence[Any]) -> bool:
    return all(leaf is leaves[0] for leaf in leaves)


def group_loops(descents: Sequence[LocalLoop]) -> list[list[int]]:
    """Which of these local loops can be one: the numbers of each group, the most steps first."""
    groups: list[tuple[_Kind, list[int]]] = []
    for number, descent in enumerate(descents):
        kind = _kind(descent)
        for other, members in groups:
            if other == kind:
                members.append(number)
                break
        else:
            groups.append((kind, [number]))
    return [sorted(members, key=lambda n: -len(descents[n].task.batches)) for _, members in groups]


class _Kind(NamedTuple):
    """What local loops have in common that can be one."""

    works: bool
    loss: Any
    ctx: Context
    moving: tuple[str, ...]
    shapes: Any


def _kind(descent: LocalLoop) -> _Kind:
    task = descent.task
    own = (
        descent.start,
        task.broadcast,
        task.instruction,
        task.client_state,
        task.round_noise,
        descent.correction,
    )
    moving = tuple(list_moving_keys(descent.ctx, descent.start, descent.trainable))
    return _Kind(len(task.batches) > 0, descent.loss, descent.ctx, moving, _shapes(own))


def _shapes(value: Any) -> Any:
    """What has to be alike in trees that are to be one: paths, shapes and number types."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, Mapping):
        return {key: _shapes(each) for key, each in value.items()}
    return [_shapes(each) for each in value] if isinstance(value, list | tuple) else type(value)


def run_stacked_loop(
    descents: Sequence[LocalLoop], recorder: Recorder | None = None, mask_checks: MaskChecks | None = None
) -> list[TrainedModel]:
    """The outcome of local loops of one group, in their order: as `Descent.alone`, up to rounding.

    Args:
        descents: as `grouped` puts them together; all have steps, the first one the most.
        recorder: records steps, so that they are played; None for making each of them anew.
        mask_checks: what is known of losses; what is found out is added to it.

    Raises:
        ValueError: if a batch has to be filled up, and the loss does not leave out what its mask says.
    """
    loop = _Loop(descents, recorder, {} if mask_checks is None else mask_checks)
    with loop.ctx.net.training_mode(list_frozen_blocks(loop.ctx, loop.moving)):
        for step in range(loop.steps[0]):
            loop.run_step(step)
    return loop.list_outcomes()


@dataclass
class _Loop:
    """The joint loop while it is made.

    Attributes:
        descents: whose.
        recorder: records steps, if they are to be played.
        mask_checks: which losses leave out what a mask says.
        active: how many clients are still at work.
        weights: what moves, of those.
        own: what else the loss reads of those: parameters that stay as they are, and the visits.
        shifts: what is added to their gradients, if anything is.
        begun: the first step that so many made together.
        tape: such a step, recorded.
    """

    descents: Sequence[LocalLoop]
    recorder: Recorder | None = None
    mask_checks: MaskChecks = field(default_factory=dict)
    active: int = field(init=False, default=0)
    weights: list[Tensor] = field(init=False, default_factory=list)
    own: tuple[Tree, Tree] = field(init=False, default=({}, {}))
    shifts: list[Tensor] = field(init=False, default_factory=list)
    begun: int = field(init=False, default=0)
    tape: RecordedStep | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        first = self.descents[0]
        self.ctx, self.loss = first.ctx, first.loss
        self.moving = list_moving_keys(first.ctx, first.start, first.trainable)
        self.steps = [len(descent.task.batches) for descent in self.descents]
        starts = [descent.start for descent in self.descents]
        self.stacks = [torch.stack([start[key].detach() for start in starts]) for key in self.moving]
        self.fixed = stack_trees([tree.drop(start, self.moving) for start in starts])
        self.shown = stack_trees([_loss_inputs(descent.task) for descent in self.descents])
        corrections = [d.correction for d in self.descents if d.correction is not None]
        self.shift = (
            stack_trees([tree.select(each, self.moving) for each in corrections]) if corrections else None
        )
        self.update = SgdUpdate(self.ctx)
        self.total = torch.zeros(len(starts), device=first.task.device)

    def run_step(self, step: int) -> None:
        """One step of all clients that have so many."""
        active = sum(steps > step for steps in self.steps)
        if active != self.active:
            self._keep_active(active)
            self.begun, self.tape = step, None
        batch, dims = make_joint_batch([descent.task.batches for descent in self.descents[:active]], step)
        if has_mask(batch):
            self._check_mask(batch, dims)
        if self.recorder is not None and self.tape is None and self._is_worth_recording(step):
            self.tape = RecordedStep(self.recorder, self._update_weights, batch, dims)
        if self.tape is not None and self.tape.fits_batch(batch):
            self.tape.replay_on(batch)
        else:
            self._update_weights(batch, dims)

    def _check_mask(self, batch: Batch, dims: Any) -> None:
        """Raise if the loss does not heed masks; it is tried once, on one client's part of this batch."""
        key = self.loss, self.ctx.model
        if key not in self.mask_checks:
            number = find_largest_client(batch)
            fixed, shown = self.fixed.client_tree(number), self.shown.client_tree(number)
            weights = {key: stack[number] for key, stack in zip(self.moving, self.weights, strict=True)}
            heeds = respects_mask(
                lambda moving, part: self._one(moving, fixed, shown, part),
                weights,
                select_client(batch, dims, number),
                self.ctx.local.precision,
            )
            if heeds is None:
                return
            self.mask_checks[key] = heeds
        if not self.mask_checks[key]:
            raise ValueError(MASK_IGNORED)

    def _is_worth_recording(self, step: int) -> bool:
        """Whether enough steps to come are like one that was made already, momentum and rate included."""
        constant = not self.ctx.local.lr_alpha
        return constant and step > self.begun and self.steps[self.active - 1] - step >= LEAST_STEPS

    def _update_weights(self, batch: Batch, dims: Any) -> None:
        active = self.active
        with lower_precision(self.ctx.local.precision, self.total.device):
            values = self._values(batch, dims)
        gradients = list(torch.autograd.grad(values.sum(), self.weights)) if self.weights else []
        with torch.no_grad():
            if self.shifts:
                gradients = list(torch._foreach_add(gradients, self.shifts))
            self.update(self.weights, gradients)
            self.total[:active] += values.detach()

    def _keep_active(self, active: int) -> None:
        self.active = active
        self.weights = [stack[:active].detach().requires_grad_() for stack in self.stacks]
        self.own = self.fixed.first_clients(active), self.shown.first_clients(active)
        shift = {} if self.shift is None else self.shift.first_clients(active)
        self.shifts = [shift[key] for key in self.moving] if shift else []
        self.update.keep_first(active)

    def _values(self, batch: Batch, dims: Any) -> Tensor:
        """The loss of each client that is at work."""
        moving = dict(zip(self.moving, self.weights, strict=True))
        every = vmap(self._one, in_dims=(0, self.fixed.dims, self.shown.dims, dims))
        values: Tensor = every(moving, *self.own, batch)
        return values

    def _one(self, moving: Params, fixed: Params, shown: Tree, batch: Batch) -> Tensor:
        """The loss of a client."""
        first = self.descents[0]
        params = {key: moving[key] if key in moving else fixed[key] for key in first.start}
        return self.loss(self.ctx, _view(first.task, shown), params, batch)

    def list_outcomes(self) -> list[TrainedModel]:
        """What each client has in the end; copies, so that who keeps one does not keep the whole stack."""
        found = []
        for number, (descent, steps) in enumerate(zip(self.descents, self.steps, strict=True)):
            own = {
                key: tree.to_channels_last(stack[number]).clone()
                for key, stack in zip(self.moving, self.stacks, strict=True)
            }
            params = {key: own.get(key, value) for key, value in descent.start.items()}
            found.append(TrainedModel(params, self.total[number] / steps, steps))
        return found


def _loss_inputs(task: ClientTask) -> Tree:
    """What a loss may read of a visit, as a tree."""
    return {
        "num_examples": torch.full((), task.num_examples, device=task.device),
        "label_counts": task.label_counts,
        "known_counts": task.known_counts,
        "broadcast": task.broadcast,
        "instruction": task.instruction,
        "client_state": task.client_state,
        "round_noise": task.round_noise,
    }


def _view(task: ClientTask, shown: Mapping[str, Any]) -> ClientTask:
    """The visit that a loss sees; what it may not read is not there, rather than another client's."""
    return task._replace(**shown, batches=(), examples=cast(Any, None), held_out=None, lockstep=None)
