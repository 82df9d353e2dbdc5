"""Group local loops that can run as one stack, run them, and note the clients that trained alone and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsim.base.error_attribution import format_error, is_out_of_memory
from fedsim.errors import StackTooLarge
from fedsim.stacking.graph_replay import Recorder
from fedsim.stacking.stacked import group_loops, run_stacked_loop
from fedsim.training.local_loop import LocalLoop, TrainedModel

STACK_HINT = "set resources.stack to a smaller number"

NO_WORKSPACE = "unable to find an engine"
"""The error of cuDNN if no algorithm of a convolution fits into the memory."""

SHOWN_CHARACTERS = 200
"""Characters of an error message in a round record, as the reason why loops ran one by one."""


@dataclass
class StackingNotes:
    """Counts of stacked and unstacked local loops, and the recorder that stacked loops use.

    Attributes:
        stacked: number of loops that ran in a stack.
        unstacked: number of loops that ran alone although stacking was on, by reason.
        recorder: records steps for replay; None to run every step normally.
    """

    stacked: int = 0
    unstacked: Counter[str] = field(default_factory=Counter)
    recorder: Recorder | None = None

    def __add__(self, other: StackingNotes) -> StackingNotes:
        return StackingNotes(self.stacked + other.stacked, self.unstacked + other.unstacked)

    def to_record(self) -> dict[str, Any]:
        """Return the counts for the round record; empty if no loop was counted."""
        if not self.stacked and not self.unstacked:
            return {}
        return {"stacked": {"together": self.stacked, "alone": dict(self.unstacked)}}


def run_loops(loops: Sequence[LocalLoop], notes: StackingNotes) -> list[TrainedModel | Exception]:
    """Run local loops, in stacks where they are alike, and return their outcomes in the same order.

    If a stack raises an error, its loops run again one by one, so that the error reaches the right client.

    Args:
        loops: the local loops, in the order of the clients.
        notes: the counts of stacked and unstacked loops are added to it.

    Returns:
        For each loop its trained model, or the exception that it raised.

    Raises:
        StackTooLarge: if memory ran out.
    """
    found = dict[int, TrainedModel | Exception]()
    for positions in group_loops(loops):
        group = [loops[position] for position in positions]
        found.update(zip(positions, _run_stacked(group, notes) or map(_run_alone, group), strict=True))
    # An error holds the frames of its callers: if this frame held the error, both would stay in memory.
    return [found.pop(position) for position in range(len(loops))]


def _run_stacked(group: Sequence[LocalLoop], notes: StackingNotes) -> Sequence[TrainedModel | Exception]:
    """Run a group as one stack and return its outcomes; empty if its loops have to run one by one."""
    if not len(group[0].task.batches):
        return ()
    if len(group) == 1:
        notes.unstacked["no other loop was like it"] += 1
        return ()
    try:
        outcomes = run_stacked_loop(group, notes.recorder)
    except Exception as error:
        if is_out_of_memory(error) or NO_WORKSPACE in str(error):
            message = f"{len(group)} clients at once ran out of memory: {format_error(error)}"
            raise StackTooLarge(message, STACK_HINT) from error
        notes.unstacked[_first_line(error)] += len(group)
        return ()
    notes.stacked += len(group)
    return outcomes


def _run_alone(loop: LocalLoop) -> TrainedModel | Exception:
    """Run one local loop alone; return its error instead of raising it."""
    try:
        return loop.run_alone()
    except Exception as error:
        return error


def _first_line(error: Exception) -> str:
    """Return the first line of an error message, cut to `SHOWN_CHARACTERS`."""
    return format_error(error).partition("\n")[0][:SHOWN_CHARACTERS]
