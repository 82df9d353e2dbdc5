"""RayPool: clients on actors. What it computes is what one process would compute, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
import ray

from actors.actor_errors import LOSSES, first_line
from actors.actor_group import Crew
from actors.calls import Submit, Task, Work
from actors.client_messages import Letter, letters
from fedsim.base import tree, wire
from fedsim.base.digest import Fingerprint, memory_marks
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, Examination, Reduced, Score, Survey
from fedsim.core.personal_scores import joined
from fedsim.engine.blocks import Block, cut, shares, spans
from fedsim.engine.faults import DEFAULT, Faults
from fedsim.engine.personal_evaluation import examination_work, examinees
from fedsim.engine.pools import (
    broadcast,
    bytes_down,
    deployed,
    explain,
    halved,
    handover,
    instruct,
    questioned,
    stack_widths,
    survey_traffic,
)
from fedsim.engine.reduction import SpanResult, combine
from fedsim.engine.scores import total
from fedsim.engine.worker import num_shards
from fedsim.errors import StackTooWide
from fedsim.stacking.stack_size import Stack, width_of

SPAN_MEMORY_BYTES = 256 << 20
"""About how much the memories of one span's clients may take in an actor, or on its share of a GPU."""

LITTLE_SECONDS = 0.02
"""A round of less work for each worker is dealt out in one message to each: there is little to balance."""

MOST_ASKED = 1000
"""A survey asks at most so many clients in one call, so that little is lost with an actor."""


class _Begun(NamedTuple):
    """A round that actors are at work on: the blocks of each task, and all local steps."""

    blocks: list[Sequence[Block]]
    tasks: list[Task]
    steps: int


class RayPool:
    """Clients on actors; memories stay in the object store, owned by the process that made the pool.

    Args:
        algorithm: whose clients to run.
        population: the federation.
        crew: the actors.
        faults: what a client that raises does, and how often a dead actor's work is begun again.
        stack: how many clients train at once in an actor; see `fedsim.stacking.stack_size`.
        graphs: have the steps of such clients played as CUDA graphs; see `fedsim.stacking.graph_replay`.

    Attributes:
        population: over the object store's arrays, as every actor of this node reads them.
        width: how many clients train at once now; halved for good where they need too much memory.
        widths: {round, from 1: the width that it had when it ran before}, the most that it may have again.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        crew: Crew,
        *,
        faults: Faults = DEFAULT,
        stack: Stack = 1,
        graphs: bool = False,
    ) -> None:
        self.crew, self.faults, shared = crew, faults, ray.put(population)
        self.population: Population = ray.get(shared)
        self.actors = crew.join(ray.put(algorithm), shared, faults, graphs)
        self.width = width_of(stack, self.population, self.actors[0]["device"])
        self.widths: Mapping[int, int] = {}
        self._memories: dict[int, Any] = {}
        self._fingerprint = Fingerprint()
        self._work = Work(crew, faults.max_retries)
        self._restarts = crew.restarts
        self._pace = inf  # seconds of a local step in the last round

    def train(
        self, algorithm: Algorithm, ctx: Context, state: Any, cohort: Sequence[int]
    ) -> Callable[[], Reduced]:
        """Begin one round of these clients; see `ClientPool`."""
        broadcasts = broadcast(algorithm, ctx, state)
        instructions = instruct(algorithm, ctx, state, cohort)
        sent = ray.put(tree.to_numpy(broadcasts))
        written = letters(instructions)
        self.width = min(self.width, self.widths.get(ctx.round + 1, self.width))

        def begin() -> _Begun:
            width = stack_widths(algorithm, ctx.nets, self.width)
            blocks = cut(cohort, self.population.steps, len(ctx.nets), width)
            steps = [sum(self.population.steps(client) for client in block) for block in blocks]
            most = most_blocks(blocks, broadcasts, model_bytes(ctx)) if algorithm.stateful else None
            cuts = [(span.start, blocks[span.start : span.stop]) for span in self._parts(steps, most)]
            tasks = [Task(self._training(algorithm, ctx.round, *part, sent, written)) for part in cuts]
            self._work.add(tasks)
            return _Begun([mine for _, mine in cuts], tasks, sum(steps))

        begun, down = begin(), bytes_down(algorithm, ctx, broadcasts, instructions, cohort)

        def finish() -> Reduced:
            ended, results = self._results(begun, begin)
            self._pace = sum(result.seconds for result in results) / max(1, ended.steps)
            if algorithm.stateful:
                for mine, task, result in zip(ended.blocks, ended.tasks, results, strict=True):
                    new = zip(_clients(mine), task.references[1:], strict=True)
                    self._memories.update(entry for entry in new if entry[0] not in result.errors)
            return combine(algorithm, ctx, results, cohort, down, self._engine(), self._fingerprint)

        return finish

    def _results(self, begun: _Begun, again: Callable[[], _Begun]) -> tuple[_Begun, list[SpanResult]]:
        """The results of a round; where so many clients at once need too much memory, of half as many.

        The whole round is begun again then, so that it is what it would have been at that width.
        """
        while True:
            try:
                return begun, [result.unpacked() for result in self._work.results(begun.tasks)]
            except StackTooWide:
                self._work.drop(begun.tasks)
                self.width = halved(self.width)
                begun = again()

    def _parts(self, steps: Sequence[int], most: int | None) -> Iterable[range]:
        """How the blocks are dealt out: few messages where the last round's work was little, else many.

        It decides who adds what, never what is added. Clients' memories travel one by one, so that messages
        are not what they cost.
        """
        workers = len(self.crew.actors)
        if most is None and self._pace * sum(steps) < LITTLE_SECONDS * workers:
            return shares(len(steps), workers)
        return spans(steps, workers, most)

    def _engine(self) -> dict[str, Any]:
        """How the round was computed, for the record; `restarts` since the last time."""
        restarts, self._restarts = self.crew.restarts - self._restarts, self.crew.restarts
        devices = ", ".join(sorted({member["name"] for member in self.actors}))
        actors = {"actors": len(self.crew.actors), "restarts": restarts, "device": devices}
        return {"pool": "ray", "width": self.width, **actors}

    def _training(
        self,
        algorithm: Algorithm,
        round: int,
        start: int,
        blocks: Sequence[Block],
        sent: Any,
        written: Mapping[int, Letter],
    ) -> Submit:
        clients, width = _clients(blocks), self.width
        mine = {client: written[client] for client in clients if client in written}
        memories = [self._memories.get(client) for client in clients] if algorithm.stateful else []
        returns = 1 + len(clients) * algorithm.stateful

        def submit(actor: Any, attempt: int) -> list[Any]:
            call = actor.train if returns == 1 else actor.train.options(num_returns=returns)
            references = call.remote(round, start, attempt, width, blocks, sent, mine, *memories)
            return list(references) if returns > 1 else [references]

        return submit

    def measure(self, algorithm: Algorithm, ctx: Context, state: Any, clients: Sequence[int]) -> Survey:
        """The mean loss of the first deployed model on each client's data; see `ClientPool`."""
        models = questioned(algorithm, ctx, state)
        sent, size = ray.put(tree.to_numpy(models)), _portion(len(clients), len(self.crew.actors))

        def asking(some: Sequence[int]) -> Submit:
            return lambda actor, _: [actor.measure.remote(ctx.round, sent, some)]

        portions = [clients[start : start + size] for start in range(0, len(clients), size)]
        tasks = [Task(asking(some)) for some in portions]
        self._work.add(tasks)
        losses = self._work.results(tasks)
        return Survey(np.concatenate(losses), survey_traffic(algorithm, ctx, state, models, clients))

    def evaluate(
        self, algorithm: Algorithm, ctx: Context, state: Any, shards: Iterable[int] | None = None
    ) -> Callable[[], Mapping[str, Score]]:
        """Begin to score every deployed model on these shards of the test set, by default on all of them."""
        models = ray.put(tree.to_numpy(deployed(algorithm, ctx, state)))

        def scoring(shard: int) -> Submit:
            return lambda actor, _: [actor.score.remote(ctx.round, models, shard)]

        every = range(num_shards(self.population))
        tasks = [Task(scoring(shard)) for shard in (every if shards is None else shards)]
        self._work.add(tasks)
        return lambda: total(self._work.results(tasks))

    def evaluate_personal(
        self, algorithm: Algorithm, ctx: Context, state: Any, clients: Iterable[int] | None = None
    ) -> Examination:
        """Begin to score each client's own model, on whichever actors are free; see `ClientPool`."""
        asked, handovers = examinees(self.population, clients), handover(algorithm, ctx, state)
        sent = ray.put(tree.to_numpy(handovers))
        work = [examination_work(algorithm, self.population, ctx, client) for client in asked.clients]
        most = most_blocks([(client,) for client in asked.clients[:1]], handovers, model_bytes(ctx))
        portions = [
            asked.clients[part.start : part.stop]
            for part in spans(work, len(self.crew.actors), most if algorithm.stateful else None)
        ]
        tasks = [Task(self._examining(algorithm, ctx, state, mine, sent)) for mine in portions]
        self._work.add(tasks)
        return self._examined(tasks, portions, asked.untested)

    def _examined(
        self, tasks: Sequence[Task], portions: Sequence[Sequence[int]], untested: int
    ) -> Examination:
        for _ in self._work.progress(tasks):
            yield sum(len(mine) for mine, task in zip(portions, tasks, strict=True) if task.ended)
        return joined([task.value for task in tasks], untested)

    def _examining(
        self, algorithm: Algorithm, ctx: Context, state: Any, clients: Sequence[int], sent: Any
    ) -> Submit:
        memories = [self._memories.get(client) for client in clients] if algorithm.stateful else []

        def submit(actor: Any, _: int) -> list[Any]:
            # Made when they are sent, so that there are never as many letters here as there are clients.
            mine = letters(explain(algorithm, ctx, state, clients))
            return [actor.examine.remote(ctx.round, clients, sent, mine, *memories)]

        return submit

    def memories(self, clients: Iterable[int] | None = None) -> Mapping[int, Tree]:
        """What these clients keep, by default all; downloads it.

        Raises:
            NodeLost: if it is gone, with the node that it was on.
        """
        chosen = self._memories if clients is None else clients
        held = {client: self._memories[client] for client in chosen if client in self._memories}
        try:
            found = zip(held, ray.get(list(held.values())), strict=True)
        except LOSSES as error:
            self.crew.look()
            raise self.crew.lost(0, f"a client's memory is gone: {first_line(error)}") from error
        return {client: tree.from_numpy(memory) for client, memory in found}

    def restore(self, memories: Mapping[int, Tree]) -> None:
        """Put the memories of these clients back, as after a restart."""
        for client, memory in memories.items():
            self._memories[client] = ray.put(tree.to_numpy(memory))
        self._fingerprint.update(memory_marks(memories))

    def forget(self) -> None:
        """As if no client had ever come: their memories go."""
        self._memories.clear()
        self._fingerprint = Fingerprint()

    def close(self) -> None:
        """End the actors and give their resources back."""
        self.crew.close()


def model_bytes(ctx: Context) -> int:
    """Bytes of the largest architecture's parameters."""
    return wire.NUMBER_BYTES * max(net.count() for net in ctx.nets)


def most_blocks(blocks: Sequence[Block], broadcasts: Mapping[str, Mapping[str, Tree]], model: int = 0) -> int:
    """How many blocks a span may hold where clients keep memories: an actor has all of a span's at once.

    What a client keeps is of the order of what it receives, or of a model (of so many bytes) where that is
    more; the old and the new memories count.
    """
    received = max(sum(wire.message_bytes(message).values()) for message in broadcasts.values())
    clients = SPAN_MEMORY_BYTES // max(1, 2 * received, 2 * model)
    return max(1, clients // max(map(len, blocks), default=1))


def _portion(clients: int, actors: int) -> int:
    """How many clients to ask in one call; each is scored for itself, so the answers do not depend on it."""
    return min(MOST_ASKED, max(1, -(-clients // (4 * actors))))


def _clients(blocks: Sequence[Block]) -> list[int]:
    return [client for block in blocks for client in block]
