"""Where in an image a model looks for a class: Grad-CAM (Selvaraju et al., ICCV 2017, arXiv:1610.02391)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vjp

from fedsim.models.layers import average_maps
from fedsim.models.net import Net, Params
from fedsim.techniques.generators import find_feature_entry


class LogitsAndAttention(NamedTuple):
    """What a model says of a batch, and where it looks.

    Attributes:
        logits: `[batch, classes]`.
        attention: `[batch, size * size]`, each row between 0 and 1 with its largest at 1 (or all 0).
    """

    logits: Tensor
    attention: Tensor


def has_maps(net: Net) -> bool:
    """Whether a model has maps to look at: whether it has convolutions of images."""
    return any(isinstance(module, nn.Conv2d) for module in net.module.modules())


def compute_attention(
    net: Net, input_shape: tuple[int, ...], params: Params, x: Tensor, y: Tensor, size: int
) -> LogitsAndAttention:
    """Logits, and where the model looks for the labels; both have a gradient, and may be mapped over.

    By its last maps A that is relu(sum over maps k of mean(d score / d A_k) A_k), averaged to `size` by
    `size` places and divided by its largest value.

    Args:
        net: the model.
        input_shape: of one example.
        params: its parameters.
        x: inputs.
        y: labels, int64 `[batch]`: the score is their logit; or float32 `[batch, labels]`: the sum of those
            of the labels that are yes.
        size: places in a row, and rows.

    Raises:
        ValueError: if the model has no maps.
    """
    block = _find_block_behind_maps(net, input_shape)
    maps = net.run_blocks(params, x, stop=block)
    logits, pulled = vjp(lambda held: net.run_blocks(params, held, start=block), maps)[:2]
    (slope,) = pulled(_label_weights(logits, y))
    attention = F.relu((slope.mean((2, 3), keepdim=True) * maps).sum(1, keepdim=True))
    places = average_maps(attention, size).flatten(1)
    return LogitsAndAttention(logits, places / places.amax(1, keepdim=True).clamp(min=1e-12))


def _label_weights(logits: Tensor, y: Tensor) -> Tensor:
    """How much each logit counts in the score."""
    if y.dim() == 2:
        return (y > 0.5).to(logits.dtype)
    return (torch.arange(logits.shape[1], device=y.device) == y.unsqueeze(1)).to(logits.dtype)


@lru_cache(maxsize=32)
def _find_block_behind_maps(net: Net, input_shape: tuple[int, ...]) -> str:
    where = find_feature_entry(net, input_shape)
    if len(where.shape) != 3:
        raise ValueError(f"{net.name} has no maps behind which its classifier begins")
    return where.block
