"""RobustAggregation: any algorithm that averages models, with another rule in place of the mean.

Wire:
    down, keeps  the base algorithm's
    up      the base algorithm's payloads, each GATHER in place of MEAN or SUM: the bytes on the network are
            the same, and inside the cluster every client's model travels to the server
    server  base      the base algorithm's state
            history   with FoolsGold: the sum of each client's updates, float64
            shares    of the clients in the update of the last round

The rule combines whole updates, over all payloads together, without running statistics of the model:
variances are often so much larger than parameters that distances and cosines would be theirs alone. Of the
statistics the server takes the mean with the shares of the rule; a rule without shares combines them by
themselves. The base algorithm then gets the combined update as its mean; a SUM is this mean times the number
of clients. Clients without weight, such as those without examples, do not count. Updates with a number that
is not finite do not count either, but in the mean. Clients of different architectures are combined apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsim.base import rng, tree
from fedsim.base.tree import Tree
from fedsim.core import Algorithm, Batch, ClientTask, Context, ReducedUpdates, Reduction
from fedsim.core.batches import RepeatedBatches
from fedsim.core.capabilities import ClientInstructions, RoundNoise, StepNoise
from fedsim.core.public_set import PublicSet
from fedsim.core.wrapper import StatefulWrapper, WrapperState
from fedsim.uploads.aggregators import Aggregator, Combined, Mean, put_in_buckets
from fedsim.uploads.model_updates import (
    ModelUpdate,
    read_update,
    replace_part,
    require_model_updates,
    select_parameters,
    select_statistics,
    unwrap,
    write_update,
)


@dataclass(frozen=True, kw_only=True)
class RobustAggregationState(WrapperState):
    """The server state.

    Attributes:
        history: {client: the sum of its updates, float64 `[d]`}; {} for a rule that does not need it.
        shares: {client: its share in the update of the last round}; {} for a rule without shares.
    """

    history: Mapping[str, Tensor]
    shares: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RobustAggregation(StatefulWrapper):
    """Any algorithm whose uploads are model updates, with a robust rule in place of the mean.

    Attributes:
        base: the algorithm.
        aggregator: the rule.

    Raises:
        ValueError: if the uploads of the base algorithm are no model updates.
    """

    aggregator: Aggregator

    def __post_init__(self) -> None:
        super().__post_init__()
        require_model_updates(self.base)
        if self.aggregator.needs_server_update:
            if reason := explain_untrainable_server(self.base):
                raise ValueError(f"the server cannot train as a client: {reason}")
            object.__setattr__(self, "needs_public_set", True)
        object.__setattr__(self, "uploads", dict.fromkeys(self.base.uploads, Reduction.GATHER))

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, without a history."""
        return RobustAggregationState(base=self.base.init_server_state(ctx), history={}, shares={})

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's state after the combined update."""
        found, state = dict[str, Any](), replace(state, shares={})
        for number, each in ctx.architectures.items():
            came = [
                place
                for place, client in enumerate(reduced.clients)
                if each.is_of_architecture(client) and reduced.weights[place] > 0
            ]
            places = [place for place in came if self._is_counted(reduced, place)]
            if places:
                found[number], state = self._combine(each, state, reduced, places)
            if state.shares:
                left_out = {str(reduced.clients[place]): 0.0 for place in came if place not in places}
                state = replace(state, shares={**state.shares, **left_out})
        payloads = {
            name: found.get("0", {}).get(name, {})
            if len(ctx.nets) == 1
            else {number: payload[name] for number, payload in found.items()}
            for name in self.uploads
        }
        return super().aggregate(ctx, state, replace(reduced, payloads=payloads))

    def _is_counted(self, reduced: ReducedUpdates, place: int) -> bool:
        """Whether an update counts: it is finite, or the rule is the mean, which is no defence."""
        sent = {name: reduced[name][place] for name in self.uploads}
        return isinstance(self.aggregator, Mean) or all(
            bool(leaf.isfinite().all()) for _, leaf in tree.leaves(sent)
        )

    def _combine(
        self, ctx: Context, state: Any, reduced: ReducedUpdates, places: Sequence[int]
    ) -> tuple[Mapping[str, Any], Any]:
        """Return the reduced payloads of the clients at these places, and the state with their record."""
        kinds, broadcast = self.base.uploads, self.base.broadcast(ctx, state.base)
        sent = [read_update(kinds, broadcast, {n: reduced[n][place] for n in kinds}) for place in places]
        clients = tuple(reduced.clients[place] for place in places)
        parameters = [select_parameters(ctx, update) for update in sent]
        updates = torch.stack([tree.flatten(each) for each in parameters])
        weights = torch.tensor([reduced.weights[place] for place in places], dtype=torch.float64)
        history = dict(state.history)
        if self.aggregator.needs_history:
            for client, update in zip(clients, updates, strict=True):
                history[str(client)] = history[str(client)] + update if str(client) in history else update
        beside = torch.stack([history[str(client)] for client in clients]) if history else updates
        if self.aggregator.needs_server_update:
            beside = tree.flatten(select_parameters(ctx, self._train_on_public_set(ctx, broadcast)))[None]
        combined = self._apply_rule(ctx, updates, weights, beside)
        change = dict(replace_part(sent[0], parameters[0], combined.update))
        if ctx.net.statistics:
            statistics = [select_statistics(ctx, update) for update in sent]
            found = self._combine_statistics(ctx, statistics, weights, combined.weights)
            change = dict(replace_part(change, statistics[0], found))
        for name, kind in kinds.items():
            if kind is Reduction.SUM:
                change[name] = tree.scale(change[name], float(len(places)))
        shares = dict(state.shares)
        if combined.weights is not None:
            shares |= zip(map(str, clients), combined.weights.tolist(), strict=True)
        state = replace(state, history=history, shares=shares)
        return write_update(kinds, broadcast, change), state

    def _combine_statistics(
        self, ctx: Context, statistics: Sequence[ModelUpdate], weights: Tensor, shares: Tensor | None
    ) -> Tensor:
        """Return the mean of statistics with the shares of the rule; without shares, what the rule gives."""
        values = torch.stack([tree.flatten(each) for each in statistics])
        return self._apply_rule(ctx, values, weights, values).update if shares is None else shares @ values

    def _train_on_public_set(self, ctx: Context, broadcast: Tree) -> ModelUpdate:
        """Return the update of the server, which trains on the public set as a client does."""
        public, local = ctx.require_public_set(), ctx.local
        shuffled = public.shuffle_batches(
            ctx.seed, ctx.round, epochs=local.epochs, batch_size=local.batch_size
        )
        counts = torch.zeros(ctx.num_classes).index_add(0, public.y, torch.ones(len(public)))
        task = ClientTask(
            client=ctx.num_clients,
            batches=shuffled if local.steps is None else RepeatedBatches(shuffled, local.steps),
            num_examples=len(public),
            label_counts=counts,
            known_counts=counts,
            broadcast=broadcast,
            instruction={},
            client_state=self.base.init_client_state(ctx, broadcast),
            examples=_PublicExamples(public),
        )
        is_random = ctx.net.stochastic
        with rng.torch_stream(ctx.seed, "server dropout", ctx.round) if is_random else nullcontext():
            upload = self.base.train_client(ctx, task).upload
        return read_update(self.base.uploads, broadcast, upload)

    def _apply_rule(self, ctx: Context, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Apply the rule to the updates, or to the means of buckets of them."""
        size = self.aggregator.bucket_size
        if size == 1:
            return self.aggregator.combine(updates, weights, beside)
        drawn = rng.stream(ctx.seed, "buckets", ctx.round, ctx.architecture).permutation(len(updates))
        means, masses, buckets = put_in_buckets(updates, weights, torch.from_numpy(drawn), size)
        compared = beside if self.aggregator.needs_server_update else means
        found = self.aggregator.combine(means, masses, compared)
        if found.weights is None:
            return found
        return found._replace(weights=found.weights[buckets] * weights / masses[buckets])

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, and the clients that the rule kept out of the update."""
        said: Mapping[str, Any] = super().describe_round(ctx, state)
        if not state.shares:
            return said
        excluded = sorted(int(client) for client, share in state.shares.items() if share == 0)
        return {**said, "excluded_clients": excluded}


class _PublicExamples:
    """The public set as the examples of a client (`ClientExamples`)."""

    difficulty = None

    def __init__(self, public: PublicSet) -> None:
        self.public = public

    def __len__(self) -> int:
        return len(self.public)

    def batches(self) -> Iterator[Batch]:
        """Yield all examples in order."""
        return self.public.iterate_batches()


def explain_untrainable_server(algorithm: Algorithm | type[Algorithm]) -> str:
    """Return why the server cannot train as a client of this algorithm does; "" if it can."""
    kind = algorithm if isinstance(algorithm, type) else type(unwrap(algorithm))
    for needed in (StepNoise, RoundNoise, ClientInstructions):
        if issubclass(kind, needed):
            return f"clients of {kind.__name__} get random numbers or instructions of their own"
    return ""
