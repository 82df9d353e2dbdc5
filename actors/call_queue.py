"""Work: calls to whichever client actor is free, made again when an actor dies."""

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
    first_line,
    make_death_error,
    unwrap_task_error,
)
from actors.actor_group import NODE_CHECK_SECONDS, ActorGroup

Submit: TypeAlias = Callable[[Any, int], list[Any]]
"""Calls an actor, telling how often the work was begun before; returns the references to the result and to
whatever comes with it."""


@dataclass(eq=False)
class ActorCall:
    """One call to whichever actor is free.

    Attributes:
        submit: makes the call.
        slot: which actor has it.
        references: what the last call returned.
        deaths: how many actors died over it.
        ended: whether it has a result or an error.
        value: its result.
        error: what its code raised, or making the call did, kept until somebody asks for the result.
    """

    submit: Submit
    slot: int = -1
    references: list[Any] = field(default_factory=list)
    deaths: int = 0
    ended: bool = False
    value: Any = None
    error: Exception | None = None


class CallQueue:
    """A line of tasks before the actors of a crew, in the order in which they came.

    Tasks of the next round may stand in line before those of this one are done, so that no actor is idle
    while the server thinks.

    Args:
        crew: the actors.
        max_retries: how often a task is begun again after its actor died.
    """

    def __init__(self, crew: ActorGroup, max_retries: int) -> None:
        self.crew, self.max_retries = crew, max_retries
        self._waiting: deque[ActorCall] = deque()
        self._running: dict[Any, ActorCall] = {}
        self._calls_by_slot = [0] * len(crew.actors)

    def add(self, tasks: Sequence[ActorCall]) -> None:
        """Put tasks at the end of the line; free actors begin at once."""
        self._waiting.extend(tasks)
        self._start_waiting_calls()

    def drop(self, tasks: Sequence[ActorCall]) -> None:
        """Nobody will ask for these any more: those that still wait are not begun."""
        self._waiting = deque(task for task in self._waiting if task not in tasks)

    def wait_for_results(self, tasks: Sequence[ActorCall]) -> list[Any]:
        """Wait for these tasks, while the others go on.

        Returns:
            Their results, in the tasks' order.

        Raises:
            NodeLost: if a node is gone, whoever's work was there.
            PoolFailed: if an actor does not start, or the actor of one of these tasks died again and again.
            OutOfMemory: if that is why.
            Exception: what a task's own code raised, or making its call did, as it was raised.
        """
        for _ in self.iterate_progress(tasks):
            pass
        return [task.value for task in tasks]

    def iterate_progress(self, tasks: Sequence[ActorCall]) -> Iterator[int]:
        """As `results`, but yields how many of the tasks have ended whenever something happened."""
        while not all(task.ended for task in tasks) and not _errors(tasks):
            self._wait_for_next_call()
            yield sum(task.ended for task in tasks)
        for error in _errors(tasks):
            raise error

    def _wait_for_next_call(self) -> None:
        """Wait until a task ends or an actor dies, and see to it."""
        self._start_waiting_calls()
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=NODE_CHECK_SECONDS)
        if not ready:
            self.crew.check_actors_alive()
            return
        task = self._running[ready[0]]
        try:
            self._store_result(task)
        except ACTOR_DEATH_ERRORS as error:
            self._replace_dead_actor(task.slot, error)
            self._calls_by_slot[task.slot] = 0
        else:
            del self._running[ready[0]]
            self._calls_by_slot[task.slot] -= 1

    def _start_waiting_calls(self) -> None:
        """Give every actor work, and a second piece ahead while there is plenty, so that none ever waits.

        What cannot be submitted has ended, with its error: another's round may be beginning here, and whoever
        waits for the task has to hear of it.
        """
        load = self._calls_by_slot
        while self._waiting:
            slot = min(range(len(load)), key=load.__getitem__)
            if load[slot] >= 2 or (load[slot] == 1 and len(self._waiting) <= len(load)):
                return
            task = self._waiting.popleft()
            task.slot = slot
            try:
                task.references = task.submit(self.crew.actors[slot], task.deaths)
            except Exception as error:
                task.error, task.ended = error, True
                continue
            self._running[task.references[0]] = task
            load[slot] += 1

    def _store_result(self, task: ActorCall) -> None:
        """Note what a task's call returned, or what its code raised.

        Raises:
            NodeLost: if what it needed, or what it made, is gone.
        """
        try:
            task.value = ray.get(task.references[0])
        except RayTaskError as error:
            task.error = unwrap_task_error(error, f"client actor {task.slot}")
            if isinstance(task.error, ACTOR_DEATH_ERRORS):
                raise task.error from None
        except LOST_OBJECT_ERRORS as error:
            task.error = error
        self.crew.record_join(task.slot)
        if isinstance(task.error, LOST_OBJECT_ERRORS):
            self.crew.check_actors_alive()
            raise self.crew.make_node_lost_error(
                task.slot, f"an object is gone: {first_line(task.error)}"
            ) from task.error
        task.ended = True

    def _replace_dead_actor(self, slot: int, error: Exception) -> None:
        """An actor died: put a new one in its place, and have everything that it had in hand run again.

        An actor does its tasks in turn, so it died over the first one that it has not answered.
        """
        lost = []
        for reference, task in [entry for entry in self._running.items() if entry[1].slot == slot]:
            del self._running[reference]
            task.error = None
            try:
                task.value, task.ended = ray.get(reference, timeout=0), True
            except Exception:
                lost.append(task)
        if lost:
            lost[0].deaths += 1
            if lost[0].deaths > self.max_retries:
                first = lost.pop(0)
                first.ended = True
                first.error = make_death_error("the actor of one span of clients died", first.deaths, error)
        self._waiting.extendleft(reversed(lost))
        self.crew.replace_actor(slot, error)


def _errors(tasks: Sequence[ActorCall]) -> list[Exception]:
    return [task.error for task in tasks if task.ended and task.error is not None]
