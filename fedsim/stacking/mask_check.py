"""Check that a loss leaves out the padding rows that `Batch.mask` marks.

In a stack, a smaller batch is padded to the size of the largest. For a client that trains alone the mask is
always None, so a loss that ignores the mask is correct there. In a stack the same loss would silently count
padding rows as examples. The check therefore runs before the first padded batch of every stack: a remembered
answer would make results depend on the stacks that a worker has trained before. It runs at moved weights: a
term that compares the client's model with the global model is 0 while the two are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedsim.base.precision import Precision, lower_precision
from fedsim.base.tree import Tree
from fedsim.core.batches import Batch
from fedsim.models.net import Params

MASK_IGNORED = "the loss counts rows that are no examples: it has to heed batch.mask"

ROUNDING: Mapping[Precision, float] = {"float32": 1e-3, "tf32": 1e-3, "bf16": 0.03}
"""Largest relative difference that rounding explains; counting half a batch too many differs far more."""

LEAST = 1e-6
"""Absolute difference that always counts as rounding."""

NOISE_STD = 0.1
"""Standard deviation of the noise that moves the weights before the check."""


def has_mask(batch: Batch) -> bool:
    """Return whether the batch, or a batch in its noise, has a mask."""
    return batch.mask is not None or any(map(has_mask, _batches(batch.noise)))


def find_largest_client(batch: Batch) -> int:
    """Return the position of the client with the most examples in a joint batch."""
    return 0 if batch.mask is None else int(batch.mask.sum(1).argmax())


def select_client(batch: Batch, dims: Any, number: int) -> Batch:
    """Select one client's part of a joint batch.

    Args:
        batch: joint batch, as `make_joint_batch` returns it.
        dims: for each part of the batch, the dimension of the clients (0), or None if there is none.
        number: position of the client in the stack.
    """
    return Batch(*(_part(each, dim, number) for each, dim in zip(batch, dims, strict=True)))


def respects_mask(
    loss: Callable[[Params, Batch], Tensor], weights: Params, batch: Batch, precision: Precision = "float32"
) -> bool | None:
    """Return whether a loss leaves out masked rows.

    Compare the loss and gradient of half a batch with those of the whole batch with the other half masked.
    The masked half has other examples, not copies: a mean over copies of one example would not change.

    Args:
        loss: scalar loss of (parameters that train, batch).
        weights: the parameters that train; the check moves copies of them.
        batch: a batch of one client.
        precision: precision of the forward passes.

    Returns:
        None if loss or gradients are not finite, so that nothing can be concluded.
    """
    device, moved = batch.y.device, _move_weights(weights, batch.y.device)

    def loss_in_precision(params: Params, part: Batch) -> Tensor:
        with lower_precision(precision, device):
            return loss(params, part)

    alone, filled = (_outcome(loss_in_precision, moved, _half(batch, masked)) for masked in (False, True))
    if not all(bool(each.isfinite().all()) for each in (*alone, *filled)):
        return None
    return all(_are_close(one, other, ROUNDING[precision]) for one, other in zip(alone, filled, strict=True))


def _move_weights(weights: Params, device: torch.device) -> Params:
    """Return the weights plus noise that is the same in every check; no random stream of the run changes."""
    generator = torch.Generator(device).manual_seed(0)

    def draw_noise(weight: Tensor) -> Tensor:
        return torch.randn(weight.shape, generator=generator, dtype=weight.dtype, device=device)

    return {key: weight.detach() + NOISE_STD * draw_noise(weight) for key, weight in weights.items()}


def _outcome(loss: Callable[[Params, Batch], Tensor], weights: Params, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss and its flat gradient; with zero weights the loss alone may not depend on the batch."""
    params = {key: weight.detach().requires_grad_() for key, weight in weights.items()}
    value = loss(params, batch)
    slopes = torch.autograd.grad(value, list(params.values()), allow_unused=True) if params else ()
    used = [slope.flatten() for slope in slopes if slope is not None]
    return value.detach(), torch.cat([torch.zeros(1, device=value.device), *used])


def _are_close(one: Tensor, other: Tensor, rounding: float) -> bool:
    """Return whether two tensors differ by no more than rounding, measured by their norms."""
    scale = max(float(one.norm()), float(other.norm()))
    return float((one - other).norm()) <= rounding * scale + LEAST


def _half(batch: Batch, masked: bool) -> Batch:
    """Return the first half of the examples, alone or with all other rows masked; also in noise batches."""
    rows = len(batch.y)
    examples = rows if batch.mask is None else int(batch.mask.sum())
    half = -(-examples // 2)
    noise = {
        name: _half(each, masked) if isinstance(each, Batch) else each for name, each in batch.noise.items()
    }
    if not masked:
        return batch._replace(x=batch.x[:half], y=batch.y[:half], mask=None, noise=noise)
    mask = (torch.arange(rows, device=batch.y.device) < half).to(torch.float32)
    return batch._replace(mask=mask, noise=noise)


def _batches(noise: Tree) -> list[Batch]:
    """List the batches at the top level of a batch's noise."""
    return [each for each in noise.values() if isinstance(each, Batch)]


def _part(value: Any, dims: Any, number: int) -> Any:
    """Select one client's part of a joint value: a batch, a tree or a tensor."""
    if isinstance(value, Batch):
        return select_client(value, dims, number)
    if isinstance(value, Mapping):
        return {name: _part(each, dims[name], number) for name, each in value.items()}
    return value if dims is None else value[number]
