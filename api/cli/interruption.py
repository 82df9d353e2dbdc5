"""SIGINT and SIGTERM: they ask a command to end, so that it ends in an orderly way."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

TERMINATED = 143
"""The exit code after SIGTERM."""

ORDERLY_SECONDS = 10.0
"""Seconds for an orderly end. If Ray got the signal too, its calls may wait for a minute, and then abort."""

ROUND_SECONDS = 20.0
"""Seconds that a round gets to end after SIGTERM. Batch systems kill a process some 30 seconds after it."""


class Terminated(BaseException):
    """The process got SIGTERM, such as from a batch system that preempts it."""


class SignalHandler:
    """What SIGINT and SIGTERM do to a command: the first one may ask it to stop, another one ends it.

    While the command sets up its work, a signal waits for the next call of `raise_if_asked`: an exception in
    the middle of an import is lost, and in the middle of Ray's start it may crash the process.

    Args:
        ask_to_stop: asks the command's work to stop soon; returns False if the work cannot.
        give_up: called before the process exits at once, if it has not ended in an orderly way.

    Attributes:
        is_setting_up: whether the command still sets up its work; its owner changes it.
        asked_by: the signal that asked the work to stop; None for no signal.
    """

    def __init__(self, ask_to_stop: Callable[[], bool], give_up: Callable[[], None]) -> None:
        self.ask_to_stop, self.give_up = ask_to_stop, give_up
        self.is_setting_up = False
        self.asked_by: int | None = None

    def install(self) -> None:
        """Take both signals. Call it in the main thread, and again after Ray has set its own handlers."""
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)

    def raise_if_asked(self) -> None:
        """Raise the exception of the signal that asked the work to stop; do nothing without one."""
        if self.asked_by is not None:
            raise KeyboardInterrupt if self.asked_by == signal.SIGINT else Terminated

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.asked_by is None and self.ask_to_stop():
            self.asked_by = number
            if number == signal.SIGTERM:
                _run_later(ROUND_SECONDS, lambda: os.kill(os.getpid(), signal.SIGTERM))
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the orderly end
        _run_later(ORDERLY_SECONDS, self._exit_at_once)
        raise Terminated

    def _exit_at_once(self) -> None:
        self.give_up()
        os._exit(TERMINATED)


def discard_output() -> None:
    """Discard what is still to be written to a closed pipe: Python would complain when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_later(seconds: float, work: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()
