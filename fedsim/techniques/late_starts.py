"""Late starts: warnings of a part of a method that begins after the last round, and so has no effect.

The number of rounds decides about warnings alone here, and about no result.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from fedsim.core import Context
from fedsim.techniques.layer_openings import (
    OpeningOrder,
    OpeningTimes,
    list_opening_rounds,
    select_open_blocks,
)

_LOG = logging.getLogger(__name__)


def warn_of_late_start(ctx: Context, field: str, value: int, effect: str) -> None:
    """Log a warning if a part of a method begins after the last round.

    Args:
        ctx: the context of the first round.
        field: the name in a spec, such as `algorithm.start_round`.
        value: the first round of the part, counted from 0.
        effect: what the user gets instead, such as "fedcog trains as fedavg does".
    """
    if value >= ctx.rounds:
        _LOG.warning(
            "%s is %d and the run has %d rounds, so %s; give a smaller %s, or more rounds",
            field,
            value,
            ctx.rounds,
            effect,
            field.rpartition(".")[-1],
        )


def warn_of_closed_blocks(
    ctx: Context, section: str, times: OpeningTimes, every: int, order: OpeningOrder
) -> None:
    """Log a warning if some blocks open after the last round.

    Args:
        ctx: the context of the first round.
        section: of the spec with the fields of the openings, such as `curriculum.layers`.
        times: as in `list_opening_rounds`.
        every: as in `list_opening_rounds`.
        order: the block that opens first.
    """
    field = f"{section}.every" if times is None else f"{section}.times"
    for each in ctx.architectures.values():
        base = each.net.base
        openings = list_opening_rounds(len(base), ctx.rounds, times, every)
        opened = select_open_blocks(replace(each, round=ctx.rounds - 1), openings, order)
        if closed := [block for block in base if block not in opened]:
            _LOG.warning(
                "%s opens the blocks of %s in rounds %s and the run has %d rounds, so these stay closed: %s; "
                "give smaller numbers, times: even, or more rounds",
                field,
                each.net.name,
                ", ".join(map(str, openings)),
                ctx.rounds,
                ", ".join(closed),
            )
