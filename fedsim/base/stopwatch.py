"""A stopwatch for the wall-clock seconds of each part of a round."""

from __future__ import annotations

from collections import defaultdict
from time import perf_counter

ROUND_PARTS = ("train", "server", "learn", "evaluate", "personal")


class Stopwatch:
    """Measures the seconds of each part of a round, from the moment the stopwatch is created.

    A part may be ended several times; its seconds add up.
    """

    def __init__(self) -> None:
        self._began = self._last = perf_counter()
        self._laps: dict[str, float] = defaultdict(float)

    def end_part(self, phase: str) -> None:
        """Add the seconds since the last call to this part, one of `ROUND_PARTS`."""
        now = perf_counter()
        self._laps[phase] += now - self._last
        self._last = now

    def seconds(self, survey: float) -> dict[str, float]:
        """Return the seconds of every part, of the client survey, and in `total`.

        Args:
            survey: seconds of the client survey; `train` includes them, and this method subtracts them.
        """
        found = {phase: self._laps[phase] for phase in ROUND_PARTS}
        found["train"] -= survey
        return {"total": self._last - self._began, "survey": survey, **found}
