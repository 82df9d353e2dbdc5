"""Where in an image a model looks for a class: Grad-CAM (Selvaraju et al., ICCV 2017, arXiv:1610.02391)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .generators import entrance
from .net import Net, Params


class Look(NamedTuple):
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


def look(
    net: Net, input_shape: tuple[int, ...], params: Params, x: Tensor, y: Tensor, size: int, train: bool
) -> Look:
    """Logits, and where the model looks for the labels.

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
        train: whether a gradient through the attention is wanted.

    Raises:
        ValueError: if the model has no maps.
    """
    block = _behind_maps(net, input_shape)
    maps = net.run(params, x, stop=block)
    if not train:
        maps = maps.detach()
    if not maps.requires_grad:
        maps = maps.requires_grad_()
    logits = net.run(params, maps, start=block)
    (slope,) = torch.autograd.grad(_score(logits, y), maps, create_graph=train)
    attention = F.relu((slope.mean((2, 3), keepdim=True) * maps).sum(1, keepdim=True))
    places = F.adaptive_avg_pool2d(attention, size).flatten(1)
    scaled = places / places.amax(1, keepdim=True).clamp(min=1e-12)
    return Look(logits, scaled) if train else Look(logits.detach(), scaled.detach())


def _score(logits: Tensor, y: Tensor) -> Tensor:
    if y.dim() == 2:
        return (logits * (y > 0.5)).sum()
    return logits.gather(1, y.unsqueeze(1)).sum()


@lru_cache(maxsize=32)
def _behind_maps(net: Net, input_shape: tuple[int, ...]) -> str:
    where = entrance(net, input_shape)
    if len(where.shape) != 3:
        raise ValueError(f"{net.name} has no maps behind which its classifier begins")
    return where.block
