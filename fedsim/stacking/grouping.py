"""Which local loops are made together, which are not, and what a record says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from fedsim.core.error_attribution import as_text, is_memory
from fedsim.errors import StackTooWide
from fedsim.stacking.graph_replay import Recorder
from fedsim.stacking.mask_check import Heeding
from fedsim.stacking.stacked import descend_together, grouped
from fedsim.training.local_loop import Descent, Trained

STACK_HINT = "set resources.stack to a smaller width"

SHOWN_CHARACTERS = 200
"""How much of an error a record says, as the reason why loops were made one by one."""


@dataclass
class Stacking:
    """How local loops were made.

    Attributes:
        together: how many were made with others.
        alone: how many were not, though others were there, by the reason.
        recorder: records the steps of those to be made, if they are to be played.
        heeding: which losses leave out what a mask says, as far as that is known.
    """

    together: int = 0
    alone: Counter[str] = field(default_factory=Counter)
    recorder: Recorder | None = None
    heeding: Heeding = field(default_factory=dict)

    def __add__(self, other: Stacking) -> Stacking:
        return Stacking(self.together + other.together, self.alone + other.alone)

    def said(self) -> dict[str, Any]:
        """What a record says of it: nothing where nobody asked for stacking."""
        if not self.together and not self.alone:
            return {}
        return {"stacked": {"together": self.together, "alone": dict(self.alone)}}


def solved(descents: Sequence[Descent], notes: Stacking) -> list[Trained | Exception]:
    """The outcomes of local loops that are asked for at once: together where they can be one.

    A group in which something raises is made again one by one, so that the error meets whose it is.

    Args:
        descents: of the clients, in their order.
        notes: what was done is added to it.

    Raises:
        StackTooWide: if memory ran out.
    """
    found: list[Trained | Exception | None] = [None] * len(descents)
    for members in grouped(descents):
        group = [descents[member] for member in members]
        outcomes = _together(group, notes) or [_alone(descent) for descent in group]
        for member, outcome in zip(members, outcomes, strict=True):
            found[member] = outcome
    return cast("list[Trained | Exception]", found)


def _together(group: Sequence[Descent], notes: Stacking) -> Sequence[Trained | Exception]:
    """The outcomes of a group, made as one; none at all where they are to be made one by one."""
    if not len(group[0].task.batches):
        return ()
    if len(group) == 1:
        notes.alone["no other loop was like it"] += 1
        return ()
    try:
        outcomes = descend_together(group, notes.recorder, notes.heeding)
    except Exception as error:
        if is_memory(error):
            message = f"{len(group)} clients at once ran out of memory: {as_text(error)}"
            raise StackTooWide(message, STACK_HINT) from error
        notes.alone[_first_line(error)] += len(group)
        return ()
    notes.together += len(group)
    return outcomes


def _alone(descent: Descent) -> Trained | Exception:
    try:
        return descent.alone()
    except Exception as error:
        return error


def _first_line(error: Exception) -> str:
    return as_text(error).partition("\n")[0][:SHOWN_CHARACTERS]
