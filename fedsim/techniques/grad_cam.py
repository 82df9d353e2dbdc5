"""The places of an image that a model uses for a class: Grad-CAM (Selvaraju et al., arXiv:1610.02391)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vjp

from fedsim.models.layers import average_maps
from fedsim.models.net import Net, Params
from fedsim.techniques.generators import find_maps_entry


class LogitsAndAttention(NamedTuple):
    """A model's logits and attention for a batch.

    Attributes:
        logits: `[batch, classes]`.
        attention: `[batch, size * size]`, between 0 and 1; the largest value of a row is 1, or all are 0.
    """

    logits: Tensor
    attention: Tensor


def has_maps(net: Net) -> bool:
    """Whether a model has maps for the attention: in a chain with convolutions, a block that takes maps."""
    if not net.is_chain or not any(isinstance(module, nn.Conv2d) for module in net.module.modules()):
        return False
    return net.inputs is None or find_maps_entry(net, net.inputs.shape) is not None


def compute_attention(
    net: Net, input_shape: tuple[int, ...], params: Params, x: Tensor, y: Tensor, size: int
) -> LogitsAndAttention:
    """Return logits and the attention for the labels; both have a gradient, and `vmap` can map over them.

    The attention of the last maps A is relu(sum over maps k of mean(d score / d A_k) A_k), averaged to `size`
    by `size` places and divided by its largest value.

    Args:
        net: the model.
        input_shape: of one example.
        params: its parameters.
        x: inputs.
        y: labels, int64 `[batch]`: the score is the label's logit; or float32 `[batch, labels]`: the score is
            the sum of the logits of all labels that are yes.
        size: rows of the attention, and places of a row.

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
    """The weight of each logit in the score."""
    if y.dim() == 2:
        return (y > 0.5).to(logits.dtype)
    return (torch.arange(logits.shape[1], device=y.device) == y.unsqueeze(1)).to(logits.dtype)


@lru_cache(maxsize=32)
def _find_block_behind_maps(net: Net, input_shape: tuple[int, ...]) -> str:
    where = find_maps_entry(net, input_shape)
    if where is None:
        raise ValueError(f"{net.name} has no convolution maps before its classifier, and Grad-CAM needs them")
    return where.block
