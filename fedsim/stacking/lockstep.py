"""Lockstep: clients of one stack run one after the other up to their next local loop, then train at once.

An algorithm's code around its local loops is ordinary code for one client. To keep it ordinary, each client
is a greenlet: a coroutine that may pause inside any function it calls. The clients run in their order, each
until it requests a local loop or ends. When all clients wait, their loops run as one stack, and they go on.
All of this happens in one thread: on a GPU, each thread takes a handle and a workspace of cuBLAS.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from greenlet import GreenletExit, getcurrent, greenlet

from fedsim.base.error_attribution import format_error, is_out_of_memory
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
    one: Callable[[int, StackLockstep | None], Value],
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
    clients: Sequence[int], one: Callable[[int, StackLockstep | None], Value], notes: StackingNotes
) -> Iterator[Value]:
    """Train the clients of one stack in lockstep; note if none of them requested a local loop."""
    requested_loop = 0

    def run_waiting_loops(loops: Sequence[LocalLoop]) -> Sequence[LoopOutcome]:
        nonlocal requested_loop
        requested_loop += 1
        return run_loops(loops, notes)

    lockstep = StackLockstep(run_waiting_loops)
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


@contextmanager
def keep_torch_modes() -> Iterator[None]:
    """Give whoever runs next torch's usual modes, and restore the modes of whoever waits after it.

    Torch keeps its modes for each thread: gradients, inference, autocast. The clients of a stack share one
    thread, and a client may wait for its local loop within `torch.no_grad()` or `torch.autocast`.
    """
    devices = ("cpu", "cuda")
    casts = [(each, torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in devices]
    cached = torch.is_autocast_cache_enabled()
    for device in devices:
        torch.set_autocast_enabled(device, False)
    try:
        with torch.inference_mode(False):  # restores whether gradients are recorded, too
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


class StackLockstep:
    """Lockstep of the clients of one stack, for one round.

    Args:
        solve: runs the local loops of all waiting clients and returns the outcomes in the same order.
    """

    def __init__(self, solve: Callable[[Sequence[LocalLoop]], Sequence[LoopOutcome]]) -> None:
        self.solve = solve
        self._caller: greenlet | None = None
        self._running: greenlet | None = None

    def run_loop(self, loop: LocalLoop) -> TrainedModel:
        """Run a local loop for the client whose turn it is, together with the loops of the other clients.

        Raises:
            Exception: the error of this client's loop.
        """
        if self._caller is None or getcurrent() is not self._running:
            raise RuntimeError(
                "run_loop is for the clients of a lockstep: call it from the work that run_clients runs, "
                "in its thread"
            )
        with keep_torch_modes():
            outcome: LoopOutcome = self._caller.switch(loop)
        try:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            del outcome  # an error that its own frames hold would keep the memory of its client

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
        clients = [greenlet(each) for each in work]
        values: dict[greenlet, Value] = {}
        try:
            unfinished, waiting = deque(clients), clients
            outcomes = deque[tuple[LoopOutcome, ...]]([()] * len(clients))
            while waiting:
                requested = dict[greenlet, LocalLoop]()
                for client in waiting:
                    # This frame keeps no outcome, as in `run_loops`.
                    answer = self._resume_client(client, *outcomes.popleft())
                    if isinstance(answer, GreenletExit):
                        raise RuntimeError("a client ended itself: GreenletExit is for the lockstep alone")
                    (values if client.dead else requested)[client] = answer
                    del answer
                    while unfinished and unfinished[0].dead:
                        yield values.pop(unfinished.popleft())
                waiting = list(requested)
                if waiting:
                    outcomes = deque((each,) for each in self.solve(list(requested.values())))
        finally:
            for client in clients:
                with suppress(Exception), keep_torch_modes():
                    client.throw()  # GreenletExit, which no `except Exception` catches

    def _resume_client(self, client: greenlet, *outcome: LoopOutcome) -> Any:
        """Let a client run; return the local loop that it now waits for, or the value with which it ended."""
        self._caller, self._running = getcurrent(), client
        try:
            with keep_torch_modes():
                return client.switch(*outcome)
        finally:
            self._caller = self._running = None
