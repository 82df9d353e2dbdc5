"""Clients that train at once: each goes its own way, and waits for the others before every local loop.

What a method does around its local loops is ordinary code for one client. So that it can stay so, each client
of a company has a thread of its own, used as a coroutine: exactly one of them runs at any time, in the order
of the clients, until it asks for a local loop or has ended. When all wait, their loops are made together, and
they go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Semaphore, Thread
from typing import Generic, TypeAlias, TypeVar

import torch

from fedsim.core.error_attribution import format_error, is_out_of_memory
from fedsim.errors import StackTooLarge
from fedsim.stacking.grouping import STACK_HINT, StackingNotes, run_loops
from fedsim.training.local_loop import LocalLoop, TrainedModel

LoopOutcome: TypeAlias = "TrainedModel | Exception"
"""Of a local loop: what came out, or what it raised."""

Value = TypeVar("Value")


def train_at_once(
    clients: Sequence[int],
    stack_size: int,
    why_not: str,
    one: Callable[[int, ThreadedLockstep | None], Value],
    notes: StackingNotes,
) -> Iterator[Value]:
    """Train clients of one architecture, so many at once.

    Args:
        clients: who.
        stack_size: how many; 1 for one by one.
        why_not: why they cannot train at once, "" if they can.
        one: trains one client, in the company that it is given.
        notes: how the local loops were made is added to it.

    Yields:
        What `one` returned for each, in their order.

    Raises:
        StackTooWide: if memory ran out while several trained.
    """
    if why_not and stack_size > 1:
        notes.unstacked[why_not] += len(clients)
        stack_size = 1
    for start in range(0, len(clients), stack_size):
        some = clients[start : start + stack_size]
        if len(some) == 1:
            yield one(some[0], None)
        else:
            yield from _train_stack(some, one, notes)


def _train_stack(
    clients: Sequence[int], one: Callable[[int, ThreadedLockstep | None], Value], notes: StackingNotes
) -> Iterator[Value]:
    requested_loop = 0

    def run_waiting_loops(descents: Sequence[LocalLoop]) -> Sequence[LoopOutcome]:
        nonlocal requested_loop
        requested_loop += 1
        return run_loops(descents, notes)

    lockstep = ThreadedLockstep(run_waiting_loops)
    yield from lockstep.run_clients([partial(one, client, lockstep) for client in clients])
    if not requested_loop:
        notes.unstacked["the method makes its steps by itself"] += len(clients)


@contextmanager
def raise_stack_too_large() -> Iterator[None]:
    """What one of several clients at once does inside: if memory runs out, they were too many.

    Raises:
        StackTooWide: then, so that nobody is blamed or left out for what would go well with fewer.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StackTooLarge) or not is_out_of_memory(error):
            raise
        message = f"a client among several at once ran out of memory: {format_error(error)}"
        raise StackTooLarge(message, STACK_HINT) from error


class ThreadedLockstep:
    """A company of clients, for one round.

    Args:
        solve: makes the local loops that all the waiting clients ask for, in their order.
    """

    def __init__(self, solve: Callable[[Sequence[LocalLoop]], Sequence[LoopOutcome]]) -> None:
        self.solve = solve
        self._running: _ClientThread[object] | None = None

    def run_loop(self, descent: LocalLoop) -> TrainedModel:
        """The outcome of a local loop, for the client whose turn it is.

        Raises:
            Exception: what the loop raised for this client.
        """
        if self._running is None:
            raise RuntimeError("a local loop of a company was asked for by nobody in it; call run() first")
        return self._running.wait_for_loop(descent)

    def run_clients(self, members: Sequence[Callable[[], Value]]) -> Iterator[Value]:
        """Have all members run to their ends.

        Args:
            members: the work of each client.

        Yields:
            What each returned, in their order, as soon as it and those before it have ended.

        Raises:
            Exception: what the first of them raised; the others are given up.
        """
        courses = [_ClientThread(member) for member in members]
        try:
            waiting = courses
            outcomes: Sequence[LoopOutcome | None] = [None] * len(courses)
            line = deque(courses)
            while waiting:
                again = list[_ClientThread[Value]]()
                for course, outcome in zip(waiting, outcomes, strict=True):
                    if self._resume_client(course, outcome):
                        again.append(course)
                    while line and line[0].ended:
                        yield line.popleft().result()
                waiting, outcomes = again, ()
                if waiting:
                    outcomes = self.solve([course.asked for course in waiting if course.asked is not None])
        finally:
            for course in courses:
                with suppress(Exception):
                    self._resume_client(course, _LockstepAborted())

    def _resume_client(
        self, course: _ClientThread[Value], outcome: LoopOutcome | _LockstepAborted | None
    ) -> bool:
        """Give a client its turn; whether it waits for a local loop afterwards."""
        self._running = course  # type: ignore[assignment]
        try:
            return course.resume(outcome)
        finally:
            self._running = None


class _LockstepAborted(BaseException):
    """Ends a client whose company has come to nothing; no method's `except Exception` holds it up."""


class _ClientThread(Thread, Generic[Value]):
    """One client's way through a round."""

    def __init__(self, member: Callable[[], Value]) -> None:
        super().__init__(daemon=True)
        self.member = member
        self.asked: LocalLoop | None = None
        self._values: list[Value] = []
        self._error: BaseException | None = None
        self._outcome: LoopOutcome | _LockstepAborted | None = None
        self._turn, self._pause = Semaphore(0), Semaphore(0)
        self.ended = False

    def resume(self, outcome: LoopOutcome | _LockstepAborted | None) -> bool:
        """Run until the next local loop or the end; whether it is a loop. Raises what the client raised."""
        if self.ended or (self.ident is None and outcome is not None):
            return False
        if self.ident is None:
            self.start()
        self._outcome = outcome
        self._turn.release()
        self._pause.acquire()
        if self.ended:
            self.join()
        if self.ended and self._error is not None and not isinstance(self._error, _LockstepAborted):
            raise self._error
        return not self.ended

    def wait_for_loop(self, descent: LocalLoop) -> TrainedModel:
        """Called by the client: the outcome of a local loop."""
        self.asked = descent
        self._pause.release()
        self._turn.acquire()
        self.asked, outcome = None, self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is None:
            raise RuntimeError("a client went on without the outcome of its local loop")
        return outcome

    def result(self) -> Value:
        """What the client returned; once, so that nobody else keeps it."""
        return self._values.pop()

    def run(self) -> None:
        """The thread's own part."""
        self._turn.acquire()
        # The number of threads of OpenMP is each thread's own, and more than one would change the bits.
        torch.set_num_threads(1)
        try:
            self._values.append(self.member())
        except BaseException as error:
            self._error = error
        self.ended = True
        self._pause.release()
