"""A model split by its channels: the first channels of every layer are shared, the last ones private.

The inputs of the first layer and the outputs of the last one belong to both parts. A weight between a shared
and a private channel is private. The parameters and statistics of a normalisation belong to their channel.

The model has to be a chain of convolutions and linear layers; residual connections need the same channels on
both sides. If maps are flattened, each channel becomes as many inputs as it has places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fedsim.base import tree
from fedsim.base.shares import floor_share
from fedsim.base.tree import Tree
from fedsim.models.net import Net, Params

_NORMALISATIONS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm)
_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Linear)


class Extent(tuple[int, int]):
    """One dimension that is split: its number of channels, and the number of places of each channel."""

    __slots__ = ()

    def count_shared(self, share: float) -> int:
        """The number of shared places if `share` of the channels is private, rounded down."""
        channels, places = self
        return (channels - floor_share(share, channels)) * places


Cuts: TypeAlias = Mapping[str, tuple[Extent | None, ...]]
"""{key: the extent of each dimension; None for a dimension that belongs to both parts}."""


@lru_cache(maxsize=32)
def cuts(net: Net) -> Cuts:
    """The splits of all tensors of a net.

    Raises:
        ValueError: if the net is not a chain of channels.
    """
    layers = [(name, module) for name, module in net.module.named_modules() if isinstance(module, _LAYERS)]
    if not layers:
        raise ValueError(f"{net.name} has no layers of channels")
    if not net.is_chain:
        raise ValueError(f"{net.name} is not a chain of blocks, so that its channels cannot be followed")
    last, found, seen = layers[-1][0], dict[str, tuple[Extent | None, ...]](), list[int]()
    for name, module in net.module.named_modules():
        own = [f"{name}.{key}" for key, _ in (*module.named_parameters(recurse=False), *_buffers(module))]
        own = [key for key in own if key in net.keys]
        if not own:
            continue
        if isinstance(module, _LAYERS):
            wide, narrow = _output_width(module), _inputs(net, module, seen)
            out = None if name == last else Extent((wide, 1))
            found |= {key: (out, narrow) if key.endswith(".weight") else (out,) for key in own}
            seen.append(wide)
        elif isinstance(module, _NORMALISATIONS) and seen and _channels(module) in seen:
            found |= {key: (Extent((_channels(module), 1)),) for key in own}
        else:
            raise ValueError(f"{net.name} has a layer of channels that do not follow one another: {name}")
    return found


def _buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    return list(module.named_buffers(recurse=False))


def _output_width(module: nn.Conv1d | nn.Conv2d | nn.Linear) -> int:
    return module.out_features if isinstance(module, nn.Linear) else module.out_channels


def _channels(module: nn.Module) -> int:
    return int(module.num_channels if isinstance(module, nn.GroupNorm) else module.num_features)  # type: ignore[arg-type]


def _inputs(net: Net, module: nn.Conv1d | nn.Conv2d | nn.Linear, seen: list[int]) -> Extent | None:
    """The inputs of a layer, given the widths of the layers before it; None for the first layer."""
    if not seen:
        return None
    if isinstance(module, nn.Linear):
        places, rest = divmod(module.in_features, seen[-1])
        if not rest and places:
            return Extent((seen[-1], places))
    elif module.groups == 1 and module.in_channels in seen:
        return Extent((module.in_channels, 1))
    raise ValueError(f"{net.name} has a layer whose inputs are not the channels of an earlier one: {module}")


def shared_part(net: Net, params: Tree, share: float) -> dict[str, Tensor]:
    """The shared channels of a model, as smaller tensors, if `share` of them is private."""
    return {key: value[_shared_slices(net, key, share)] for key, value in params.items()}


def replace_shared_part(net: Net, params: Params, part: Tree, share: float) -> dict[str, Tensor]:
    """A copy of a model with these values in its shared channels."""
    whole = dict(params)
    for key, value in part.items():
        whole[key] = params[key].clone()
        whole[key][_shared_slices(net, key, share)] = value
    return whole


def _shared_slices(net: Net, key: str, share: float) -> tuple[slice, ...]:
    return tuple(
        slice(None) if extent is None else slice(extent.count_shared(share)) for extent in cuts(net)[key]
    )


def _private_slices(net: Net, key: str, share: float) -> tuple[slice, ...]:
    return tuple(
        slice(None) if extent is None else slice(extent.count_shared(share), None)
        for extent in cuts(net)[key]
    )


def count_private_channels(net: Net, share: float) -> int:
    """The number of private channels of all layers together, with those of normalisations."""
    return sum(
        extents[0][0] - extents[0].count_shared(share)
        for key, extents in cuts(net).items()
        if extents[0] is not None and key.endswith(".weight")  # some layers have no bias
    )


@dataclass(frozen=True)
class Masks:
    """Masks over a net's parameters: 1 for a parameter that is used, else 0.

    Attributes:
        shared: parameters of a forward pass through the shared channels alone.
        private: parameters of a forward pass through the private channels alone.
    """

    shared: Tree
    private: Tree


@lru_cache(maxsize=8)
def make_masks(net: Net, share: float, device: torch.device) -> Masks:
    """The masks of a net if `share` of its channels is private."""
    with torch.inference_mode(False):
        ones = {key: torch.zeros(_shape(net, key), device=device) for key in net.parameters}
        both = Masks(ones, tree.map(torch.clone, ones))
        for key in net.parameters:
            both.shared[key][_shared_slices(net, key, share)] = 1.0
            both.private[key][_private_slices(net, key, share)] = 1.0
    return both


def _shape(net: Net, key: str) -> torch.Size:
    shape: torch.Size = net.module.get_parameter(key).shape
    return shape


def mask_params(params: Params, mask: Tree) -> dict[str, Tensor]:
    """A model with the masked parameters alone; its running statistics are copies that are not read again."""
    return {key: value * mask[key] if key in mask else value.clone() for key, value in params.items()}
