"""Which keys of a model a local loop trains, and which it leaves as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fedsim.core import Context
from fedsim.models.net import Params


def list_moving_keys(ctx: Context, start: Params, trainable: Collection[str] | None) -> list[str]:
    """List the keys that train: those of the net, then others, each in their order; never frozen ones."""
    wanted = set(ctx.net.parameters if trainable is None else trainable).difference(ctx.frozen)
    others = wanted.difference(ctx.net.keys)
    if unknown := sorted(others.difference(start)):
        raise ValueError(f"trainable_keys names {unknown[0]!r}, which the model does not have")
    return [key for key in ctx.net.parameters if key in wanted] + [key for key in start if key in others]


def list_frozen_blocks(ctx: Context, moving: Collection[str]) -> list[str]:
    """List the blocks that have parameters, none of which trains."""
    fixed = set(ctx.net.parameters).difference(moving)
    return [
        block
        for block, keys in ctx.net.blocks.items()
        if not fixed.isdisjoint(keys) and set(moving).isdisjoint(keys)
    ]


def iterate_followed_buffers(ctx: Context, start: Params, frozen: Collection[str]) -> Iterator[str]:
    """Yield the buffers that follow the forward passes: those of blocks that are not frozen."""
    parameters = set(ctx.net.parameters)
    for block, keys in ctx.net.blocks.items():
        if block not in frozen:
            yield from (key for key in keys if key in start and key not in parameters)
