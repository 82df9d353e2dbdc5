"""Losses of a batch, and the mask of correct predictions; padding rows never count in a loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.core import Batch


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy over the examples of a batch, without padding.

    With several yes-or-no labels per example: the mean binary cross-entropy over the known labels.

    Args:
        logits: `[batch, classes]`.
        batch: the labels, int64 `[batch]` or float32 `[batch, labels]` (NaN: unknown), and the mask.
    """
    if batch.y.dim() == 2:
        return _binary_cross_entropy(logits, batch)
    if batch.mask is None:
        return F.cross_entropy(logits, batch.y)
    per_example = F.cross_entropy(logits, batch.y, reduction="none")
    return (per_example * batch.mask).sum() / batch.mask.sum().clamp(min=1)


def example_losses(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each example, `[batch]`; with several labels, the mean over known labels.

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
    """Return the mean of `[batch]` values over the examples; padding (mask 0) does not count."""
    return values.mean() if mask is None else (values * mask).sum() / mask.sum().clamp(min=1)


def _binary_cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean binary cross-entropy over the known labels of the examples."""
    known = (~torch.isnan(batch.y)).to(logits.dtype)
    if batch.mask is not None:
        known = known * batch.mask.unsqueeze(-1)
    each = F.binary_cross_entropy_with_logits(logits, batch.y.nan_to_num(), reduction="none")
    return (each * known).sum() / known.sum().clamp(min=1)


def mark_correct(logits: Tensor, y: Tensor) -> Tensor:
    """Mark the correct predictions; a NaN prediction is wrong.

    Args:
        logits: `[batch, classes]`.
        y: int64 `[batch]`, or float32 `[batch, labels]`, where NaN is unknown.

    Returns:
        bool, of the labels' shape.
    """
    if y.dim() == 2:
        return ((logits > 0) == (y > 0.5)) & ~logits.isnan()
    return (logits.argmax(-1) == y) & ~logits.isnan().any(-1)
