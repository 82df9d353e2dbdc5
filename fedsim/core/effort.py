"""Effort: local steps of one kind, to count what they cost."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Effort(NamedTuple):
    """Local steps of one kind, for counting what they cost.

    Attributes:
        steps: how many.
        trainable: keys of the net that each of them moves.
        extra: parameters that each moves besides, which are no keys of the net, such as those of a second
            head; counted as a linear layer whose inputs need no gradient.
        forwards: passes through the whole net that each makes besides without a gradient, as of a teacher.
        examples: how many examples go through all these steps together; None for their share of those of the
            local steps.
        per_example: floating-point operations besides for each of these examples, such as of a feature that
            is generated for it (`fedsim.training.flops`).
        besides: floating-point operations of all these steps together besides.
        moves: how many of the steps move these keys, where the others take a gradient for its own sake; None
            for all of them.
    """

    steps: int
    trainable: Collection[str]
    extra: int = 0
    forwards: int = 0
    examples: int | None = None
    per_example: int = 0
    besides: int = 0
    moves: int | None = None
