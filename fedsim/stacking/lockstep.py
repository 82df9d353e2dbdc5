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

from fedsim.core.error_attribution import as_text, is_memory
from fedsim.errors import StackTooWide
from fedsim.stacking.grouping import STACK_HINT, Stacking, solved
from fedsim.training.local_loop import Descent, Trained

Outcome: TypeAlias = "Trained | Exception"
"""Of a local loop: what came out, or what it raised."""

Value = TypeVar("Value")


def at_once(
    clients: Sequence[int],
    width: int,
    why_not: str,
    one: Callable[[int, Together | None], Value],
    notes: Stacking,
) -> Iterator[Value]:
    """Train clients of one architecture, so many at once.

    Args:
        clients: who.
        width: how many; 1 for one by one.
        why_not: why they cannot train at once, "" if they can.
        one: trains one client, in the company that it is given.
        notes: how the local loops were made is added to it.

    Yields:
        What `one` returned for each, in their order.

    Raises:
        StackTooWide: if memory ran out while several trained.
    """
    if why_not and width > 1:
        notes.alone[why_not] += len(clients)
        width = 1
    for start in range(0, len(clients), width):
        some = clients[start : start + width]
        if len(some) == 1:
            yield one(some[0], None)
        else:
            yield from _accompanied(some, one, notes)


def _accompanied(
    clients: Sequence[int], one: Callable[[int, Together | None], Value], notes: Stacking
) -> Iterator[Value]:
    asked = 0

    def solve(descents: Sequence[Descent]) -> Sequence[Outcome]:
        nonlocal asked
        asked += 1
        return solved(descents, notes)

    company = Together(solve)
    yield from company.run([partial(one, client, company) for client in clients])
    if not asked:
        notes.alone["the method makes its steps by itself"] += len(clients)


@contextmanager
def room_for_one() -> Iterator[None]:
    """What one of several clients at once does inside: if memory runs out, they were too many.

    Raises:
        StackTooWide: then, so that nobody is blamed or left out for what would go well with fewer.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StackTooWide) or not is_memory(error):
            raise
        message = f"a client among several at once ran out of memory: {as_text(error)}"
        raise StackTooWide(message, STACK_HINT) from error


class Together:
    """A company of clients, for one round.

    Args:
        solve: makes the local loops that all the waiting clients ask for, in their order.
    """

    def __init__(self, solve: Callable[[Sequence[Descent]], Sequence[Outcome]]) -> None:
        self.solve = solve
        self._running: _Course[object] | None = None

    def descend(self, descent: Descent) -> Trained:
        """The outcome of a local loop, for the client whose turn it is.

        Raises:
            Exception: what the loop raised for this client.
        """
        if self._running is None:
            raise RuntimeError("a local loop of a company was asked for by nobody in it; call run() first")
        return self._running.wait_for(descent)

    def run(self, members: Sequence[Callable[[], Value]]) -> Iterator[Value]:
        """Have all members run to their ends.

        Args:
            members: the work of each client.

        Yields:
            What each returned, in their order, as soon as it and those before it have ended.

        Raises:
            Exception: what the first of them raised; the others are given up.
        """
        courses = [_Course(member) for member in members]
        try:
            waiting = courses
            outcomes: Sequence[Outcome | None] = [None] * len(courses)
            line = deque(courses)
            while waiting:
                again = list[_Course[Value]]()
                for course, outcome in zip(waiting, outcomes, strict=True):
                    if self._goes_on(course, outcome):
                        again.append(course)
                    while line and line[0].over:
                        yield line.popleft().result()
                waiting, outcomes = again, ()
                if waiting:
                    outcomes = self.solve([course.asked for course in waiting if course.asked is not None])
        finally:
            for course in courses:
                with suppress(Exception):
                    self._goes_on(course, _GivenUp())

    def _goes_on(self, course: _Course[Value], outcome: Outcome | _GivenUp | None) -> bool:
        """Give a client its turn; whether it waits for a local loop afterwards."""
        self._running = course  # type: ignore[assignment]
        try:
            return course.go_on(outcome)
        finally:
            self._running = None


class _GivenUp(BaseException):
    """Ends a client whose company has come to nothing; no method's `except Exception` holds it up."""


class _Course(Thread, Generic[Value]):
    """One client's way through a round."""

    def __init__(self, member: Callable[[], Value]) -> None:
        super().__init__(daemon=True)
        self.member = member
        self.asked: Descent | None = None
        self._values: list[Value] = []
        self._error: BaseException | None = None
        self._outcome: Outcome | _GivenUp | None = None
        self._turn, self._pause = Semaphore(0), Semaphore(0)
        self.over = False

    def go_on(self, outcome: Outcome | _GivenUp | None) -> bool:
        """Run until the next local loop or the end; whether it is a loop. Raises what the client raised."""
        if self.over or (self.ident is None and outcome is not None):
            return False
        if self.ident is None:
            self.start()
        self._outcome = outcome
        self._turn.release()
        self._pause.acquire()
        if self.over:
            self.join()
        if self.over and self._error is not None and not isinstance(self._error, _GivenUp):
            raise self._error
        return not self.over

    def wait_for(self, descent: Descent) -> Trained:
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
        self.over = True
        self._pause.release()
