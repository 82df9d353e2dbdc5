"""Pools that run clients in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedsim.base import tree, wire
from fedsim.base.digest import Fingerprint, memory_marks
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, Reduced, Score, Survey, Traffic
from fedsim.core.capabilities import (
    ClientInstructions,
    PersonalBroadcast,
    capability,
    count_bytes,
    select_survey_payload,
)
from fedsim.core.error_attribution import server_side
from fedsim.core.personal_scores import PersonalScores, joined
from fedsim.engine.blocks import cut
from fedsim.engine.client_pool import PersonalEvaluation
from fedsim.engine.faults import DEFAULT, Faults
from fedsim.engine.personal_evaluation import Examinees, examine, examinees
from fedsim.engine.reduction import SpanResult, combine
from fedsim.engine.scores import total
from fedsim.engine.worker import Worker, num_shards
from fedsim.errors import SettingsError, StackTooWide
from fedsim.models.net import Net
from fedsim.stacking.graph_replay import Recorder


class SerialPool:
    """The reference: clients one after another, in this process. RayPool gives the same bits.

    Args:
        algorithm: whose clients to run.
        population: the federation.
        device: "cpu" or "cuda".
        faults: what a client that raises does.
    """

    name: ClassVar[str] = "serial"

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        device: str = "cpu",
        faults: Faults = DEFAULT,
    ) -> None:
        self.population, self.width = population, 1
        self.worker = Worker(algorithm, population, device, faults)
        self._memories: dict[int, Tree] = {}
        self._fingerprint = Fingerprint()

    def train(
        self, algorithm: Algorithm, ctx: Context, state: Any, cohort: Sequence[int]
    ) -> Callable[[], Reduced]:
        """One round of these clients, run when its outcome is asked for; see `ClientPool`."""
        return partial(self._train, algorithm, ctx, state, cohort)

    def _train(self, algorithm: Algorithm, ctx: Context, state: Any, cohort: Sequence[int]) -> Reduced:
        broadcasts = broadcast(algorithm, ctx, state)
        instructions = instruct(algorithm, ctx, state, cohort)
        result, kept = self._home(*self._halving(ctx, cohort, self._there(broadcasts), instructions))
        self._memories.update(kept)
        down = bytes_down(algorithm, ctx, broadcasts, instructions, cohort)
        engine = {"pool": self.name, "width": self.width, "actors": 0, "restarts": 0}
        return combine(algorithm, ctx, [result], cohort, down, engine, self._fingerprint)

    def _halving(
        self,
        ctx: Context,
        cohort: Sequence[int],
        broadcasts: Mapping[str, Tree],
        instructions: Mapping[int, Tree],
    ) -> tuple[SpanResult, dict[int, Tree]]:
        """The round's work; where so many at once need too much memory, all of it again with half as many."""
        letters, memories = self._each(instructions, cohort), self._each(self._memories, cohort)
        while True:
            blocks = cut(
                cohort,
                self.population.steps,
                len(ctx.nets),
                stack_widths(self.worker.algorithm, ctx.nets, self.width),
            )
            try:
                return self.worker.train(ctx.round, 0, blocks, broadcasts, letters, memories, self.width)
            except StackTooWide:
                self.width = halved(self.width)

    def _there(self, message: Tree) -> Tree:
        """It where the clients train: the server's tensors are on the CPU."""
        device = self.worker.device
        return message if device.type == "cpu" else tree.map(lambda leaf: leaf.to(device), message)

    def _each(self, held: Mapping[int, Tree], clients: Iterable[int]) -> Mapping[int, Tree]:
        """What these clients hold, where they train."""
        return {client: self._there(held[client]) for client in clients if client in held}

    def _home(self, result: SpanResult, kept: Mapping[int, Tree]) -> tuple[SpanResult, Mapping[int, Tree]]:
        """What came of a round, on the CPU."""
        if self.worker.device.type == "cpu":
            return result, kept
        home = {client: tree.map(lambda leaf: leaf.cpu(), memory) for client, memory in kept.items()}
        return result.packed().unpacked(), home

    def measure(self, algorithm: Algorithm, ctx: Context, state: Any, clients: Sequence[int]) -> Survey:
        """The mean loss of the first deployed model on each client's data; see `ClientPool`."""
        models = questioned(algorithm, ctx, state)
        losses = self.worker.measure(ctx.round, self._there(models), clients)
        return Survey(losses, survey_traffic(algorithm, ctx, state, models, clients))

    def evaluate(self, algorithm: Algorithm, ctx: Context, state: Any) -> Callable[[], Mapping[str, Score]]:
        """Every deployed model scored on the whole test set, when the scores are asked for."""
        models = self._there(deployed(algorithm, ctx, state))
        shards = range(num_shards(self.population))
        return lambda: total(self.worker.score(ctx.round, models, shard) for shard in shards)

    def evaluate_personal(
        self, algorithm: Algorithm, ctx: Context, state: Any, clients: Iterable[int] | None = None
    ) -> PersonalEvaluation:
        """Each client's own model scored on its own test examples, one client at a time; see `ClientPool`."""
        return self._examine(algorithm, ctx, state, examinees(self.population, clients))

    def _examine(
        self, algorithm: Algorithm, ctx: Context, state: Any, asked: Examinees
    ) -> PersonalEvaluation:
        handovers, parts = self._there(handover(algorithm, ctx, state)), list[PersonalScores]()
        for client in asked.clients:
            letter = self._each(explain(algorithm, ctx, state, [client]), [client])
            memory = self._each(self._memories, [client])
            parts.append(examine(self.worker, ctx.round, [client], handovers, letter, memory))
            yield len(parts)
        return joined(parts, asked.untested)

    def memories(self, clients: Iterable[int] | None = None) -> Mapping[int, Tree]:
        """What these clients keep, by default all."""
        chosen = self._memories if clients is None else clients
        return {client: self._memories[client] for client in chosen if client in self._memories}

    def restore(self, memories: Mapping[int, Tree]) -> None:
        """Put the memories of these clients back, as after a restart."""
        self._memories.update(memories)
        self._fingerprint.update(memory_marks(memories))

    def close(self) -> None:
        """Nothing to give back."""


class StackedPool(SerialPool):
    """Clients of one architecture some at once, in this process, by `torch.func.vmap` over their parameters.

    What it gives is what SerialPool gives but for rounding, and the same bits whenever the width is the same.
    Where so many at once need too much memory, the round is begun again with half as many, and it stays so.

    Args:
        algorithm: whose clients to run.
        population: the federation.
        width: how many clients at once.
        device: "cpu" or "cuda".
        faults: what a client that raises does.
        recorder: records steps, if they are to be played; see `fedsim.stacking.graph_replay`.

    Attributes:
        width: as it is now.

    Raises:
        SettingsError: for a width below 1.
    """

    name: ClassVar[str] = "stacked"

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        width: int,
        device: str = "cpu",
        faults: Faults = DEFAULT,
        recorder: Recorder | None = None,
    ) -> None:
        if width < 1:
            raise SettingsError(f"a stack of {width!r} clients cannot be", "choose a width of 1 or more")
        super().__init__(algorithm, population, device, faults)
        self.width, self.worker.recorder = width, recorder


def stack_widths(algorithm: Algorithm, nets: Sequence[Net], width: int) -> Callable[[int], int]:
    """How many clients of each architecture train at once where `width` is asked for."""
    return lambda model: 1 if nets[model].unstackable else width


def halved(width: int) -> int:
    """The width to try after one that needs too much memory."""
    return max(1, width // 2)


def broadcast(algorithm: Algorithm, ctx: Context, state: Any) -> dict[str, Mapping[str, Tree]]:
    """What the clients of each architecture receive, by its number as text."""
    with server_side(algorithm, "broadcast"):
        return {str(m): algorithm.broadcast(ctx.for_model(m), state) for m in range(len(ctx.nets))}


def handover(algorithm: Algorithm, ctx: Context, state: Any) -> dict[str, Mapping[str, Tree]]:
    """What the clients of each architecture receive for models of their own, by its number as text."""
    own = capability(algorithm, PersonalBroadcast)
    if own is None:
        return broadcast(algorithm, ctx, state)
    with server_side(algorithm, "broadcast_personal"):
        return {str(m): own.broadcast_personal(ctx.for_model(m), state) for m in range(len(ctx.nets))}


def deployed(algorithm: Algorithm, ctx: Context, state: Any) -> dict[str, Mapping[str, Tree]]:
    """The models of each architecture that are to be scored, by its number as text."""
    with server_side(algorithm, "deploy_models"):
        return {str(m): algorithm.deploy_models(ctx.for_model(m), state) for m in range(len(ctx.nets))}


def questioned(algorithm: Algorithm, ctx: Context, state: Any) -> dict[str, Tree]:
    """The model of each architecture that a survey is about, by its number as text; {} if there is none."""
    found = deployed(algorithm, ctx, state).items()
    return {number: next(iter(models.values())) for number, models in found if models}


def survey_traffic(
    algorithm: Algorithm, ctx: Context, state: Any, models: Mapping[str, Tree], clients: Sequence[int]
) -> Traffic:
    """A model down to every client asked, but for what clients have of it; one number up from each."""
    if not len(clients):
        return Traffic()
    asked = np.bincount(np.asarray(clients, np.int64) % len(models), minlength=len(models))
    down = 0
    for number, model in models.items():
        with server_side(algorithm, "select_survey_payload"):
            payload = select_survey_payload(algorithm, ctx.for_model(int(number)), state, model)
        down += wire.payload_bytes(payload) * int(asked[int(number)])
    return wire.traffic({"survey": down}, {"survey": wire.NUMBER_BYTES * len(clients)})


def instruct(algorithm: Algorithm, ctx: Context, state: Any, cohort: Sequence[int]) -> dict[int, Tree]:
    """What each client of the cohort receives besides the broadcast; {} if the algorithm sends nothing."""
    instructing = capability(algorithm, ClientInstructions)
    if instructing is None:
        return {}
    with server_side(algorithm, "instruct_client"):
        return {
            client: instructing.instruct_client(ctx.for_client(client), state, client) for client in cohort
        }


def explain(algorithm: Algorithm, ctx: Context, state: Any, clients: Sequence[int]) -> dict[int, Tree]:
    """What each receives besides the handover: its instructions, unless the method hands over all."""
    return {} if capability(algorithm, PersonalBroadcast) else instruct(algorithm, ctx, state, clients)


def bytes_down(
    algorithm: Algorithm,
    ctx: Context,
    broadcasts: Mapping[str, Mapping[str, Tree]],
    instructions: Mapping[int, Tree],
    cohort: Sequence[int],
) -> Counter[str]:
    """Bytes sent to the cohort by payload: each client is charged for its own copy."""
    down = Counter[str]()
    for model, message in broadcasts.items():
        receivers = sum(client % len(broadcasts) == int(model) for client in cohort)
        charge = partial(count_bytes, algorithm, ctx.for_model(int(model)))
        for name, size in wire.message_bytes(message, charge).items():
            down[name] += size * receivers
    for client, instruction in instructions.items():
        charge = partial(count_bytes, algorithm, ctx.for_client(client))
        down.update(wire.message_bytes(instruction, charge))
    return down
