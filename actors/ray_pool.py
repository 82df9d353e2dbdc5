"""RayPool: trains clients on Ray actors. Its results equal those of one process, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
import ray

from actors.actor_errors import LOST_OBJECT_ERRORS
from actors.actor_group import ActorGroup
from actors.call_queue import ActorCall, CallQueue, Submit
from actors.call_sizes import count_clients_per_call, max_blocks_per_span, model_bytes
from actors.client_messages import ClientMessage, pack_client_messages
from fedsim.base import tree
from fedsim.base.digest import ClientStatesDigest, client_state_digests
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, ReducedUpdates, Score, Survey
from fedsim.core.personal_scores import join_scores
from fedsim.engine.blocks import Block, cut_evenly, cut_into_blocks, cut_into_spans
from fedsim.engine.client_pool import PersonalEvaluation
from fedsim.engine.evaluation.personal_evaluation import personal_evaluation_work, select_tested_clients
from fedsim.engine.faults import DEFAULT, Faults
from fedsim.engine.pools import halve_stack_size, stack_size_by_model
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
from fedsim.engine.worker import count_shards
from fedsim.errors import StackTooLarge
from fedsim.learning_tasks.score import sum_scores
from fedsim.stacking.stack_size import StackSetting, choose_stack_size

STATES_PER_CALL = 32
"""Client states in one call after a restart: the head holds those of a few calls, and not all at once."""

SHORT_ROUND_SECONDS = 0.02
"""A shorter round is sent as one message to each worker: there is little load to balance."""


class _StartedRound(NamedTuple):
    """A round that the actors work on: the blocks of each call, the local steps, and the sum of results."""

    blocks: list[Sequence[Block]]
    calls: list[ActorCall]
    steps: int
    sums: SpanSums


class RayPool:
    """A pool of client actors. Client states stay in the object store; the pool's process owns them.

    Args:
        algorithm: of the run.
        population: of the run.
        actor_group: the actors.
        faults: the policy for a client that raises, and the number of retries after an actor's death.
        stack: how many clients train at once in an actor; see `fedsim.stacking.stack_size`.
        graphs: replay the steps of stacks as CUDA graphs; see `fedsim.stacking.graph_replay`.

    Attributes:
        population: with the arrays of the object store, which all actors of a node share.
        stack_size: how many clients train at once now; halved for the rest of the run if memory runs out.
        stack_sizes: {round, from 1: its stack size in an earlier attempt}. A repeated round uses no larger
            stack.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        actor_group: ActorGroup,
        *,
        faults: Faults = DEFAULT,
        stack: StackSetting = 1,
        graphs: bool = False,
    ) -> None:
        self.algorithm, self.actor_group, self.faults = algorithm, actor_group, faults
        shared = ray.put(population)
        self.population: Population = ray.get(shared)
        self.actor_infos = actor_group.set_up_actors(ray.put(algorithm), shared, faults, graphs)
        self.stack_size = choose_stack_size(stack, self.population, self.actor_infos[0]["device"])
        self.stack_sizes: Mapping[int, int] = {}
        self._client_states: dict[int, Any] = {}
        self._states_digest = ClientStatesDigest()
        self._calls = CallQueue(actor_group, faults.max_retries)
        self._restarts = actor_group.restarts
        self._seconds_per_step = inf  # seconds of a local step in the last round

    def begin_training(self, ctx: Context, state: Any, cohort: Sequence[int]) -> Callable[[], ReducedUpdates]:
        """Begin one round of these clients; see `ClientPool`."""
        algorithm = self.algorithm
        broadcasts = make_broadcasts(algorithm, ctx, state)
        instructions = make_instructions(algorithm, ctx, state, cohort)
        sent = ray.put(tree.to_numpy(broadcasts))
        written = pack_client_messages(instructions)
        self.stack_size = min(self.stack_size, self.stack_sizes.get(ctx.round + 1, self.stack_size))

        def begin_round() -> _StartedRound:
            stack_sizes = stack_size_by_model(ctx.nets, self.stack_size)
            blocks = cut_into_blocks(cohort, self.population.count_steps, len(ctx.nets), stack_sizes)
            steps = [sum(self.population.count_steps(client) for client in block) for block in blocks]
            most = max_blocks_per_span(blocks, broadcasts, model_bytes(ctx)) if algorithm.stateful else None
            cuts = [(span.start, blocks[span.start : span.stop]) for span in self._split_blocks(steps, most)]
            sums = SpanSums(algorithm)
            calls = [
                ActorCall(
                    self._make_train_call(ctx, *part, sent, written),
                    take=lambda result: sums.take(result.to_tensors()),
                )
                for part in cuts
            ]
            self._calls.add(calls)
            return _StartedRound([mine for _, mine in cuts], calls, sum(steps), sums)

        begun, down = begin_round(), measure_bytes_down(algorithm, ctx, broadcasts, instructions)

        def finish_round() -> ReducedUpdates:
            ended, results = self._wait_for_results(begun, begin_round)
            self._seconds_per_step = sum(result.seconds for result in results) / max(1, ended.steps)
            if algorithm.stateful:
                for mine, call, result in zip(ended.blocks, ended.calls, results, strict=True):
                    new = zip(_flatten_blocks(mine), call.references[1:], strict=True)
                    self._client_states.update(entry for entry in new if entry[0] not in result.errors)
            return combine_results(
                algorithm,
                ctx,
                ended.sums,
                results,
                cohort,
                down,
                self._describe_engine(),
                self._states_digest,
            )

        return finish_round

    def _wait_for_results(
        self, begun: _StartedRound, restart_round: Callable[[], _StartedRound]
    ) -> tuple[_StartedRound, list[SpanResult]]:
        """Wait for the results of a round; if its stacks need too much memory, repeat it with half the size.

        The whole round is repeated, so that its result is that of a round with the smaller stacks.
        """
        while True:
            try:
                return begun, self._calls.wait_for_results(begun.calls)
            except StackTooLarge:
                self._calls.drop(begun.calls)
                self.stack_size = halve_stack_size(self.stack_size)
                begun = restart_round()

    def _split_blocks(self, steps: Sequence[int], most: int | None) -> Iterable[range]:
        """Split the blocks into spans: one per worker if the last round was short, else many.

        The split decides which actor adds the updates, and never changes the sum. With client states the
        number of messages does not matter, because every state is a message of its own.
        """
        workers = len(self.actor_group.actors)
        if most is None and self._seconds_per_step * sum(steps) < SHORT_ROUND_SECONDS * workers:
            return cut_evenly(len(steps), workers)
        return cut_into_spans(steps, workers, most)

    def _describe_engine(self) -> dict[str, Any]:
        """Describe the pool for the round's record; `restarts` counts since the last call."""
        restarts, self._restarts = self.actor_group.restarts - self._restarts, self.actor_group.restarts
        devices = ", ".join(sorted({member["name"] for member in self.actor_infos}))
        actor_infos = {"actors": len(self.actor_group.actors), "restarts": restarts, "device": devices}
        return {"pool": "ray", "width": self.stack_size, **actor_infos}

    def _make_train_call(
        self,
        ctx: Context,
        start: int,
        blocks: Sequence[Block],
        sent: Any,
        written: Mapping[int, ClientMessage],
    ) -> Submit:
        clients, stack_size = _flatten_blocks(blocks), self.stack_size
        mine = {client: written[client] for client in clients if client in written}
        limits = {client: ctx.limits[client] for client in clients if client in ctx.limits}
        client_states = self._list_client_states(clients)
        returns = 1 + len(client_states)

        def submit(actor: Any, attempt: int) -> list[Any]:
            call = actor.train_span if returns == 1 else actor.train_span.options(num_returns=returns)
            span = (ctx.round, start, attempt, stack_size, blocks, limits)
            references = call.remote(*span, sent, mine, *client_states)
            return list(references) if returns > 1 else [references]

        return submit

    def _list_client_states(self, clients: Sequence[int]) -> list[Any]:
        """Return a state for each client, None for one without a state; [] if no client keeps one."""
        return [self._client_states.get(client) for client in clients] if self.algorithm.stateful else []

    def measure_losses(self, ctx: Context, state: Any, clients: Sequence[int]) -> Survey:
        """Measure the mean loss of the first deployed model on each client's data; see `ClientPool`."""
        models = select_survey_models(self.algorithm, ctx, state)
        sent = ray.put(tree.to_numpy(models))
        size = count_clients_per_call(len(clients), len(self.actor_group.actors))

        def make_call(some: Sequence[int]) -> Submit:
            return lambda actor, _: [actor.measure_losses.remote(ctx.round, sent, some)]

        portions = [clients[start : start + size] for start in range(0, len(clients), size)]
        calls = [ActorCall(make_call(some)) for some in portions]
        self._calls.add(calls)
        losses = self._calls.wait_for_results(calls)
        traffic = count_survey_traffic(self.algorithm, ctx, state, models, clients)
        return Survey(np.concatenate(losses), traffic)

    def begin_evaluation(
        self, ctx: Context, state: Any, shards: Iterable[int] | None = None
    ) -> Callable[[], Mapping[str, Score]]:
        """Begin to score every deployed model on these shards of the test set, by default on all of them."""
        models = ray.put(tree.to_numpy(list_deployed_models(self.algorithm, ctx, state)))

        def make_call(shard: int) -> Submit:
            return lambda actor, _: [actor.score_shard.remote(ctx.round, models, shard)]

        every = range(count_shards(self.population))
        calls = [ActorCall(make_call(shard)) for shard in (every if shards is None else shards)]
        self._calls.add(calls)
        return lambda: sum_scores(self._calls.wait_for_results(calls))

    def begin_personal_evaluation(
        self, ctx: Context, state: Any, clients: Iterable[int] | None = None
    ) -> PersonalEvaluation:
        """Begin to score each client's own model, on whichever actors are free; see `ClientPool`."""
        algorithm, asked = self.algorithm, select_tested_clients(self.population, clients)
        broadcasts = make_personal_broadcasts(algorithm, ctx, state)
        sent = ray.put(tree.to_numpy(broadcasts))
        work = [personal_evaluation_work(algorithm, self.population, ctx, client) for client in asked.clients]
        most = max_blocks_per_span([(client,) for client in asked.clients[:1]], broadcasts, model_bytes(ctx))
        portions = [
            asked.clients[part.start : part.stop]
            for part in cut_into_spans(
                work, len(self.actor_group.actors), most if algorithm.stateful else None
            )
        ]
        calls = [ActorCall(self._make_personal_call(ctx, state, mine, sent)) for mine in portions]
        self._calls.add(calls)
        return self._collect_personal_scores(calls, portions, asked.untested)

    def _collect_personal_scores(
        self, calls: Sequence[ActorCall], portions: Sequence[Sequence[int]], untested: int
    ) -> PersonalEvaluation:
        for _ in self._calls.iterate_progress(calls):
            yield sum(len(mine) for mine, call in zip(portions, calls, strict=True) if call.ended)
        return join_scores([call.value for call in calls], untested)

    def _make_personal_call(self, ctx: Context, state: Any, clients: Sequence[int], sent: Any) -> Submit:
        client_states = self._list_client_states(clients)

        def submit(actor: Any, _: int) -> list[Any]:
            # Packed when the call is sent, so that this process never holds the messages of all clients.
            mine = pack_client_messages(make_personal_instructions(self.algorithm, ctx, state, clients))
            return [actor.evaluate_personal_models.remote(ctx.round, clients, sent, mine, *client_states)]

        return submit

    def client_states(self, clients: Iterable[int] | None = None) -> Mapping[int, Tree]:
        """Download the states of these clients, by default of all.

        Raises:
            NodeLost, ObjectLost: if a state is gone.
        """
        chosen = self._client_states if clients is None else clients
        held = {client: self._client_states[client] for client in chosen if client in self._client_states}
        try:
            found = zip(held, ray.get(list(held.values())), strict=True)
        except LOST_OBJECT_ERRORS as error:
            self.actor_group.raise_object_loss(error)
        return {client: tree.from_numpy(client_state) for client, client_state in found}

    def restore_client_states(self, client_states: Mapping[int, Tree]) -> None:
        """Restore the states of these clients, as after a restart, on the nodes of all actors in turn."""
        clients = list(client_states)
        parts = [
            clients[start : start + STATES_PER_CALL] for start in range(0, len(clients), STATES_PER_CALL)
        ]
        calls = [ActorCall(_make_keep_call([client_states[client] for client in some])) for some in parts]
        self._calls.add(calls)
        self._calls.wait_for_results(calls)
        for some, call in zip(parts, calls, strict=True):
            self._client_states.update(zip(some, call.references[1:], strict=True))
        self._states_digest.update(client_state_digests(client_states))

    def drop_client_states(self) -> None:
        """Forget the states of all clients."""
        self._client_states.clear()
        self._states_digest = ClientStatesDigest()

    def close(self) -> None:
        """End the actors, and give their resources back."""
        self.actor_group.close()


def _make_keep_call(client_states: Sequence[Tree]) -> Submit:
    def submit(actor: Any, _: int) -> list[Any]:
        call = actor.keep_states.options(num_returns=1 + len(client_states))
        return list(call.remote(*map(tree.to_numpy, client_states)))

    return submit


def _flatten_blocks(blocks: Sequence[Block]) -> list[int]:
    return [client for block in blocks for client in block]
