"""RayPool: clients on actors. What it computes is what SerialPool computes, bit for bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import ray
from ray.exceptions import RayTaskError

from fedsim import tree, wire
from fedsim.blocks import Block, cut, spans
from fedsim.core import Algorithm, Context, Reduced, Score, Survey
from fedsim.digest import Fingerprint, memory_marks
from fedsim.errors import NodeLost
from fedsim.evaluation import total
from fedsim.faults import DEFAULT, Faults
from fedsim.pools import broadcast, bytes_down, deployed, instruct, questioned, survey_traffic
from fedsim.population import Population
from fedsim.reduce import combine
from fedsim.tree import Tree
from fedsim.worker import SHARD

from .crew import LOOK_SECONDS, Crew
from .deaths import DEATHS, LOSSES, cause_of, first_line, gave_up

SPAN_MEMORY_BYTES = 256 << 20
"""About how much the memories of one span's clients may take in an actor, or on its share of a GPU."""

MOST_ASKED = 1000
"""A survey asks at most so many clients in one call, so that little is lost with an actor."""

Submit: TypeAlias = Callable[[Any, int], list[Any]]
"""Calls an actor, telling how often the work was begun before; returns the references to the result and to
whatever comes with it."""


@dataclass
class _Task:
    """One call to whichever actor is free.

    Attributes:
        submit: makes the call.
        slot: which actor has it.
        references: what the last call returned.
        deaths: how many actors died over it.
    """

    submit: Submit
    slot: int = -1
    references: list[Any] = field(default_factory=list)
    deaths: int = 0


class RayPool:
    """Clients on actors; memories stay in the object store, owned by the process that made the pool.

    Args:
        algorithm: whose clients to run.
        population: the federation.
        crew: the actors.
        faults: what a client that raises does, and how often a dead actor's work is begun again.
    """

    def __init__(
        self, algorithm: Algorithm, population: Population, crew: Crew, *, faults: Faults = DEFAULT
    ) -> None:
        self.population, self.crew, self.faults = population, crew, faults
        self.actors = crew.join(ray.put(algorithm), ray.put(population), faults)
        self._memories: dict[int, Any] = {}
        self._fingerprint = Fingerprint()

    def train(self, algorithm: Algorithm, ctx: Context, state: Any, cohort: Sequence[int]) -> Reduced:
        """Run one round of these clients; see `ClientPool`."""
        broadcasts, restarts = broadcast(algorithm, ctx, state), self.crew.restarts
        instructions = instruct(algorithm, ctx, state, cohort)
        sent = ray.put(tree.to_numpy(broadcasts))
        letters = {client: tree.to_numpy(value) for client, value in instructions.items()}
        blocks = cut(cohort, self.population.steps, len(ctx.nets))
        steps = [sum(self.population.steps(client) for client in block) for block in blocks]
        most = most_blocks(blocks, broadcasts) if algorithm.stateful else None
        parts = spans(steps, len(self.crew.actors), most)
        cuts = [(span.start, blocks[span.start : span.stop]) for span in parts]
        tasks = [
            _Task(self._training(algorithm, ctx.round, start, mine, sent, letters)) for start, mine in cuts
        ]
        results = [result.unpacked() for result in self._run(tasks)]
        if algorithm.stateful:
            for (_, mine), task, result in zip(cuts, tasks, results, strict=True):
                new = zip(_clients(mine), task.references[1:], strict=True)
                self._memories.update(entry for entry in new if entry[0] not in result.errors)
        engine = {
            "pool": "ray",
            "width": 1,
            "actors": len(self.crew.actors),
            "restarts": self.crew.restarts - restarts,
        }
        down = bytes_down(broadcasts, instructions, cohort)
        return combine(algorithm, ctx, results, cohort, down, engine, self._fingerprint)

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

        def submit(actor: Any, attempt: int) -> list[Any]:
            call = actor.train if returns == 1 else actor.train.options(num_returns=returns)
            references = call.remote(round, start, attempt, blocks, sent, mine, *memories)
            return list(references) if returns > 1 else [references]

        return submit

    def measure(self, algorithm: Algorithm, ctx: Context, state: Any, clients: Sequence[int]) -> Survey:
        """The mean loss of the first deployed model on each client's data; see `ClientPool`."""
        models = questioned(algorithm, ctx, state)
        sent, size = ray.put(tree.to_numpy(models)), _portion(len(clients), len(self.crew.actors))

        def asking(some: Sequence[int]) -> Submit:
            return lambda actor, _: [actor.measure.remote(ctx.round, sent, some)]

        portions = [clients[start : start + size] for start in range(0, len(clients), size)]
        losses = self._run([_Task(asking(some)) for some in portions])
        return Survey(np.concatenate(losses), survey_traffic(models, clients))

    def evaluate(self, algorithm: Algorithm, ctx: Context, state: Any) -> Mapping[str, Score]:
        """Score every deployed model on the whole test set, a shard at a time."""
        models = ray.put(tree.to_numpy(deployed(algorithm, ctx, state)))
        shards = -(-len(self.population.dataset.test) // SHARD)

        def scoring(shard: int) -> Submit:
            return lambda actor, _: [actor.score.remote(ctx.round, models, shard)]

        return total(self._run([_Task(scoring(shard)) for shard in range(shards)]))

    def _run(self, tasks: Sequence[_Task]) -> list[Any]:
        """Run every task on whichever actor is free, again if an actor dies; results in the tasks' order."""
        waiting, running = deque(tasks), dict[Any, _Task]()
        load = [0] * len(self.crew.actors)
        results: dict[int, Any] = {}
        while waiting or running:
            self._hand_out(waiting, running, load)
            ready, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)
            if not ready:
                self.crew.look()
                continue
            task = running[ready[0]]
            try:
                results[id(task)] = self._value(task)
            except DEATHS as error:
                self._bury(task.slot, error, waiting, running, results)
                load[task.slot] = 0
            else:
                del running[ready[0]]
                load[task.slot] -= 1
        return [results[id(task)] for task in tasks]

    def _hand_out(self, waiting: deque[_Task], running: dict[Any, _Task], load: list[int]) -> None:
        """Give every actor work, and a second piece ahead while there is plenty, so that none ever waits."""
        while waiting:
            slot = min(range(len(load)), key=load.__getitem__)
            if load[slot] >= 2 or (load[slot] == 1 and len(waiting) <= len(load)):
                return
            task = waiting.popleft()
            task.slot = slot
            task.references = task.submit(self.crew.actors[slot], task.deaths)
            running[task.references[0]] = task
            load[slot] += 1

    def _value(self, task: _Task) -> Any:
        """What a task's call returned; an error of the client's own code as it was raised.

        Raises:
            NodeLost: if what it needed, or what it made, is gone.
        """
        try:
            value = ray.get(task.references[0])
        except RayTaskError as error:
            cause = cause_of(error)
        except LOSSES as error:
            cause = error
        else:
            self.crew.welcome(task.slot)
            return value
        self.crew.welcome(task.slot)
        if isinstance(cause, LOSSES):
            node = self.crew.members[task.slot].get("node", "unknown")
            raise NodeLost(node, task.slot, f"an object is gone: {first_line(cause)}") from cause
        raise cause from None

    def _bury(
        self,
        slot: int,
        error: Exception,
        waiting: deque[_Task],
        running: dict[Any, _Task],
        results: dict[int, Any],
    ) -> None:
        """An actor died: put a new one in its place, and have everything that it had in hand run again.

        An actor does its tasks in turn, so it died over the first one that it has not answered.
        """
        lost = []
        for reference, task in [entry for entry in running.items() if entry[1].slot == slot]:
            del running[reference]
            try:
                results[id(task)] = ray.get(reference, timeout=0)
            except Exception:
                lost.append(task)
        waiting.extendleft(reversed(lost))
        if lost:
            lost[0].deaths += 1
            if lost[0].deaths > self.faults.max_retries:
                raise gave_up("the actor of one span of clients died", lost[0].deaths, error) from error
        self.crew.replace(slot, error)

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
        self._fingerprint.update(memory_marks(memories))

    def close(self) -> None:
        """End the actors and give their resources back."""
        self.crew.close()


def most_blocks(blocks: Sequence[Block], broadcasts: Mapping[str, Mapping[str, Tree]]) -> int:
    """How many blocks a span may hold where clients keep memories: an actor has all of a span's at once.

    What a client keeps is of the order of what it receives; the old and the new memories count.
    """
    received = max(sum(wire.message_bytes(message).values()) for message in broadcasts.values())
    clients = SPAN_MEMORY_BYTES // max(1, 2 * received)
    return max(1, clients // max(map(len, blocks), default=1))


def _portion(clients: int, actors: int) -> int:
    """How many clients to ask in one call; each is scored for itself, so the answers do not depend on it."""
    return min(MOST_ASKED, max(1, -(-clients // (4 * actors))))


def _clients(blocks: Sequence[Block]) -> list[int]:
    return [client for block in blocks for client in block]
