"""ClientActor: one process, on a fraction of a machine, that runs the clients of the blocks it is given."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ray
import torch

from actors.client_messages import ClientMessage, unpack_client_messages
from actors.device import acquire_device
from fedsim.base import tree
from fedsim.base.memory_usage import peak_private_bytes
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm, LocalTraining, PersonalScores, Score
from fedsim.engine.blocks import Block
from fedsim.engine.chaos import should_kill_actor
from fedsim.engine.faults import Faults
from fedsim.engine.personal_evaluation import evaluate_personal_models
from fedsim.engine.worker import Worker
from fedsim.stacking.graph_replay import CudaRecording

FLUSH_SECONDS = 0.05
"""How long an actor that is about to kill itself waits, for the answer to its last task to get out."""


class MemoryUsage(NamedTuple):
    """The most memory that an actor has needed so far, in bytes.

    Attributes:
        private: of the process, without what it shares with others.
        gpu: what torch has held of the GPU; None on the CPU.
        gpu_cap: what it may hold.
    """

    private: int
    gpu: int | None = None
    gpu_cap: int | None = None


class ClientProcess:
    """What a ClientActor does; an actor of it is made by `ClientActor`.

    Args:
        gpus: the fraction of a GPU that it was given; 0 trains on the CPU.
    """

    def __init__(self, gpus: float) -> None:
        torch.set_num_threads(1)
        self.device_share = acquire_device(gpus)
        self.worker: Worker | None = None

    def join_run(
        self, algorithm: Algorithm, population: Population, faults: Faults, graphs: bool = False
    ) -> dict[str, Any]:
        """Take part in a run; the population's arrays stay where the object store has them.

        Args:
            algorithm: the method.
            population: the federation.
            faults: the run's policy.
            graphs: play the steps of clients that train at once as CUDA graphs, on a GPU.

        Returns:
            Who this is: process id, node, the node's address, device, and the device's name.

        Raises:
            DoesNotFit: if it was given a share of a GPU that it cannot use.
        """
        self.device_share.raise_if_refused()
        recorder = CudaRecording if graphs and self.device_share.device == "cuda" else None
        self.worker = Worker(algorithm, population, self.device_share.device, faults, recorder)
        node = ray.get_runtime_context().get_node_id()
        address = ray.util.get_node_ip_address()
        who = {"pid": os.getpid(), "node": node, "address": address}
        return {**who, "device": self.device_share.device, "name": self.device_share.name}

    def train_span(
        self,
        round: int,
        start: int,
        attempt: int,
        width: int,
        blocks: Sequence[Block],
        broadcasts: Tree,
        instructions: Mapping[int, ClientMessage],
        *memories: Tree | None,
    ) -> Any:
        """Train one span; see `Worker.train`.

        Trees come and go as NumPy arrays, which cross the object store without a copy.

        Args:
            round: counted from 0.
            start: the number of the first block.
            attempt: how often the span was begun before, by actors that died.
            width: how many clients of a block train at once.
            blocks: in order.
            broadcasts: what all clients of each architecture received.
            instructions: what each received besides.
            *memories: what each kept, in the blocks' order; none at all unless the algorithm is stateful.

        Returns:
            The span's result, followed by each client's new memory if the algorithm is stateful: separate
            values, so that their owner never has to download them. None for a client that failed.
        """
        worker = self._require_worker()
        if should_kill_actor(worker.faults, worker.population.seed, round, start, attempt):
            time.sleep(FLUSH_SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)
        clients = [client for block in blocks for client in block]
        result, kept = worker.train_span(
            round,
            start,
            blocks,
            tree.from_numpy(broadcasts, worker.device),
            *self._load_messages_and_states(clients, instructions, memories),
            stack_size=width,
        )
        sent = result.to_numpy()
        if not worker.algorithm.stateful:
            return sent
        return sent, *(tree.to_numpy(kept[client]) if client in kept else None for client in clients)

    def score_shard(self, round: int, models: Tree, shard: int) -> dict[str, Score]:
        """Score the deployed models on one shard of the test set."""
        worker = self._require_worker()
        return worker.score_shard(round, tree.from_numpy(models, worker.device), shard)

    def measure_losses(self, round: int, models: Tree, clients: Sequence[int]) -> Any:
        """The mean loss of a model on each client's own data; see `Worker.measure`."""
        worker = self._require_worker()
        return worker.measure_losses(round, tree.from_numpy(models, worker.device), clients)

    def evaluate_personal_models(
        self,
        round: int,
        clients: Sequence[int],
        broadcasts: Tree,
        instructions: Mapping[int, ClientMessage],
        *memories: Tree | None,
    ) -> PersonalScores:
        """Score clients' own models; see `examine`.

        Args:
            round: counted from 0.
            clients: whose.
            broadcasts: what all clients of each architecture received.
            instructions: what each received besides.
            *memories: what each keeps, in the clients' order; none at all unless the algorithm is stateful.
        """
        worker = self._require_worker()
        return evaluate_personal_models(
            worker,
            round,
            clients,
            tree.from_numpy(broadcasts, worker.device),
            *self._load_messages_and_states(clients, instructions, memories),
        )

    def _load_messages_and_states(
        self,
        clients: Sequence[int],
        instructions: Mapping[int, ClientMessage],
        memories: Sequence[Tree | None],
    ) -> tuple[dict[int, Tree], dict[int, Tree | None]]:
        """What clients received besides, and what they keep, as tensors where they train."""
        device = self._require_worker().device
        kept = zip(clients, memories, strict=False)
        return (
            unpack_client_messages(instructions, device),
            {client: None if held is None else tree.from_numpy(held, device) for client, held in kept},
        )

    def set_local_training(self, local: LocalTraining) -> None:
        """Train like this from now on, in place of what the population says; for measuring."""
        worker = self._require_worker()
        worker.population = worker.loader.population = replace(worker.population, local=local)

    def measure_memory(self) -> MemoryUsage:
        """The most memory that this process has needed so far."""
        if self.device_share.device == "cpu":
            return MemoryUsage(peak_private_bytes())
        total = torch.cuda.get_device_properties(0).total_memory
        return MemoryUsage(
            peak_private_bytes(), torch.cuda.max_memory_reserved(), self.device_share.cap or total
        )

    def _require_worker(self) -> Worker:
        if self.worker is None:
            raise RuntimeError("join() comes first")
        return self.worker


ClientActor = ray.remote(ClientProcess)
