"""Worker: trains the clients of a block and scores a part of the test set. Every pool is made of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F

from . import rng, tree, wire
from .core import Algorithm, Context, Reduction, Report, Score, Visit
from .errors import ClientFailed
from .population import Population, Shelf
from .tree import Tree

SHARD = 1000
"""Test examples per unit of evaluation; part of the result, since losses are added shard by shard."""


@dataclass
class BlockResult:
    """What a block's clients sent, summed in client order.

    Attributes:
        number: the block's place in the order of summation.
        clients, weights, num_examples: one entry per client of the block.
        sums: {payload: tree of float64}, for MEAN the weighted and for SUM the plain sum.
        gathered: {payload: [tree per client]}.
        metrics: [{name: value} per client].
        up: bytes by payload, summed over the clients.
        seconds: what the block took.
    """

    number: int
    clients: tuple[int, ...]
    weights: list[float] = field(default_factory=list)
    num_examples: list[int] = field(default_factory=list)
    sums: dict[str, Any] = field(default_factory=dict)
    gathered: dict[str, list[Any]] = field(default_factory=dict)
    metrics: list[dict[str, float]] = field(default_factory=list)
    up: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


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
    """

    def __init__(self, algorithm: Algorithm, population: Population, device: str = "cpu") -> None:
        self.algorithm, self.population = algorithm, population
        self.device = torch.device(device)
        self.shelf = Shelf(population, self.device)
        test = population.dataset.test
        self.test_x, self.test_y = tree.borrow(test.x), tree.borrow(test.y)

    def train(
        self,
        round: int,
        number: int,
        clients: Sequence[int],
        broadcast: Tree,
        instructions: Mapping[int, Tree],
        memories: Mapping[int, Tree | None],
    ) -> tuple[BlockResult, dict[int, Tree]]:
        """Train the clients of a block one by one.

        Args:
            round: counted from 0.
            number: the block's.
            clients: in the order of summation.
            broadcast: what all of them received.
            instructions: what each received besides.
            memories: what each kept; None or missing on a first visit.

        Returns:
            The block's sums, and each client's new memory (empty unless the algorithm is stateful).

        Raises:
            ClientFailed: if a client's code raised.
        """
        began = perf_counter()
        result, kept = BlockResult(number, tuple(clients)), dict[int, Tree]()
        ctx = self.population.context(round)
        with one_thread():
            for client in clients:
                visit, report = self._client(
                    ctx.for_client(client),
                    client,
                    broadcast,
                    instructions.get(client, {}),
                    memories.get(client),
                )
                self._fold(ctx, result, visit, report)
                if self.algorithm.stateful:
                    kept[client] = report.memory
        result.seconds = perf_counter() - began
        return result, kept

    def _client(
        self, ctx: Context, client: int, broadcast: Tree, instruction: Tree, memory: Tree | None
    ) -> tuple[Visit, Report]:
        random = (
            rng.torch_stream(ctx.seed, "dropout", ctx.round, client) if ctx.net.stochastic else nullcontext()
        )
        try:
            with random:
                visit = self.shelf.visit(self.algorithm, ctx, client, broadcast, instruction, memory)
                return visit, self.algorithm.train(ctx, visit)
        except Exception as error:
            raise ClientFailed(client, "train", f"{type(error).__name__}: {error}") from error

    def _fold(self, ctx: Context, result: BlockResult, visit: Visit, report: Report) -> None:
        """Add one client's report to its block's."""
        weight = self.algorithm.weight(ctx, visit)
        for name, reduction in self.algorithm.uploads.items():
            payload = report.upload[name]
            result.up[name] += wire.payload_bytes(payload)
            if reduction is Reduction.GATHER:
                result.gathered.setdefault(name, []).append(payload)
            else:
                share = weight if reduction is Reduction.MEAN else 1.0
                result.sums[name] = tree.accumulate(result.sums.get(name), payload, share)
        result.weights.append(weight)
        result.num_examples.append(visit.num_examples)
        result.metrics.append({name: float(value) for name, value in report.metrics.items()})

    def num_shards(self) -> int:
        """How many units of evaluation there are."""
        return -(-len(self.test_y) // SHARD)

    @torch.inference_mode()
    def score(self, round: int, models: Mapping[str, Tree], shard: int) -> dict[str, Score]:
        """Score the deployed models on one shard of the test set."""
        ctx, rows = self.population.context(round), slice(shard * SHARD, (shard + 1) * SHARD)
        x = self.population.dataset.normalise(self.test_x[rows].to(self.device))
        y = self.test_y[rows].to(self.device)
        scores = {}
        with one_thread():
            for name, model in models.items():
                logits = self.algorithm.predict(ctx, model, x)
                loss = F.cross_entropy(logits.double(), y, reduction="sum")
                scores[name] = Score(int((logits.argmax(-1) == y).sum()), float(loss), len(y))
        return scores
