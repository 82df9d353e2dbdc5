"""SerialPool and StackedPool: train clients in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from fedsim.base import tree
from fedsim.base.digest import ClientStatesDigest, client_state_digests
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, ReducedUpdates, Score, Survey
from fedsim.core.personal_scores import PersonalScores, join_scores
from fedsim.engine.blocks import cut_into_blocks
from fedsim.engine.client_pool import PersonalEvaluation
from fedsim.engine.evaluation.personal_evaluation import (
    TestedClients,
    evaluate_personal_models,
    select_tested_clients,
)
from fedsim.engine.faults import DEFAULT, Faults
from fedsim.engine.reduction import SpanSums, combine_results
from fedsim.engine.server_messages import (
    count_survey_traffic,
    list_deployed_models,
    make_broadcasts,
    make_instructions,
    make_personal_broadcasts,
    make_personal_instructions,
    measure_bytes_down,
    select_survey_models,
)
from fedsim.engine.span_result import SpanResult
from fedsim.engine.worker import Worker, count_shards
from fedsim.errors import SettingsError, StackTooLarge
from fedsim.learning_tasks.score import sum_scores
from fedsim.models.net import Net
from fedsim.stacking.graph_replay import Recorder


class SerialPool:
    """Train clients one after another, in this process: the reference pool.

    `RayPool` gives the same results, bit for bit.

    Args:
        algorithm: the algorithm to run.
        population: the federation.
        device: "cpu" or "cuda".
        faults: the policy for clients that raise.

    Attributes:
        stack_sizes: {round, from 1: its stack size in an earlier attempt}. A repeated round uses no larger
            stack.
    """

    name: ClassVar[str] = "serial"

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        device: str = "cpu",
        faults: Faults = DEFAULT,
    ) -> None:
        self.population, self.stack_size = population, 1
        self.stack_sizes: Mapping[int, int] = {}
        self.worker = Worker(algorithm, population, device, faults)
        self._client_states: dict[int, Tree] = {}
        self._states_digest = ClientStatesDigest()

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the pool; see `ClientPool`."""
        return self.worker.algorithm

    def begin_training(self, ctx: Context, state: Any, cohort: Sequence[int]) -> Callable[[], ReducedUpdates]:
        """Return a function that trains the cohort when it is called; see `ClientPool`."""
        return partial(self._run_round, ctx, state, cohort)

    def _run_round(self, ctx: Context, state: Any, cohort: Sequence[int]) -> ReducedUpdates:
        algorithm = self.algorithm
        broadcasts = make_broadcasts(algorithm, ctx, state)
        instructions = make_instructions(algorithm, ctx, state, cohort)
        self.stack_size = min(self.stack_size, self.stack_sizes.get(ctx.round + 1, self.stack_size))
        result, new_states = self._train_halving_stacks(
            ctx, cohort, self._to_client_device(broadcasts), instructions
        )
        if self.worker.device.type != "cpu":
            result = result.to_numpy().to_tensors()  # the sums; the worker has moved the rest
        self._client_states.update(self._separate_states(new_states))
        down = measure_bytes_down(algorithm, ctx, broadcasts, instructions)
        engine = {"pool": self.name, "width": self.stack_size, "actors": 0, "restarts": 0}
        sums = SpanSums(algorithm)
        rest = sums.take(result)
        return combine_results(algorithm, ctx, sums, [rest], cohort, down, engine, self._states_digest)

    def _train_halving_stacks(
        self,
        ctx: Context,
        cohort: Sequence[int],
        broadcasts: Mapping[str, Tree],
        instructions: Mapping[int, Tree],
    ) -> tuple[SpanResult, dict[int, Tree]]:
        """Train the cohort; if a stack needs too much memory, start again with half the stack size."""
        sent_instructions = self._select_on_device(instructions, cohort)
        client_states = self._select_on_device(self._client_states, cohort)
        while True:
            blocks = cut_into_blocks(
                cohort,
                self.population.count_steps,
                len(ctx.nets),
                stack_size_by_model(ctx.nets, self.stack_size),
            )
            try:
                return self.worker.train_span(
                    ctx.round,
                    0,
                    blocks,
                    broadcasts,
                    sent_instructions,
                    client_states,
                    self.stack_size,
                    ctx.limits,
                )
            except StackTooLarge:
                self.stack_size = halve_stack_size(self.stack_size)

    def _separate_states(self, new_states: Mapping[int, Tree]) -> Mapping[int, Tree]:
        """Return the states as they are kept until the next round."""
        return new_states

    def _to_client_device(self, message: Tree) -> Tree:
        """Copy the server's message from the CPU to the device of the clients."""
        device = self.worker.device
        return message if device.type == "cpu" else tree.map(lambda leaf: leaf.to(device), message)

    def _select_on_device(self, held: Mapping[int, Tree], clients: Iterable[int]) -> Mapping[int, Tree]:
        """Return the trees that are `held` for these clients, on the device of the clients."""
        return {client: self._to_client_device(held[client]) for client in clients if client in held}

    def measure_losses(self, ctx: Context, state: Any, clients: Sequence[int]) -> Survey:
        """Measure the mean loss of the first deployed model on each client's data; see `ClientPool`."""
        models = select_survey_models(self.algorithm, ctx, state)
        losses = self.worker.measure_losses(ctx.round, self._to_client_device(models), clients)
        return Survey(losses, count_survey_traffic(self.algorithm, ctx, state, models, clients))

    def begin_evaluation(self, ctx: Context, state: Any) -> Callable[[], Mapping[str, Score]]:
        """Return a function that evaluates every deployed model when it is called; see `ClientPool`."""
        models = self._to_client_device(list_deployed_models(self.algorithm, ctx, state))
        shards = range(count_shards(self.population))
        return lambda: sum_scores(self.worker.score_shard(ctx.round, models, shard) for shard in shards)

    def begin_personal_evaluation(
        self, ctx: Context, state: Any, clients: Iterable[int] | None = None
    ) -> PersonalEvaluation:
        """Evaluate each client's personal model on its own test examples, one by one; see `ClientPool`."""
        return self._run_personal_evaluation(ctx, state, select_tested_clients(self.population, clients))

    def _run_personal_evaluation(self, ctx: Context, state: Any, asked: TestedClients) -> PersonalEvaluation:
        broadcasts = self._to_client_device(make_personal_broadcasts(self.algorithm, ctx, state))
        parts = list[PersonalScores]()
        for client in asked.clients:
            instruction = self._select_on_device(
                make_personal_instructions(self.algorithm, ctx, state, [client]), [client]
            )
            client_state = self._select_on_device(self._client_states, [client])
            parts.append(
                evaluate_personal_models(
                    self.worker, ctx.round, [client], broadcasts, instruction, client_state
                )
            )
            yield len(parts)
        return join_scores(parts, asked.untested)

    def client_states(self, clients: Iterable[int] | None = None) -> Mapping[int, Tree]:
        """Return {client: client state} of these clients, by default of all."""
        chosen = self._client_states if clients is None else clients
        return {client: self._client_states[client] for client in chosen if client in self._client_states}

    def restore_client_states(self, client_states: Mapping[int, Tree]) -> None:
        """Set these clients' states, as after a restart."""
        self._client_states.update(client_states)
        self._states_digest.update(client_state_digests(client_states))

    def close(self) -> None:
        """Do nothing: this pool holds no resources."""


class StackedPool(SerialPool):
    """Train stacks of clients in this process, by `torch.func.vmap` over their parameters.

    The clients of a stack have the same architecture and train at once. The results equal those of
    `SerialPool` up to rounding; with the same stack size they are equal bit for bit. If a stack needs too
    much memory, the round starts again with half the stack size, and later rounds keep the smaller size.

    Args:
        algorithm: the algorithm to run.
        population: the federation.
        stack_size: the number of clients that train at once.
        device: "cpu" or "cuda".
        faults: the policy for clients that raise.
        recorder: records the local steps as CUDA graphs and replays them; see
            `fedsim.stacking.graph_replay`. None: no graphs.

    Attributes:
        stack_size: the current stack size.

    Raises:
        SettingsError: `stack_size` is below 1.
    """

    name: ClassVar[str] = "stacked"

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        stack_size: int,
        device: str = "cpu",
        faults: Faults = DEFAULT,
        recorder: Recorder | None = None,
    ) -> None:
        if stack_size < 1:
            raise SettingsError(
                f"a stack of {stack_size!r} clients cannot be", "choose a stack size of 1 or more"
            )
        super().__init__(algorithm, population, device, faults)
        self.stack_size, self.worker.recorder = stack_size, recorder

    def _separate_states(self, new_states: Mapping[int, Tree]) -> Mapping[int, Tree]:
        """Return copies, so that no two clients share a tensor, as on Ray and after a restart.

        A stack computes with a shared tensor in another way than with one for each client, and with other
        last bits.
        """
        return {client: tree.map(torch.clone, kept) for client, kept in new_states.items()}


def stack_size_by_model(nets: Sequence[Net], stack_size: int) -> Callable[[int], int]:
    """Return a function from architecture to stack size: 1 for a net that cannot be stacked."""
    return lambda model: 1 if nets[model].unstackable else stack_size


def halve_stack_size(stack_size: int) -> int:
    """Return the stack size to try after one that needs too much memory."""
    return max(1, stack_size // 2)
