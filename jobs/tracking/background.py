"""BackgroundTracker: a tracker in a thread of its own, so that one that is away never holds up a run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic

from jobs.store.records import RoundRecord
from jobs.tracking.tracked_run import EndState, Tracker, list_figures

RETRY_SECONDS = 15.0
"""Seconds until a tracker that failed is tried again."""

END_SECONDS = 30.0
"""The most seconds that the end of a run waits for its trackers."""


class BackgroundTracker:
    """A tracker, called in order from one thread. What fails is tried again until the end of the run.

    Args:
        name: of the tracker, for warnings.
        open_run: opens the tracker's run.
        warn: receives a sentence at the first failure, and one at the end if something is missing.
        show_errors: whether the sentence has the text of the error, such as an address with a password.
    """

    def __init__(
        self,
        name: str,
        open_run: Callable[[], Tracker],
        warn: Callable[[str], None],
        *,
        show_errors: bool = True,
    ) -> None:
        self._show_errors = show_errors
        self._name, self._open, self._warn = name, open_run, warn
        self._tracker: Tracker | None = None
        self._calls = deque[Callable[[Tracker], None]]()
        self._wake, self._deadline, self._has_warned = threading.Condition(), float("inf"), False
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def log_round(self, record: RoundRecord) -> None:
        """Hand over the record of a round; return at once."""
        figures = list_figures(record)
        self._add(lambda tracker: tracker.log_round(record.round, figures))

    def end(self, state: EndState, files: Mapping[str, bytes]) -> None:
        """End the tracker's run, and wait for the thread, but at most `END_SECONDS`."""
        # Both in one step: the thread ends when it finds a deadline and nothing left to do.
        with self._wake:
            self._deadline = monotonic() + END_SECONDS
            self._add(lambda tracker: tracker.end(state, files))
        self._thread.join(END_SECONDS + 1)
        if self._calls:
            self._warn(f"{self._name} does not answer: its last rounds or files are missing there")

    def _add(self, call: Callable[[Tracker], None]) -> None:
        with self._wake:
            self._calls.append(call)
            self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._calls)
                call = self._calls[0]
            if self._try(call):
                with self._wake:
                    self._calls.popleft()
                    if self._deadline < float("inf") and not self._calls:
                        return
            elif monotonic() > self._deadline:
                return
            else:
                self._wait_to_retry()

    def _wait_to_retry(self) -> None:
        """Wait `RETRY_SECONDS`. Further rounds do not shorten the wait; the end of the run does."""
        with self._wake:
            had_ended = self._deadline < float("inf")
            seconds = min(RETRY_SECONDS, max(0.1, self._deadline - monotonic()))
            self._wake.wait_for(lambda: not had_ended and self._deadline < float("inf"), seconds)

    def _try(self, call: Callable[[Tracker], None]) -> bool:
        try:
            if self._tracker is None:
                self._tracker = self._open()
            call(self._tracker)
        except Exception as error:  # a tracker's own errors are of any type
            if not self._has_warned:
                self._has_warned = True
                cause = f"{type(error).__name__}: {error}" if self._show_errors else type(error).__name__
                self._warn(f"{self._name} fails, and the run goes on: {cause}"[:500])
            return False
        return True
