"""Lockstep: clients of one stack run one after the other up to their next local loop, then train at once.

An algorithm's code around its local loops is ordinary code for one client. To keep it ordinary, each client
has a thread, used as a coroutine. Exactly one thread runs at any time, in the order of the clients, until it
requests a local loop or ends. When all clients wait, their loops run as one stack, and the clients go on.
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
"""The trained model of a local loop, or the exception that the loop raised."""

Value = TypeVar("Value")


def train_at_once(
    clients: Sequence[int],
    stack_size: int,
    why_not: str,
    one: Callable[[int, ThreadedLockstep | None], Value],
    notes: StackingNotes,
) -> Iterator[Value]:
    """Train clients of one architecture, `stack_size` clients at once.

    Args:
        clients: ids of the clients.
        stack_size: number of clients that train at once; 1 for one by one.
        why_not: reason why these clients cannot train at once; "" if they can.
        one: trains one client in the given lockstep (None: alone).
        notes: the counts of stacked and unstacked loops are added to it.

    Yields:
        The return value of `one` for each client, in the order of the clients.

    Raises:
        StackTooLarge: if memory ran out while several clients trained at once.
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
    """Train the clients of one stack in lockstep; note if none of them requested a local loop."""
    requested_loop = 0

    def run_waiting_loops(loops: Sequence[LocalLoop]) -> Sequence[LoopOutcome]:
        nonlocal requested_loop
        requested_loop += 1
        return run_loops(loops, notes)

    lockstep = ThreadedLockstep(run_waiting_loops)
    yield from lockstep.run_clients([partial(one, client, lockstep) for client in clients])
    if not requested_loop:
        notes.unstacked["the method makes its steps by itself"] += len(clients)


@contextmanager
def raise_stack_too_large() -> Iterator[None]:
    """Context manager for the work of one client in a stack: report lack of memory as a too large stack.

    Raises:
        StackTooLarge: if memory ran out inside. The client itself is not at fault: a smaller stack may fit.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StackTooLarge) or not is_out_of_memory(error):
            raise
        message = f"a client among several at once ran out of memory: {format_error(error)}"
        raise StackTooLarge(message, STACK_HINT) from error


class ThreadedLockstep:
    """Lockstep of the clients of one stack, for one round.

    Args:
        solve: runs the local loops of all waiting clients and returns the outcomes in the same order.
    """

    def __init__(self, solve: Callable[[Sequence[LocalLoop]], Sequence[LoopOutcome]]) -> None:
        self.solve = solve
        self._running: _ClientThread[object] | None = None

    def run_loop(self, loop: LocalLoop) -> TrainedModel:
        """Run a local loop for the client whose turn it is, together with the loops of the other clients.

        Raises:
            Exception: the error of this client's loop.
        """
        if self._running is None:
            raise RuntimeError(
                "run_loop is for the clients of a lockstep: call it from the work that run_clients runs"
            )
        return self._running.wait_for_loop(loop)

    def run_clients(self, work: Sequence[Callable[[], Value]]) -> Iterator[Value]:
        """Run the work of all clients to its end.

        Args:
            work: the work of each client.

        Yields:
            The return values in the order of the clients, each as soon as that client and all clients before
            it have ended.

        Raises:
            Exception: the first error of a client; the other clients are then aborted.
        """
        threads = [_ClientThread(each) for each in work]
        try:
            waiting = threads
            outcomes: deque[LoopOutcome | None] = deque([None] * len(threads))
            unfinished = deque(threads)
            while waiting:
                still_waiting = list[_ClientThread[Value]]()
                for thread in waiting:
                    # This frame keeps no outcome, as in `run_loops`.
                    if self._resume_client(thread, outcomes.popleft()):
                        still_waiting.append(thread)
                    while unfinished and unfinished[0].ended:
                        yield unfinished.popleft().result()
                waiting = still_waiting
                if waiting:
                    requested = [thread.requested for thread in waiting]
                    outcomes = deque(self.solve([loop for loop in requested if loop is not None]))
        finally:
            for thread in threads:
                with suppress(Exception):
                    self._resume_client(thread, _LockstepAborted())

    def _resume_client(
        self, thread: _ClientThread[Value], outcome: LoopOutcome | _LockstepAborted | None
    ) -> bool:
        """Let a client run; return whether it now waits for a local loop."""
        self._running = thread  # type: ignore[assignment]
        try:
            return thread.resume(outcome)
        finally:
            self._running = None


class _LockstepAborted(BaseException):
    """Ends the thread of a client in an aborted lockstep.

    It is a `BaseException`, so an `except Exception` in an algorithm does not catch it.
    """


class _ClientThread(Thread, Generic[Value]):
    """Thread that runs the work of one client; it pauses at every local loop."""

    def __init__(self, work: Callable[[], Value]) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.requested: LocalLoop | None = None
        self._values: list[Value] = []
        self._error: BaseException | None = None
        self._outcome: LoopOutcome | _LockstepAborted | None = None
        self._turn, self._pause = Semaphore(0), Semaphore(0)
        self.ended = False

    def resume(self, outcome: LoopOutcome | _LockstepAborted | None) -> bool:
        """Run until the next local loop (return True) or the end (False); raise the error of the client."""
        if self.ended or (self.ident is None and outcome is not None):
            return False
        if self.ident is None:
            self.start()
        self._outcome = outcome
        self._turn.release()
        self._pause.acquire()
        if self.ended:
            self.join()
        error, self._error = self._error, None
        try:
            if error is not None and not isinstance(error, _LockstepAborted):
                raise error
        finally:
            del error  # an error that its own frames hold would keep the memory of its client
        return not self.ended

    def wait_for_loop(self, loop: LocalLoop) -> TrainedModel:
        """Request a local loop and wait for its outcome; called by the client's own code."""
        self.requested = loop
        self._pause.release()
        self._turn.acquire()
        self.requested = None
        outcome, self._outcome = self._outcome, None
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is None:
                raise RuntimeError("a client went on without the outcome of its local loop")
            return outcome
        finally:
            del outcome  # as in `resume`

    def result(self) -> Value:
        """Return the return value of the client and forget it, which frees its memory."""
        return self._values.pop()

    def run(self) -> None:
        """Run the client's work in this thread, from its first turn on."""
        self._turn.acquire()
        # OpenMP counts its threads per Python thread; more than one would change the last bits of results.
        torch.set_num_threads(1)
        try:
            self._values.append(self.work())
        except BaseException as error:
            self._error = error
        self.ended = True
        self._pause.release()
