"""Worker: trains the clients of a span, and evaluates models on a part of the test set.

Every pool consists of one or more workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng, tree
from fedsim.base.digest import client_state_digest
from fedsim.base.error_attribution import attribute_server_errors
from fedsim.base.precision import use_precision
from fedsim.base.tree import Tree
from fedsim.clients.population import LoadedExamples, Population, TaskLoader
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, Score
from fedsim.core.capabilities import UpdatePostprocessing, capability
from fedsim.core.client_task import Lockstep
from fedsim.data.dataset import Examples
from fedsim.engine.blocks import Block, Node, TreeSum
from fedsim.engine.faults import DEFAULT, Faults, should_fail_client
from fedsim.engine.membership import MEMBERS, keep_losses
from fedsim.engine.reduction import add_sums
from fedsim.engine.retries import AttemptResult, attempt_with_retries, refuse_changes
from fedsim.engine.span_result import (
    ClientOutcome,
    ClientResult,
    SpanResult,
    Sums,
    check_update,
    make_client_sums,
    require_update,
    require_weight,
    select_gathered,
)
from fedsim.learning_tasks.score import sum_scores
from fedsim.stacking.graph_replay import Recorder
from fedsim.stacking.grouping import StackingNotes
from fedsim.stacking.lockstep import raise_stack_too_large, train_at_once

SHARD = 1000
"""Test examples per shard, the unit of evaluation.

Losses are added shard by shard, so another number changes the last bits of the result.
"""

NO_LIMITS: Mapping[int, int] = {}


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: with two, the same training is not bit-identical in two processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Worker:
    """Runs the algorithm's client code on one device.

    Args:
        algorithm: the algorithm to run.
        population: the federation.
        device: "cpu" or "cuda".
        faults: the policy for clients that raise.
        recorder: records the local steps of stacks as CUDA graphs and replays them; None: no graphs.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        device: str = "cpu",
        faults: Faults = DEFAULT,
        recorder: Recorder | None = None,
    ) -> None:
        self.algorithm, self.population, self.faults, self.recorder = algorithm, population, faults, recorder
        self.device = torch.device(device)
        self.loader = TaskLoader(population, self.device)

    def train_span(
        self,
        round: int,
        start: int,
        blocks: Sequence[Block],
        broadcasts: Mapping[str, Tree],
        instructions: Mapping[int, Tree],
        client_states: Mapping[int, Tree | None],
        stack_size: int = 1,
        limits: Mapping[int, int] = NO_LIMITS,
    ) -> tuple[SpanResult, dict[int, Tree]]:
        """Train the clients of a span, one by one or in stacks.

        Args:
            round: counted from 0.
            start: the number of the span's first block.
            blocks: the span's blocks, in order.
            broadcasts: the broadcast to the clients of each architecture: {"0": {payload name: tree}, ...}.
            instructions: {client: its instructions}; a client without instructions may be missing.
            client_states: {client: its state}; None or missing for a client that trains for the first time.
            stack_size: the number of clients to train at once, if their net can be stacked.
            limits: see `Context.limits`.

        Returns:
            The span's sums, and {client: new client state}. The second is empty unless the algorithm is
            stateful; clients that failed are missing.

        Raises:
            ClientFailed: a client's code raised, and the fault policy ends the run.
            OutOfMemory: a client's code ran out of memory, and the fault policy ends the run.
            StackTooLarge: a stack of several clients ran out of memory.
        """
        began = perf_counter()
        result, new_states, summed = SpanResult(), dict[int, Tree](), TreeSum(add_sums)
        notes = StackingNotes(recorder=self.recorder)
        ctx = replace(self.loader.context(round), limits=limits)

        def train_client(client: int, lockstep: Lockstep | None) -> tuple[int, AttemptResult[ClientResult]]:
            client_ctx = ctx.for_client(client)
            return client, self._try_client(
                client_ctx,
                client,
                broadcasts[str(client_ctx.architecture)],
                instructions.get(client, {}),
                client_states.get(client),
                result.sizes,
                lockstep,
            )

        with one_thread(), use_precision(ctx.local.precision, self.device):
            for number, block in enumerate(blocks, start=start):
                sums: Sums = None
                why_not = ctx.for_client(block[0]).net.unstackable
                with self._seed_stack(ctx, block, stack_size):
                    for client, attempt in train_at_once(block, stack_size, why_not, train_client, notes):
                        sums = add_sums(sums, result.add_client(client, attempt))
                        if self.algorithm.stateful and attempt.value is not None:
                            new_states[client] = attempt.value.client_state
                summed.add_node(Node(0, number), sums)
        result.nodes, result.stacking = summed.nodes, StackingNotes(notes.stacked, notes.unstacked)
        result.seconds = perf_counter() - began
        return result, new_states

    def _seed_stack(
        self, ctx: Context, block: Sequence[int], stack_size: int
    ) -> AbstractContextManager[None]:
        """Seed torch's generator for an algorithm that draws from it: the clients of a stack share it."""
        if stack_size == 1:
            return nullcontext()
        return rng.torch_stream(ctx.seed, "stack", ctx.round, block[0])

    def _try_client(
        self,
        ctx: Context,
        client: int,
        broadcast: Tree,
        instruction: Tree,
        client_state: Tree | None,
        known_sizes: Mapping[str, int],
        lockstep: Lockstep | None,
    ) -> AttemptResult[ClientResult]:
        """Train one client under the fault policy."""

        def train_once(attempt: int) -> ClientResult:
            if should_fail_client(self.faults, ctx.seed, ctx.round, client, attempt):
                raise RuntimeError("chaos chose this client to fail")
            with nullcontext() if lockstep is None else raise_stack_too_large():
                task, update = self._run_client(ctx, client, broadcast, instruction, client_state, lockstep)
                return self._make_result(ctx, client, task, update, known_sizes)

        with refuse_changes(ctx.net, broadcast, client=client, stage="train"):
            return attempt_with_retries(
                train_once, client=client, stage="train", faults=self.faults, device=self.device
            )

    def _run_client(
        self,
        ctx: Context,
        client: int,
        broadcast: Tree,
        instruction: Tree,
        client_state: Tree | None,
        lockstep: Lockstep | None,
    ) -> tuple[ClientTask, ClientUpdate]:
        # Also for an algorithm that draws from torch's generator; in a stack, `_seed_stack` seeds it.
        is_seeded = ctx.net.stochastic or lockstep is None
        random = rng.torch_stream(ctx.seed, "dropout", ctx.round, client) if is_seeded else nullcontext()
        with random:
            task = self.loader.make_task(self.algorithm, ctx, client, broadcast, instruction, client_state)
            task = task._replace(lockstep=lockstep)
            update = require_update(self.algorithm, self.algorithm.train_client(ctx, task))
            if completing := capability(self.algorithm, UpdatePostprocessing):
                update = completing.postprocess_update(ctx, task, update)
            return task, update

    def _make_result(
        self,
        ctx: Context,
        client: int,
        task: ClientTask,
        update: ClientUpdate,
        known_sizes: Mapping[str, int],
    ) -> ClientResult:
        """Return one client's outcome, its part of every sum and its new state."""
        check_update(self.algorithm, update)
        weight = require_weight(self.algorithm, self.algorithm.weigh_client(ctx, task))
        metrics = {name: float(value) for name, value in update.metrics.items()}
        # What waits for the end of the span waits in the memory of the host.
        home = torch.device("cpu")
        entries = select_gathered(self.algorithm, update)
        if self.device != home:
            entries = {name: tree.map(lambda leaf: leaf.to(home), each) for name, each in entries.items()}
            update = update._replace(client_state=tree.map(lambda leaf: leaf.to(home), update.client_state))
        state_digest = client_state_digest(client, update.client_state) if self.algorithm.stateful else None
        sums = make_client_sums(self.algorithm, ctx, update, weight, known_sizes)
        bytes_up = sum(sums.bytes_up.values())
        outcome = ClientOutcome(client, weight, task.num_examples, metrics, entries, state_digest, bytes_up)
        return ClientResult(outcome, sums, update.client_state)

    @torch.inference_mode()
    def score_shard(
        self, round: int, models: Mapping[str, Mapping[str, Tree]], shard: int
    ) -> dict[str, Score]:
        """Evaluate the deployed models of every architecture on one shard of the test or validation set.

        Args:
            round: counted from 0.
            models: {architecture: {name: model}}, the architecture's number as text.
            shard: the shard's number; shards of the validation set come after those of the test set, and then
                those of the triggered test examples of a backdoor, and of the members.

        Returns:
            {name: score}. With several architectures, NAME has the sum of their scores, and `NAME_0`,
            `NAME_1`, ... have the score of each. On the validation set every name ends in `_validation`, on
            triggered examples in `_backdoor`, on training examples for membership inference in `_members`.
        """
        ctx, (kind, x, y) = self.population.context(round), _shard(self.population, shard)
        laid_out = tree.map(tree.to_channels_last, models)
        size = self.population.dataset.scored_at_once
        parts = zip(torch.split(x, size), torch.split(y, size), strict=True)
        with one_thread(), use_precision("float32", self.device):
            return sum_scores(
                self._name_scores(
                    f"{name}{kind}", number, self._score_batch(ctx.for_architecture(int(number)), model, x, y)
                )
                for x, y in parts
                for number, deployed in laid_out.items()
                for name, model in deployed.items()
            )

    def _name_scores(self, name: str, number: str, score: Score) -> dict[str, Score]:
        several = len(self.population.nets) > 1
        return {name: score, f"{name}_{number}": score} if several else {name: score}

    def _score_batch(self, ctx: Context, model: Tree, stored: Tensor, labels: Tensor) -> Score:
        x = tree.to_channels_last(self.population.dataset.normalise(stored.to(self.device)))
        with attribute_server_errors(self.algorithm, "predict"):
            outputs = self.algorithm.predict(ctx, model, x)
            labels, task = labels.to(self.device), ctx.learning_task
            score = self.population.scorer.score(outputs, labels)
            return score if self.population.members is None else keep_losses(score, task, outputs, labels)

    @torch.inference_mode()
    def measure_losses(
        self, round: int, models: Mapping[str, Tree], clients: Sequence[int]
    ) -> NDArray[np.float64]:
        """Measure the mean loss of a model on each client's own training examples.

        Args:
            round: counted from 0.
            models: one model per architecture, the architecture's number as text.
            clients: the clients of the survey.

        Returns:
            float64 `[len(clients)]`, in nats for cross-entropy. NaN for a client without examples, and for
            a client that failed under the policy "skip".

        Raises:
            ClientFailed: a client's loss could not be measured, and the fault policy ends the run.
        """
        ctx, laid_out = self.population.context(round), tree.map(tree.to_channels_last, models)
        with one_thread(), use_precision("float32", self.device):
            return np.array([self._mean_loss(ctx.for_client(client), laid_out, client) for client in clients])

    def _mean_loss(self, ctx: Context, models: Mapping[str, Tree], client: int) -> float:
        def measure_once(attempt: int) -> float:
            held = LoadedExamples(self.loader, self.population.partition.client_positions(client))
            model, predict = models[str(ctx.architecture)], self.algorithm.predict
            score = ctx.learning_task.score
            scores = [score(predict(ctx, model, batch.x), batch.y) for batch in held.batches()]
            examples = sum(score.examples for score in scores)
            return sum(score.loss for score in scores) / examples if examples else float("nan")

        tried = attempt_with_retries(
            measure_once, client=client, stage="survey", faults=self.faults, device=self.device
        )
        return float("nan") if tried.value is None else tried.value


def count_shards(population: Population) -> int:
    """Return the number of shards of all sets on which deployed models are evaluated."""
    return sum(-(-len(examples) // SHARD) for _, examples in _list_test_sets(population))


def _list_test_sets(population: Population) -> list[tuple[str, Examples]]:
    """List the sets on which deployed models are evaluated, each with the ending of its scores' names."""
    sets = {
        "": population.dataset.test,
        "_validation": population.validation,
        "_backdoor": population.backdoor,
        MEMBERS: population.members,
    }
    return [(kind, examples) for kind, examples in sets.items() if examples is not None]


def _shard(population: Population, shard: int) -> tuple[str, Tensor, Tensor]:
    """Return one shard: the ending of its scores' names, stored inputs, labels."""
    for kind, examples in _list_test_sets(population):
        if (count := -(-len(examples) // SHARD)) > shard:
            rows = slice(shard * SHARD, (shard + 1) * SHARD)
            return kind, tree.wrap_array(examples.x[rows]), tree.wrap_array(examples.y[rows])
        shard -= count
    raise IndexError("there is no such shard")
