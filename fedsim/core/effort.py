"""Effort: the work of local steps of one kind, from which fedsim counts operations."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Effort(NamedTuple):
    """The work of local steps of one kind, from which `fedsim.training.effort` counts operations.

    Attributes:
        steps: number of steps.
        trainable: keys of the net that each step updates.
        extra: number of parameters outside the net that each step also updates, such as a second head;
            counted as a linear layer whose inputs need no gradient.
        forwards: additional forward passes of each step through the whole net without a gradient, such as
            those of a teacher.
        examples: number of examples in all these steps together; None for these steps' share of the examples
            of the local steps.
        per_example: additional floating-point operations for each example, such as those of a generated
            feature (`fedsim.training.flops`).
        besides: additional floating-point operations of all these steps together.
        moves: number of steps that update the keys, if other steps only compute a gradient; None for all
            steps.
    """

    steps: int
    trainable: Collection[str]
    extra: int = 0
    forwards: int = 0
    examples: int | None = None
    per_example: int = 0
    besides: int = 0
    moves: int | None = None
