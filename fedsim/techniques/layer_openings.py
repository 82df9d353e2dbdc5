"""Openings of blocks: the rounds in which the blocks before the head open, one after another.

Jang, Choi, arXiv:2404.17799.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from fedsim.base.parameters import Range
from fedsim.core import Context
from fedsim.errors import FieldError
from fedsim.models.net import Net

WholeNumber = Annotated[int, Range(0)]
OpeningOrder: TypeAlias = Literal["vanilla", "anti"]
OpeningTimes: TypeAlias = tuple[WholeNumber, ...] | Literal["even"] | None


def list_opening_rounds(blocks: int, rounds: int, times: OpeningTimes, every: int) -> tuple[int, ...]:
    """Return the round of each opening, one for every block before the head.

    Args:
        blocks: number of these blocks.
        rounds: of the run.
        times: the rounds themselves, `even` for openings spread over the run, or None for `every`.
        every: rounds between two openings.
    """
    if times == "even":
        return tuple(rounds * k // blocks for k in range(blocks))
    return times if isinstance(times, tuple) else tuple(every * k for k in range(blocks))


def select_open_blocks(ctx: Context, openings: Sequence[int], order: OpeningOrder) -> tuple[str, ...]:
    """Return the blocks that are open in this round, in order from the input.

    Args:
        ctx: the round, for one architecture.
        openings: the round of each opening.
        order: `vanilla` opens the block next to the input first, `anti` the one next to the head.
    """
    count = sum(time <= ctx.round for time in openings)
    return ctx.net.base[:count] if order == "vanilla" else ctx.net.base[len(ctx.net.base) - count :]


def find_times_faults(times: object, net: Net) -> list[FieldError]:
    """Return the errors of given opening rounds that do not match the blocks of a model."""
    if not isinstance(times, tuple):
        return []
    named = f"{net.name} has {len(net.base)} base blocks: {', '.join(net.base)}"
    hint = f"give {len(net.base)} rounds, from 0 on and in order, or null for an opening every 100"
    if len(times) != len(net.base):
        return [FieldError("times", list(times), named, hint)]
    if times[0] != 0 or list(times) != sorted(times):
        message = "has to begin with 0 and to be in ascending order"
        return [FieldError("times", list(times), message, hint)]
    return []
