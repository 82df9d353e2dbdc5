"""Worker: trains the clients of a span and scores a part of the test set. Every pool is made of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng, tree
from fedsim.base.digest import memory_mark
from fedsim.base.precision import tensor_cores
from fedsim.base.tree import Tree
from fedsim.clients.population import Population, Shelf, ShelfExamples
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, Score
from fedsim.core.capabilities import UpdatePostprocessing, capability
from fedsim.core.client_task import Lockstep
from fedsim.core.error_attribution import server_side
from fedsim.core.public_set import AT_ONCE
from fedsim.engine import chaos
from fedsim.engine.blocks import Block, Node, TreeSum
from fedsim.engine.faults import DEFAULT, Faults
from fedsim.engine.reduction import Outcome, SpanResult, Sums, add, gathered, share
from fedsim.engine.retries import attempted
from fedsim.engine.scores import total
from fedsim.stacking.graph_replay import Recorder
from fedsim.stacking.grouping import Stacking
from fedsim.stacking.lockstep import at_once, room_for_one
from fedsim.stacking.mask_check import Heeding
from fedsim.training.local_loop import right

SHARD = 1000
"""Test examples per unit of evaluation; part of the result, since losses are added shard by shard."""


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside: with two, the same training is not bit-identical in two processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Worker:
    """Runs client code, on one device.

    Args:
        algorithm: whose clients to run.
        population: the federation.
        device: "cpu" or "cuda".
        faults: what a client that raises does.
        recorder: records the steps of clients that train at once, if they are to be played.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        device: str = "cpu",
        faults: Faults = DEFAULT,
        recorder: Recorder | None = None,
    ) -> None:
        self.recorder, self.heeding = recorder, Heeding()
        self.algorithm, self.population, self.faults = algorithm, population, faults
        self.device = torch.device(device)
        self.shelf = Shelf(population, self.device)
        test = population.dataset.test
        self.test_x, self.test_y = tree.borrow(test.x), tree.borrow(test.y)

    def train(
        self,
        round: int,
        start: int,
        blocks: Sequence[Block],
        broadcasts: Mapping[str, Tree],
        instructions: Mapping[int, Tree],
        memories: Mapping[int, Tree | None],
        width: int = 1,
    ) -> tuple[SpanResult, dict[int, Tree]]:
        """Train the clients of a span, one by one or some at once.

        Args:
            round: counted from 0.
            start: the number of the first block.
            blocks: in order.
            broadcasts: what all clients of each architecture received, by its number as text.
            instructions: what each received besides.
            memories: what each kept; None or missing on a first visit.
            width: how many clients of a block to train at once, where their model allows it.

        Returns:
            The span's sums, and each client's new memory (empty unless the algorithm is stateful, and
            without the clients that failed).

        Raises:
            ClientFailed: if a client's code raised, and the policy does not say otherwise.
            OutOfMemory: if that is why.
            StackTooWide: if it is why, and several clients trained at once.
        """
        began = perf_counter()
        result, kept, summed = SpanResult(), dict[int, Tree](), TreeSum(add)
        notes = Stacking(recorder=self.recorder, heeding=self.heeding)
        ctx = self.shelf.context(round)

        def one(client: int, company: Lockstep | None) -> Sums:
            instruction, memory = instructions.get(client, {}), memories.get(client)
            mine = ctx.for_client(client)
            down = broadcasts[str(mine.model)]
            return self._tried(mine, client, down, instruction, memory, result, kept, company)

        with one_thread(), tensor_cores(ctx.local.precision, self.device):
            for number, block in enumerate(blocks, start=start):
                sums: Sums = None
                why_not = ctx.for_client(block[0]).net.unstackable
                for part in at_once(block, width, why_not, one, notes):
                    sums = add(sums, part)
                summed.push(Node(0, number), sums)
        result.nodes, result.stacking = summed.nodes, Stacking(notes.together, notes.alone)
        result.seconds = perf_counter() - began
        return result, kept

    def _tried(
        self,
        ctx: Context,
        client: int,
        broadcast: Tree,
        instruction: Tree,
        memory: Tree | None,
        result: SpanResult,
        kept: dict[int, Tree],
        company: Lockstep | None,
    ) -> Sums:
        """One client's part of the sums, as the policy has it; None for a client that is left out."""

        def once(attempt: int) -> tuple[Tree, Sums]:
            if chaos.fails_client(self.faults, ctx.seed, ctx.round, client, attempt):
                raise RuntimeError("chaos chose this client to fail")
            with nullcontext() if company is None else room_for_one():
                task, update = self._client(ctx, client, broadcast, instruction, memory, company)
                return update.client_state, self._settle(ctx, client, task, update, result)

        tried = attempted(once, client=client, stage="train", faults=self.faults, device=self.device)
        result.retries += tried.again
        if tried.value is None:
            result.errors[client] = tried.error or ""
            return None
        if self.algorithm.stateful:
            kept[client] = tried.value[0]
        return tried.value[1]

    def _client(
        self,
        ctx: Context,
        client: int,
        broadcast: Tree,
        instruction: Tree,
        memory: Tree | None,
        company: Lockstep | None,
    ) -> tuple[ClientTask, ClientUpdate]:
        random = (
            rng.torch_stream(ctx.seed, "dropout", ctx.round, client) if ctx.net.stochastic else nullcontext()
        )
        with random:
            task = self.shelf.make_task(self.algorithm, ctx, client, broadcast, instruction, memory)
            task = task._replace(lockstep=company)
            update = self.algorithm.train_client(ctx, task)
            if completing := capability(self.algorithm, UpdatePostprocessing):
                update = completing.postprocess_update(ctx, task, update)
            return task, update

    def _settle(
        self, ctx: Context, client: int, task: ClientTask, update: ClientUpdate, result: SpanResult
    ) -> Sums:
        """Note one client's outcome, all of it or nothing, and give its part of the sums."""
        weight = self.algorithm.weigh_client(ctx, task)
        metrics = {name: float(value) for name, value in update.metrics.items()}
        entries = gathered(self.algorithm, update)
        mark = memory_mark(client, update.client_state) if self.algorithm.stateful else None
        sums = share(self.algorithm, ctx, update, weight, result)
        result.outcomes.append(Outcome(client, weight, task.num_examples, metrics, entries, mark))
        return sums

    @torch.inference_mode()
    def score(self, round: int, models: Mapping[str, Mapping[str, Tree]], shard: int) -> dict[str, Score]:
        """Score the deployed models of every architecture on one shard of the test or the validation set.

        Args:
            round: counted from 0.
            models: {architecture: {name: model}}, the architecture's number as text.
            shard: which; those of the validation set come after those of the test set.

        Returns:
            {name: score}; with several architectures their sum, and each under `NAME_NUMBER` besides. On the
            validation set every name ends in `_validation`.
        """
        ctx, (kind, x, y) = self.population.context(round), _shard(self.population, shard)
        laid_out = tree.map(tree.arranged, models)
        parts = zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True)
        with one_thread(), tensor_cores("float32", self.device):
            return total(
                self._named(f"{name}{kind}", number, self._score(ctx.for_model(int(number)), model, x, y))
                for x, y in parts
                for number, deployed in laid_out.items()
                for name, model in deployed.items()
            )

    def _named(self, name: str, number: str, score: Score) -> dict[str, Score]:
        several = len(self.population.nets) > 1
        return {name: score, f"{name}_{number}": score} if several else {name: score}

    def _score(self, ctx: Context, model: Tree, stored: Tensor, labels: Tensor) -> Score:
        x = tree.arranged(self.population.dataset.normalise(stored.to(self.device)))
        with server_side(self.algorithm, "predict"):
            return score(self.algorithm.predict(ctx, model, x), labels.to(self.device))

    @torch.inference_mode()
    def measure(self, round: int, models: Mapping[str, Tree], clients: Sequence[int]) -> NDArray[np.float64]:
        """The mean loss of a model on each client's own training examples.

        Args:
            round: counted from 0.
            models: one of each architecture, by its number as text.
            clients: whom to ask.

        Returns:
            float64 `[len(clients)]`; NaN for who holds nothing, or failed where the policy is to skip.

        Raises:
            ClientFailed: if a client's examples could not be scored.
        """
        ctx, laid_out = self.population.context(round), tree.map(tree.arranged, models)
        with one_thread(), tensor_cores("float32", self.device):
            return np.array([self._mean_loss(ctx.for_client(client), laid_out, client) for client in clients])

    def _mean_loss(self, ctx: Context, models: Mapping[str, Tree], client: int) -> float:
        def once(attempt: int) -> float:
            held = ShelfExamples(self.shelf, self.population.partition.client(client))
            model, predict = models[str(ctx.model)], self.algorithm.predict
            scores = [score(predict(ctx, model, batch.x), batch.y) for batch in held.batches()]
            examples = sum(score.examples for score in scores)
            return sum(score.loss for score in scores) / examples if examples else float("nan")

        tried = attempted(once, client=client, stage="survey", faults=self.faults, device=self.device)
        return float("nan") if tried.value is None else tried.value


def num_shards(population: Population) -> int:
    """How many units of evaluation there are: of the test set, then of the validation set."""
    held = population.validation
    return -(-len(population.dataset.test) // SHARD) + (-(-len(held) // SHARD) if held else 0)


def _shard(population: Population, shard: int) -> tuple[str, Tensor, Tensor]:
    """One unit of evaluation: what its scores' names end in, stored inputs, labels."""
    kind, examples, tests = "", population.dataset.test, -(-len(population.dataset.test) // SHARD)
    if population.validation is not None and shard >= tests:
        kind, examples, shard = "_validation", population.validation, shard - tests
    rows = slice(shard * SHARD, (shard + 1) * SHARD)
    return kind, tree.borrow(examples.x[rows]), tree.borrow(examples.y[rows])


def score(logits: Tensor, y: Tensor) -> Score:
    """How these predictions do.

    Args:
        logits: `[batch, classes]`.
        y: int64 `[batch]`, or float32 `[batch, labels]` (NaN: unknown).
    """
    if y.dim() == 2:
        return _labels_score(logits, y)
    loss = F.cross_entropy(logits.double(), y, reduction="sum")
    return Score(int(right(logits, y).sum()), float(loss), len(y))


def _labels_score(logits: Tensor, y: Tensor) -> Score:
    """Where an example has several yes-or-no labels, each that is known counts for itself."""
    known = ~torch.isnan(y)
    loss = F.binary_cross_entropy_with_logits(logits[known].double(), y[known].double(), reduction="sum")
    return Score(int(right(logits, y)[known].sum()), float(loss), int(known.sum()))
