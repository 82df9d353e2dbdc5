"""Which local loops are made together, which are not, and what a record says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from fedsim.core.error_attribution import format_error, is_out_of_memory
from fedsim.errors import StackTooLarge
from fedsim.stacking.graph_replay import Recorder
from fedsim.stacking.mask_check import MaskChecks
from fedsim.stacking.stacked import group_loops, run_stacked_loop
from fedsim.training.local_loop import LocalLoop, TrainedModel

STACK_HINT = "set resources.stack to a smaller width"

SHOWN_CHARACTERS = 200
"""How much of an error a record says, as the reason why loops were made one by one."""


@dataclass
class StackingNotes:
    """How local loops were made.

    Attributes:
        together: how many were made with others.
        alone: how many were not, though others were there, by the reason.
        recorder: records the steps of those to be made, if they are to be played.
        mask_checks: which losses leave out what a mask says, as far as that is known.
    """

    stacked: int = 0
    unstacked: Counter[str] = field(default_factory=Counter)
    recorder: Recorder | None = None
    mask_checks: MaskChecks = field(default_factory=dict)

    def __add__(self, other: StackingNotes) -> StackingNotes:
        return StackingNotes(self.stacked + other.stacked, self.unstacked + other.unstacked)

    def to_record(self) -> dict[str, Any]:
        """What a record says of it: nothing where nobody asked for stacking."""
        if not self.stacked and not self.unstacked:
            return {}
        return {"stacked": {"together": self.stacked, "alone": dict(self.unstacked)}}


def run_loops(descents: Sequence[LocalLoop], notes: StackingNotes) -> list[TrainedModel | Exception]:
    """The outcomes of local loops that are asked for at once: together where they can be one.

    A group in which something raises is made again one by one, so that the error meets whose it is.

    Args:
        descents: of the clients, in their order.
        notes: what was done is added to it.

    Raises:
        StackTooWide: if memory ran out.
    """
    found: list[TrainedModel | Exception | None] = [None] * len(descents)
    for members in group_loops(descents):
        group = [descents[member] for member in members]
        outcomes = _run_stacked(group, notes) or [_run_alone(descent) for descent in group]
        for member, outcome in zip(members, outcomes, strict=True):
            found[member] = outcome
    return cast("list[TrainedModel | Exception]", found)


def _run_stacked(group: Sequence[LocalLoop], notes: StackingNotes) -> Sequence[TrainedModel | Exception]:
    """The outcomes of a group, made as one; none at all where they are to be made one by one."""
    if not len(group[0].task.batches):
        return ()
    if len(group) == 1:
        notes.unstacked["no other loop was like it"] += 1
        return ()
    try:
        outcomes = run_stacked_loop(group, notes.recorder, notes.mask_checks)
    except Exception as error:
        if is_out_of_memory(error):
            message = f"{len(group)} clients at once ran out of memory: {format_error(error)}"
            raise StackTooLarge(message, STACK_HINT) from error
        notes.unstacked[_first_line(error)] += len(group)
        return ()
    notes.stacked += len(group)
    return outcomes


def _run_alone(descent: LocalLoop) -> TrainedModel | Exception:
    try:
        return descent.run_alone()
    except Exception as error:
        return error


def _first_line(error: Exception) -> str:
    return format_error(error).partition("\n")[0][:SHOWN_CHARACTERS]
