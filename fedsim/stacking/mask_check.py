"""Whether a loss leaves out the rows that are no examples, as `Batch.mask` says.

Where clients train at once, a batch that is smaller than the others' is filled up. One by one the mask is
always None, so a loss that never looks at it is right wherever its author tried it, and on a stack the copies
would count as examples, without a word. So such a loss is found out before a stack's first filled batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedsim.base.precision import Precision, lower_precision
from fedsim.base.tree import Tree
from fedsim.core.batches import Batch
from fedsim.models.net import Params

MaskChecks: TypeAlias = dict[tuple[Any, int], bool]
"""By loss and architecture: whether it leaves out what the mask says, as far as that is known."""

MASK_IGNORED = "the loss counts rows that are no examples: it has to heed batch.mask"

ROUNDING: Mapping[Precision, float] = {"float32": 1e-3, "tf32": 1e-3, "bf16": 0.03}
"""What no rounding reaches, by the size of the numbers compared; half a batch too many is far above it."""

LEAST = 1e-6


def has_mask(batch: Batch) -> bool:
    """Whether the batch, or one in its noise, has a mask."""
    return batch.mask is not None or any(map(has_mask, _batches(batch.noise)))


def find_largest_client(batch: Batch) -> int:
    """Which client has the most examples in a joint batch."""
    return 0 if batch.mask is None else int(batch.mask.sum(1).argmax())


def select_client(batch: Batch, dims: Any, number: int) -> Batch:
    """One client's part of a joint batch.

    Args:
        batch: as `feeding.joint_batch` gives it.
        dims: where the clients are in its parts.
        number: which client.
    """
    return Batch(*(_part(each, dim, number) for each, dim in zip(batch, dims, strict=True)))


def respects_mask(
    loss: Callable[[Params, Batch], Tensor], weights: Params, batch: Batch, precision: Precision = "float32"
) -> bool | None:
    """Whether half of a batch has the same loss and gradient as all of it with the other half masked.

    The masked half are examples, not copies: a mean over copies of a batch's only example is right.

    Args:
        loss: scalar loss of (the moving parameters, batch).
        weights: the moving parameters.
        batch: of one client.
        precision: of the forward passes.

    Returns:
        None where nothing can be told, since the numbers are no longer finite.
    """
    device = batch.y.device

    def loss_in_precision(params: Params, part: Batch) -> Tensor:
        with lower_precision(precision, device):
            return loss(params, part)

    alone, filled = (_outcome(loss_in_precision, weights, _half(batch, masked)) for masked in (False, True))
    if not all(bool(each.isfinite().all()) for each in (*alone, *filled)):
        return None
    return all(_are_close(one, other, ROUNDING[precision]) for one, other in zip(alone, filled, strict=True))


def _outcome(loss: Callable[[Params, Batch], Tensor], weights: Params, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss and its whole gradient: with zeros for weights, the loss alone may not depend on the batch."""
    params = {key: weight.detach().requires_grad_() for key, weight in weights.items()}
    value = loss(params, batch)
    slopes = torch.autograd.grad(value, list(params.values())) if params else ()
    return value.detach(), torch.cat([torch.zeros(1, device=value.device), *(s.flatten() for s in slopes)])


def _are_close(one: Tensor, other: Tensor, rounding: float) -> bool:
    scale = max(float(one.norm()), float(other.norm()))
    return float((one - other).norm()) <= rounding * scale + LEAST


def _half(batch: Batch, masked: bool) -> Batch:
    """The first half of the examples, alone or with all other rows masked; of batches in its noise too."""
    rows = len(batch.y)
    examples = rows if batch.mask is None else int(batch.mask.sum())
    half = -(-examples // 2)
    noise = {
        name: _half(each, masked) if isinstance(each, Batch) else each for name, each in batch.noise.items()
    }
    if not masked:
        return Batch(batch.x[:half], batch.y[:half], None, noise)
    mask = (torch.arange(rows, device=batch.y.device) < half).to(torch.float32)
    return Batch(batch.x, batch.y, mask, noise)


def _batches(noise: Tree) -> list[Batch]:
    return [each for each in noise.values() if isinstance(each, Batch)]


def _part(value: Any, dims: Any, number: int) -> Any:
    """One client's part of what is joint."""
    if isinstance(value, Batch):
        return select_client(value, dims, number)
    if isinstance(value, Mapping):
        return {name: _part(each, dims[name], number) for name, each in value.items()}
    return value if dims is None else value[number]
