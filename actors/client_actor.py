"""ClientActor: one worker process, on a fraction of a machine, that trains the clients of its blocks."""

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
from fedsim.engine.evaluation.personal_evaluation import evaluate_personal_models
from fedsim.engine.faults import Faults, should_kill_actor
from fedsim.engine.worker import Worker
from fedsim.stacking.graph_replay import CudaRecording

FLUSH_SECONDS = 0.05
"""Seconds that an actor waits before it kills itself (chaos): the answer to its last call gets out."""


class MemoryUsage(NamedTuple):
    """The peak memory of an actor so far, in bytes.

    Attributes:
        private: of the process, without memory that it shares with other processes.
        gpu: reserved by torch on the GPU; None on the CPU.
        gpu_cap: the most that torch may reserve.
    """

    private: int
    gpu: int | None = None
    gpu_cap: int | None = None


class ClientProcess:
    """The class behind the Ray actor `ClientActor`.

    Args:
        gpus: the fraction of a GPU that the actor has; 0 trains on the CPU.
    """

    def __init__(self, gpus: float) -> None:
        torch.set_num_threads(1)
        self.device_share = acquire_device(gpus)
        self.worker: Worker | None = None

    def join_run(
        self, algorithm: Algorithm, population: Population, faults: Faults, graphs: bool
    ) -> dict[str, Any]:
        """Join a run; the population's arrays stay in the object store, without a copy.

        Args:
            algorithm: of the run.
            population: of the run.
            faults: the run's fault policy.
            graphs: replay the steps of stacks as CUDA graphs, on a GPU.

        Returns:
            The actor's info: process id, node, the node's address, device, and the device's name.

        Raises:
            DoesNotFit: if the actor cannot use the GPU that it was given.
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
        stack_size: int,
        blocks: Sequence[Block],
        limits: Mapping[int, int],
        broadcasts: Tree,
        instructions: Mapping[int, ClientMessage],
        *client_states: Tree | None,
    ) -> Any:
        """Train one span; see `Worker.train_span`.

        Trees arrive and leave as NumPy arrays, which cross the object store without a copy.

        Args:
            round: counted from 0.
            start: the number of the first block.
            attempt: how many actors died during this span.
            stack_size: how many clients of a block train at once.
            blocks: in order.
            limits: see `Context.limits`.
            broadcasts: to all clients, by architecture.
            instructions: to single clients, by client.
            *client_states: in the order of the blocks; none unless the algorithm is stateful.

        Returns:
            The span's result. A stateful algorithm adds each client's new state as a separate value, so that
            the owner of the states need not download them. The state of a failed client is None.
        """
        worker = self._require_worker()
        if should_kill_actor(worker.faults, worker.population.settings.seed, round, start, attempt):
            time.sleep(FLUSH_SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)
        clients = [client for block in blocks for client in block]
        result, kept = worker.train_span(
            round,
            start,
            blocks,
            tree.from_numpy(broadcasts, worker.device),
            *self._load_messages_and_states(clients, instructions, client_states),
            stack_size=stack_size,
            limits=limits,
        )
        sent = result.to_numpy()
        if not worker.algorithm.stateful:
            return sent
        return sent, *(tree.to_numpy(kept[client]) if client in kept else None for client in clients)

    def keep_states(self, *client_states: Tree) -> Any:
        """Return None and the states, each as a separate value that lies on this actor's node."""
        return None, *client_states

    def score_shard(self, round: int, models: Tree, shard: int) -> dict[str, Score]:
        """Score the deployed models on one shard of the test set."""
        worker = self._require_worker()
        return worker.score_shard(round, tree.from_numpy(models, worker.device), shard)

    def measure_losses(self, round: int, models: Tree, clients: Sequence[int]) -> Any:
        """Return the mean loss of a model on each client's own data; see `Worker.measure_losses`."""
        worker = self._require_worker()
        return worker.measure_losses(round, tree.from_numpy(models, worker.device), clients)

    def evaluate_personal_models(
        self,
        round: int,
        clients: Sequence[int],
        broadcasts: Tree,
        instructions: Mapping[int, ClientMessage],
        *client_states: Tree | None,
    ) -> PersonalScores:
        """Score the personal models of clients; see `fedsim.engine.evaluation.personal_evaluation`.

        Args:
            round: counted from 0.
            clients: whose personal models are scored.
            broadcasts: to all clients, by architecture.
            instructions: to single clients, by client.
            *client_states: in the order of the clients; none unless the algorithm is stateful.
        """
        worker = self._require_worker()
        return evaluate_personal_models(
            worker,
            round,
            clients,
            tree.from_numpy(broadcasts, worker.device),
            *self._load_messages_and_states(clients, instructions, client_states),
        )

    def _load_messages_and_states(
        self,
        clients: Sequence[int],
        instructions: Mapping[int, ClientMessage],
        client_states: Sequence[Tree | None],
    ) -> tuple[dict[int, Tree], dict[int, Tree | None]]:
        """Return the instructions and the states of clients as tensors on the actor's device."""
        device = self._require_worker().device
        kept = zip(clients, client_states, strict=False)
        return (
            unpack_client_messages(instructions, device),
            {client: None if held is None else tree.from_numpy(held, device) for client, held in kept},
        )

    def set_local_training(self, local: LocalTraining) -> None:
        """Replace the population's local training from now on; `fedsim plan` measures with it."""
        worker = self._require_worker()
        settings = replace(worker.population.settings, local=local)
        worker.population = worker.loader.population = replace(worker.population, settings=settings)

    def measure_memory(self) -> MemoryUsage:
        """Return the peak memory of this process so far."""
        if self.device_share.device == "cpu":
            return MemoryUsage(peak_private_bytes())
        total = torch.cuda.get_device_properties(0).total_memory
        return MemoryUsage(
            peak_private_bytes(), torch.cuda.max_memory_reserved(), self.device_share.cap or total
        )

    def _require_worker(self) -> Worker:
        if self.worker is None:
            raise RuntimeError("call join_run() first")
        return self.worker


ClientActor = ray.remote(ClientProcess)
