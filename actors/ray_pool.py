"""RayPool: clients on actors. What it computes is what SerialPool computes, bit for bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError

from fedsim import tree
from fedsim.blocks import Block, cut, spans
from fedsim.core import Algorithm, Context, Reduced, Score, Survey
from fedsim.errors import PoolFailed
from fedsim.evaluation import total
from fedsim.pools import broadcast, bytes_down, deployed, instruct, questioned, survey_traffic
from fedsim.population import Population
from fedsim.reduce import combine
from fedsim.tree import Tree
from fedsim.worker import SHARD

from .crew import Crew

MOST_ASKED = 1000
"""A survey asks at most so many clients in one call, so that little is lost with an actor."""

Submit: TypeAlias = Callable[[Any], list[Any]]
"""Calls an actor; returns the references to the result and to whatever comes with it."""


@dataclass
class _Task:
    """One call to whichever actor is free.

    Attributes:
        submit: makes the call.
        slot: which actor has it.
        references: what the last call returned.
        attempts: calls so far.
    """

    submit: Submit
    slot: int = -1
    references: list[Any] = field(default_factory=list)
    attempts: int = 0


class RayPool:
    """Clients on actors; memories stay in the object store, owned by the process that made the pool.

    Args:
        algorithm: whose clients to run.
        population: the federation.
        crew: the actors.
        max_retries: how often a span of clients is run again after its actor died.
    """

    def __init__(
        self, algorithm: Algorithm, population: Population, crew: Crew, *, max_retries: int = 3
    ) -> None:
        self.population, self.crew, self.max_retries = population, crew, max_retries
        self.actors = crew.join(ray.put(algorithm), ray.put(population))
        self._memories: dict[int, Any] = {}

    def train(self, algorithm: Algorithm, ctx: Context, state: Any, cohort: Sequence[int]) -> Reduced:
        """Run one round of these clients; see `ClientPool`."""
        broadcasts, restarts = broadcast(algorithm, ctx, state), self.crew.restarts
        instructions = instruct(algorithm, ctx, state, cohort)
        sent = ray.put(tree.to_numpy(broadcasts))
        letters = {client: tree.to_numpy(value) for client, value in instructions.items()}
        blocks = cut(cohort, self.population.steps, len(ctx.nets))
        steps = [sum(self.population.steps(client) for client in block) for block in blocks]
        cuts = [(span.start, blocks[span.start : span.stop]) for span in spans(steps, len(self.crew.actors))]
        tasks = [
            _Task(self._training(algorithm, ctx.round, start, mine, sent, letters)) for start, mine in cuts
        ]
        results = [result.unpacked() for result in self._run(tasks)]
        if algorithm.stateful:
            for (_, mine), task in zip(cuts, tasks, strict=True):
                self._memories.update(zip(_clients(mine), task.references[1:], strict=True))
        engine = {
            "pool": "ray",
            "width": 1,
            "actors": len(self.crew.actors),
            "restarts": self.crew.restarts - restarts,
        }
        down = bytes_down(broadcasts, instructions, cohort)
        return combine(algorithm, ctx, results, cohort, down, engine)

    def _training(
        self,
        algorithm: Algorithm,
        round: int,
        start: int,
        blocks: Sequence[Block],
        sent: Any,
        letters: Mapping[int, Tree],
    ) -> Submit:
        clients = _clients(blocks)
        mine = {client: letters[client] for client in clients if client in letters}
        memories = [self._memories.get(client) for client in clients] if algorithm.stateful else []
        returns = 1 + len(clients) * algorithm.stateful

        def submit(actor: Any) -> list[Any]:
            call = actor.train if returns == 1 else actor.train.options(num_returns=returns)
            references = call.remote(round, start, blocks, sent, mine, *memories)
            return list(references) if returns > 1 else [references]

        return submit

    def measure(self, algorithm: Algorithm, ctx: Context, state: Any, clients: Sequence[int]) -> Survey:
        """The mean loss of the first deployed model on each client's data; see `ClientPool`."""
        models = questioned(algorithm, ctx, state)
        sent, size = ray.put(tree.to_numpy(models)), _portion(len(clients), len(self.crew.actors))

        def asking(some: Sequence[int]) -> Submit:
            return lambda actor: [actor.measure.remote(ctx.round, sent, some)]

        portions = [clients[start : start + size] for start in range(0, len(clients), size)]
        losses = self._run([_Task(asking(some)) for some in portions])
        return Survey(np.concatenate(losses), survey_traffic(models, clients))

    def evaluate(self, algorithm: Algorithm, ctx: Context, state: Any) -> Mapping[str, Score]:
        """Score every deployed model on the whole test set, a shard at a time."""
        models = ray.put(tree.to_numpy(deployed(algorithm, ctx, state)))
        shards = -(-len(self.population.dataset.test) // SHARD)

        def scoring(shard: int) -> Submit:
            return lambda actor: [actor.score.remote(ctx.round, models, shard)]

        return total(self._run([_Task(scoring(shard)) for shard in range(shards)]))

    def _run(self, tasks: Sequence[_Task]) -> list[Any]:
        """Run every task on whichever actor is free, again if an actor dies; results in the tasks' order."""
        waiting, running = deque(tasks), dict[Any, _Task]()
        load = [0] * len(self.crew.actors)
        results: dict[int, Any] = {}
        while waiting or running:
            self._hand_out(waiting, running, load)
            ready, _ = ray.wait(list(running), num_returns=1)
            task = running.pop(ready[0])
            load[task.slot] -= 1
            try:
                results[id(task)] = _value(ready[0])
            except RayActorError as error:
                self._again(task, error, running, load)
                waiting.appendleft(task)
        return [results[id(task)] for task in tasks]

    def _hand_out(self, waiting: deque[_Task], running: dict[Any, _Task], load: list[int]) -> None:
        """Give every actor work, and a second piece ahead while there is plenty, so that none ever waits."""
        while waiting:
            slot = min(range(len(load)), key=load.__getitem__)
            if load[slot] >= 2 or (load[slot] == 1 and len(waiting) <= len(load)):
                return
            task = waiting.popleft()
            task.slot, task.attempts = slot, task.attempts + 1
            task.references = task.submit(self.crew.actors[slot])
            running[task.references[0]] = task
            load[slot] += 1

    def _again(self, task: _Task, error: Exception, running: dict[Any, _Task], load: list[int]) -> None:
        """An actor died: put a new one in its place, and have everything that it had in hand run again."""
        if task.attempts > self.max_retries:
            raise PoolFailed(
                f"a span of clients was tried {task.attempts} times and its actor died each time: {error}",
                "look at the log for the cause; if memory ran out, use fewer workers per node",
            ) from error
        self.crew.replace(task.slot)
        lost = [reference for reference, other in running.items() if other.slot == task.slot]
        for reference in lost:
            other = running.pop(reference)
            other.references = other.submit(self.crew.actors[other.slot])
            running[other.references[0]] = other

    def memories(self, clients: Iterable[int] | None = None) -> Mapping[int, Tree]:
        """What these clients keep, by default all; downloads it."""
        chosen = self._memories if clients is None else clients
        held = {client: self._memories[client] for client in chosen if client in self._memories}
        found = zip(held, ray.get(list(held.values())), strict=True)
        return {client: tree.from_numpy(memory) for client, memory in found}

    def restore(self, memories: Mapping[int, Tree]) -> None:
        """Put the memories of these clients back, as after a restart."""
        for client, memory in memories.items():
            self._memories[client] = ray.put(tree.to_numpy(memory))

    def close(self) -> None:
        """End the actors and give their resources back."""
        self.crew.close()


def _portion(clients: int, actors: int) -> int:
    """How many clients to ask in one call; each is scored for itself, so the answers do not depend on it."""
    return min(MOST_ASKED, max(1, -(-clients // (4 * actors))))


def _clients(blocks: Sequence[Block]) -> list[int]:
    return [client for block in blocks for client in block]


def _value(reference: Any) -> Any:
    """The result behind a reference; an error of the client's own code as it was raised."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error, RayActorError):
            raise
        raise error.cause from None
