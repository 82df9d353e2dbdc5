"""CallQueue: a free client actor takes the next call; the calls of a dead actor are repeated."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ray
from ray.exceptions import RayTaskError

from actors.actor_errors import (
    ACTOR_DEATH_ERRORS,
    LOST_OBJECT_ERRORS,
    make_death_error,
    unwrap_task_error,
)
from actors.actor_group import NODE_CHECK_SECONDS, ActorGroup

Submit: TypeAlias = Callable[[Any, int], list[Any]]
"""A function (actor, attempt) that makes a remote call. It returns references: first the result, then any
further return values. `attempt` counts the actors that died during this call."""


@dataclass(eq=False)
class ActorCall:
    """One call, made to a free actor.

    Attributes:
        submit: makes the remote call.
        take: is given the result as soon as it is there, and returns what to keep of it.
        slot: of the actor that has the call.
        references: the return values of the last remote call.
        deaths: how many actors died during this call.
        ended: whether the call has a result or an error.
        value: the result, as `take` returns it.
        error: raised by the actor's code or by `submit`; `wait_for_results` raises it.
    """

    submit: Submit
    take: Callable[[Any], Any] = lambda result: result
    slot: int = -1
    references: list[Any] = field(default_factory=list)
    deaths: int = 0
    ended: bool = False
    value: Any = None
    error: Exception | None = None


class CallQueue:
    """The calls that wait for the actors of a group, first in, first out.

    Calls of the next round can be added before the calls of this round have ended: no actor is idle while the
    server works.

    Args:
        actor_group: the actors.
        max_retries: how often a call is repeated after its actor died.
    """

    def __init__(self, actor_group: ActorGroup, max_retries: int) -> None:
        self.actor_group, self.max_retries = actor_group, max_retries
        self._waiting: deque[ActorCall] = deque()
        self._running: dict[Any, ActorCall] = {}
        self._calls_by_slot = [0] * len(actor_group.actors)

    def add(self, calls: Sequence[ActorCall]) -> None:
        """Add calls to the end of the queue; free actors take them at once."""
        self._waiting.extend(calls)
        self._start_waiting_calls()

    def drop(self, calls: Sequence[ActorCall]) -> None:
        """Remove the calls that have not started; their results are no longer needed."""
        self._waiting = deque(call for call in self._waiting if call not in calls)

    def wait_for_results(self, calls: Sequence[ActorCall]) -> list[Any]:
        """Wait for these calls; the other calls go on.

        Returns:
            Their results, in the order of `calls`.

        Raises:
            NodeLost: if any node of the group is gone.
            ObjectLost: if an object is lost, and Ray counts every node as alive.
            PoolFailed: if an actor does not start, or too many actors died during one of these calls.
            OutOfMemory: if the actors died because memory ran out.
            Exception: any error of an actor's code or of `submit`, as it was raised.
        """
        for _ in self.iterate_progress(calls):
            pass
        return [call.value for call in calls]

    def iterate_progress(self, calls: Sequence[ActorCall]) -> Iterator[int]:
        """Wait like `wait_for_results`, and yield after each event how many of the calls have ended."""
        while not all(call.ended for call in calls) and not _list_errors(calls):
            self._wait_for_next_call()
            yield sum(call.ended for call in calls)
        for error in _list_errors(calls):
            raise error

    def _wait_for_next_call(self) -> None:
        """Wait until a call ends or an actor dies; store the result, or replace the actor."""
        self._start_waiting_calls()
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=NODE_CHECK_SECONDS)
        if not ready:
            self.actor_group.check_actors_alive()
            return
        call = self._running[ready[0]]
        try:
            self._store_result(call)
        except ACTOR_DEATH_ERRORS as error:
            self._replace_dead_actor(call.slot, error)
            self._calls_by_slot[call.slot] = 0
        else:
            del self._running[ready[0]]
            call.references[0] = None  # Ray keeps a result for as long as there is a reference
            self._calls_by_slot[call.slot] -= 1

    def _start_waiting_calls(self) -> None:
        """Give every actor one call, and a second one while many calls wait, so that no actor is idle.

        A call whose `submit` fails has ended with that error: the waiter for this call must get the error,
        and this function may run for another caller.
        """
        load = self._calls_by_slot
        while self._waiting:
            slot = min(range(len(load)), key=load.__getitem__)
            if load[slot] >= 2 or (load[slot] == 1 and len(self._waiting) <= len(load)):
                return
            call = self._waiting.popleft()
            call.slot = slot
            try:
                call.references = call.submit(self.actor_group.actors[slot], call.deaths)
            except Exception as error:
                call.error, call.ended = error, True
                continue
            self._running[call.references[0]] = call
            load[slot] += 1

    def _store_result(self, call: ActorCall) -> None:
        """Store the result of a call, or the error that the actor's code raised.

        Raises:
            NodeLost, ObjectLost: if an argument or the result of the call is lost.
        """
        try:
            call.value = call.take(ray.get(call.references[0]))
        except RayTaskError as error:
            call.error = unwrap_task_error(error, f"worker {call.slot}")
            if isinstance(call.error, ACTOR_DEATH_ERRORS):
                raise call.error from None
        except LOST_OBJECT_ERRORS as error:
            call.error = error
        self.actor_group.record_join(call.slot)
        if isinstance(call.error, LOST_OBJECT_ERRORS):
            self.actor_group.raise_object_loss(call.error)
        call.ended = True

    def _replace_dead_actor(self, slot: int, error: Exception) -> None:
        """Replace a dead actor, and repeat the calls that it had not answered.

        An actor runs its calls in order, so it died during the first call without an answer.
        """
        lost = []
        for reference, call in [entry for entry in self._running.items() if entry[1].slot == slot]:
            del self._running[reference]
            call.error = None
            try:
                result = ray.get(reference, timeout=0)
            except Exception:
                lost.append(call)
                continue
            call.value, call.ended = call.take(result), True
        if lost:
            lost[0].deaths += 1
            if lost[0].deaths > self.max_retries:
                first = lost.pop(0)
                first.ended = True
                first.error = make_death_error("the worker of one span of clients died", first.deaths, error)
        self._waiting.extendleft(reversed(lost))
        self.actor_group.replace_actor(slot, error)


def _list_errors(calls: Sequence[ActorCall]) -> list[Exception]:
    return [call.error for call in calls if call.ended and call.error is not None]
