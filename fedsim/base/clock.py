"""Seconds of wall clock, shared out over the phases of a round."""

from __future__ import annotations

from collections import defaultdict
from time import perf_counter

ROUND_PARTS = ("train", "server", "learn", "evaluate", "personal")


class Clock:
    """Runs from when it is made; a phase may take several laps."""

    def __init__(self) -> None:
        self._began = self._last = perf_counter()
        self._laps: dict[str, float] = defaultdict(float)

    def end_part(self, phase: str) -> None:
        """What passed since the last lap belongs to this phase."""
        now = perf_counter()
        self._laps[phase] += now - self._last
        self._last = now

    def seconds(self, survey: float) -> dict[str, float]:
        """Every phase's seconds, and `total`.

        Args:
            survey: the part of `train` that went into the survey before it.
        """
        found = {phase: self._laps[phase] for phase in ROUND_PARTS}
        found["train"] -= survey
        return {"total": self._last - self._began, "survey": survey, **found}
