"""ClientActor: one process, on a fraction of a machine, that runs the clients of the blocks it is given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch

from fedsim import tree
from fedsim.blocks import Block
from fedsim.core import Algorithm, Score
from fedsim.population import Population
from fedsim.tree import Tree
from fedsim.worker import Worker


class ClientProcess:
    """What a ClientActor does; an actor of it is made by `ClientActor`.

    Args:
        gpus: the fraction of a GPU that it was given; 0 trains on the CPU.
    """

    def __init__(self, gpus: float) -> None:
        torch.set_num_threads(1)
        self.device = "cuda" if gpus and torch.cuda.is_available() else "cpu"
        if self.device == "cuda" and gpus < 1:
            torch.cuda.set_per_process_memory_fraction(gpus)
        self.worker: Worker | None = None

    def join(self, algorithm: Algorithm, population: Population) -> dict[str, Any]:
        """Take part in a run; the population's arrays stay where the object store has them.

        Returns:
            Who this is: process id, node and device.
        """
        self.worker = Worker(algorithm, population, self.device)
        node = ray.get_runtime_context().get_node_id()
        return {"pid": os.getpid(), "node": node, "device": self.device}

    def train(
        self,
        round: int,
        start: int,
        blocks: Sequence[Block],
        broadcasts: Tree,
        instructions: Mapping[int, Tree],
        *memories: Tree | None,
    ) -> Any:
        """Train one span; see `Worker.train`.

        Trees come and go as NumPy arrays, which cross the object store without a copy.

        Returns:
            The span's result, followed by each client's new memory if the algorithm is stateful: separate
            values, so that their owner never has to download them.
        """
        worker = self._joined()
        clients = [client for block in blocks for client in block]
        result, kept = worker.train(
            round,
            start,
            blocks,
            tree.from_numpy(broadcasts, worker.device),
            {client: tree.from_numpy(value, worker.device) for client, value in instructions.items()},
            {
                client: None if memory is None else tree.from_numpy(memory, worker.device)
                for client, memory in zip(clients, memories, strict=False)
            },
        )
        sent = result.packed()
        return (sent, *(tree.to_numpy(kept[client]) for client in clients)) if kept else sent

    def score(self, round: int, models: Tree, shard: int) -> dict[str, Score]:
        """Score the deployed models on one shard of the test set."""
        worker = self._joined()
        return worker.score(round, tree.from_numpy(models, worker.device), shard)

    def measure(self, round: int, models: Tree, clients: Sequence[int]) -> Any:
        """The mean loss of a model on each client's own data; see `Worker.measure`."""
        worker = self._joined()
        return worker.measure(round, tree.from_numpy(models, worker.device), clients)

    def _joined(self) -> Worker:
        if self.worker is None:
            raise RuntimeError("join() comes first")
        return self.worker


ClientActor = ray.remote(ClientProcess)
