"""Work: calls to whichever client actor is free, made again when an actor dies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ray
from ray.exceptions import RayTaskError

from actors.actor_errors import DEATHS, LOSSES, cause_of, first_line, gave_up
from actors.actor_group import LOOK_SECONDS, Crew

Submit: TypeAlias = Callable[[Any, int], list[Any]]
"""Calls an actor, telling how often the work was begun before; returns the references to the result and to
whatever comes with it."""


@dataclass(eq=False)
class Task:
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


class Work:
    """A line of tasks before the actors of a crew, in the order in which they came.

    Tasks of the next round may stand in line before those of this one are done, so that no actor is idle
    while the server thinks.

    Args:
        crew: the actors.
        max_retries: how often a task is begun again after its actor died.
    """

    def __init__(self, crew: Crew, max_retries: int) -> None:
        self.crew, self.max_retries = crew, max_retries
        self._waiting: deque[Task] = deque()
        self._running: dict[Any, Task] = {}
        self._load = [0] * len(crew.actors)

    def add(self, tasks: Sequence[Task]) -> None:
        """Put tasks at the end of the line; free actors begin at once."""
        self._waiting.extend(tasks)
        self._hand_out()

    def drop(self, tasks: Sequence[Task]) -> None:
        """Nobody will ask for these any more: those that still wait are not begun."""
        self._waiting = deque(task for task in self._waiting if task not in tasks)

    def results(self, tasks: Sequence[Task]) -> list[Any]:
        """Wait for these tasks, while the others go on.

        Returns:
            Their results, in the tasks' order.

        Raises:
            NodeLost: if a node is gone, whoever's work was there.
            PoolFailed: if an actor does not start, or the actor of one of these tasks died again and again.
            OutOfMemory: if that is why.
            Exception: what a task's own code raised, or making its call did, as it was raised.
        """
        for _ in self.progress(tasks):
            pass
        return [task.value for task in tasks]

    def progress(self, tasks: Sequence[Task]) -> Iterator[int]:
        """As `results`, but yields how many of the tasks have ended whenever something happened."""
        while not all(task.ended for task in tasks) and not _errors(tasks):
            self._step()
            yield sum(task.ended for task in tasks)
        for error in _errors(tasks):
            raise error

    def _step(self) -> None:
        """Wait until a task ends or an actor dies, and see to it."""
        self._hand_out()
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=LOOK_SECONDS)
        if not ready:
            self.crew.look()
            return
        task = self._running[ready[0]]
        try:
            self._settle(task)
        except DEATHS as error:
            self._bury(task.slot, error)
            self._load[task.slot] = 0
        else:
            del self._running[ready[0]]
            self._load[task.slot] -= 1

    def _hand_out(self) -> None:
        """Give every actor work, and a second piece ahead while there is plenty, so that none ever waits.

        What cannot be submitted has ended, with its error: another's round may be beginning here, and whoever
        waits for the task has to hear of it.
        """
        load = self._load
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

    def _settle(self, task: Task) -> None:
        """Note what a task's call returned, or what its code raised.

        Raises:
            NodeLost: if what it needed, or what it made, is gone.
        """
        try:
            task.value = ray.get(task.references[0])
        except RayTaskError as error:
            task.error = cause_of(error, f"client actor {task.slot}")
            if isinstance(task.error, DEATHS):
                raise task.error from None
        except LOSSES as error:
            task.error = error
        self.crew.welcome(task.slot)
        if isinstance(task.error, LOSSES):
            self.crew.look()
            raise self.crew.lost(task.slot, f"an object is gone: {first_line(task.error)}") from task.error
        task.ended = True

    def _bury(self, slot: int, error: Exception) -> None:
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
                first.error = gave_up("the actor of one span of clients died", first.deaths, error)
        self._waiting.extendleft(reversed(lost))
        self.crew.replace(slot, error)


def _errors(tasks: Sequence[Task]) -> list[Exception]:
    return [task.error for task in tasks if task.ended and task.error is not None]
