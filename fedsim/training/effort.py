"""Count the training cost of clients: trainable-parameter updates and floating-point operations (FLOPs).

Both are counted, not measured, from three numbers: the parameters that each kind of local step moves
(`Algorithm.count_effort`), the number of steps, and the FLOPs of one example in one step
(`fedsim.training.flops`, computed once for each architecture and set of trainable keys).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedsim.base import tree
from fedsim.base.costs import Cost
from fedsim.base.error_attribution import attribute_server_errors
from fedsim.clients.population import Population
from fedsim.clients.sampling import count_apart
from fedsim.core import Algorithm, Context, Effort, LocalTraining
from fedsim.core.capabilities import PersonalModels, capability, held_out_share
from fedsim.training.flops import example_flops
from fedsim.training.work import Work, client_work


def paper_updates(trainable: Iterable[int], *, batches: int = 50, clients: int = 100) -> int:
    """Count trainable-parameter updates as Tables 3 and 4 of the layer-scheduling paper do.

    Every client counts in every round, whether or not it is in the cohort, with the same number of batches.

    Args:
        trainable: number of trainable parameters in each round.
        batches: number of batches of a client in a round.
        clients: number of clients, N.
    """
    return sum(trainable) * batches * clients


class _Kind(NamedTuple):
    """Clients whose training costs the same: those of one architecture, size and limit (`Context.limits`)."""

    architecture: int
    size: int
    limit: int | None


@dataclass
class CostMeter:
    """Counts the training cost of rounds.

    Args:
        algorithm: the algorithm.
        population: the federation.
    """

    algorithm: Algorithm
    population: Population
    _steps: dict[tuple[int, frozenset[str]], tuple[int, int]] = field(
        default_factory=dict, init=False, repr=False
    )

    def training_cost(self, ctx: Context, state: Any, clients: Sequence[int]) -> Cost:
        """Return the total training cost of these clients in a round that starts from this server state."""
        return _sum_kinds(self._count_training(ctx, state, clients))

    def client_flops(self, ctx: Context, state: Any, clients: Sequence[int]) -> list[int]:
        """Return the training FLOPs of each of these clients; they add up to those of `training_cost`."""
        costs = {kind: one.flops for kind, (_, one) in self._count_training(ctx, state, clients).items()}
        return [costs[self._find_kind(ctx, client)] for client in clients]

    def plain_flops(self, ctx: Context, clients: Sequence[int]) -> list[int]:
        """Return the FLOPs of each client if every local step trains the whole net, as in FedAvg."""
        kinds = self._count_kinds(
            ctx, clients, lambda each: each.local, lambda each, steps: (Effort(steps, each.net.parameters),)
        )
        return [kinds[self._find_kind(ctx, client)][1].flops for client in clients]

    def survey_flops(self, ctx: Context, client: int) -> int:
        """Return the FLOPs of one forward pass over the client's training examples."""
        return self.population.partition.size(client) * self._step(ctx.for_client(client), frozenset())[1]

    def _count_training(
        self, ctx: Context, state: Any, clients: Sequence[int]
    ) -> dict[_Kind, tuple[int, Cost]]:
        def effort(arch_ctx: Context, steps: int) -> Sequence[Effort]:
            return self.algorithm.count_effort(arch_ctx, state, steps)

        return self._count_kinds(ctx, clients, lambda arch_ctx: arch_ctx.local, effort)

    def tuning_cost(self, ctx: Context, clients: Sequence[int]) -> Cost:
        """Return the total cost of these clients' fine-tuning for a personal evaluation."""
        personal = capability(self.algorithm, PersonalModels)
        if personal is None:
            return Cost()
        kinds = self._count_kinds(
            ctx,
            clients,
            personal.plan_tuning,
            lambda arch_ctx, steps: (Effort(steps, arch_ctx.net.parameters),),
        )
        spent = _sum_kinds(kinds)
        return Cost(tuning_updates=spent.updates, tuning_flops=spent.flops)

    def _count_kinds(
        self,
        ctx: Context,
        clients: Sequence[int],
        local: Callable[[Context], LocalTraining | None],
        effort: Callable[[Context, int], Sequence[Effort]],
    ) -> dict[_Kind, tuple[int, Cost]]:
        """Return the number of clients of each kind, and the cost of one of them."""
        # Many clients are of one kind: compute the cost once for each.
        kinds = Counter(self._find_kind(ctx, client) for client in clients)
        found = dict[_Kind, tuple[int, Cost]]()
        with attribute_server_errors(self.algorithm, "count_effort"):
            for kind, times in kinds.items():
                arch_ctx = ctx.for_architecture(kind.architecture)
                if kind.limit is not None:
                    arch_ctx = arch_ctx.limit_work(kind.limit)
                training = local(arch_ctx)
                if training is not None:
                    work = client_work(training, kind.size)
                    found[kind] = times, self._cost(arch_ctx, work, effort(arch_ctx, work.steps))
        return found

    def _find_kind(self, ctx: Context, client: int) -> _Kind:
        arch_ctx = ctx.for_client(client)
        return _Kind(arch_ctx.architecture, self._size(arch_ctx, client), ctx.limits.get(client))

    def _size(self, ctx: Context, client: int) -> int:
        """Return the number of examples that this client trains on."""
        size = self.population.partition.size(client)
        with attribute_server_errors(self.algorithm, "held_out_share"):
            share = held_out_share(self.algorithm, ctx)
        return size - count_apart(size, share) if share else size

    def _cost(self, ctx: Context, work: Work, efforts: Sequence[Effort]) -> Cost:
        """Return the cost of one client; each kind of step has its share of the client's examples."""
        updates = flops = 0
        for effort in efforts:
            moving, each = self._step(ctx, frozenset(effort.trainable))
            forward = self._step(ctx, frozenset())[1] if effort.forwards else 0
            each += effort.forwards * forward
            each += _LINEAR_PASSES * effort.extra_parameters + effort.flops_per_example
            update_steps = effort.steps if effort.update_steps is None else effort.update_steps
            updates += update_steps * (moving + effort.extra_parameters)
            share = work.examples * effort.steps // max(1, work.steps)
            flops += (share if effort.examples is None else effort.examples) * each + effort.extra_flops
        return Cost(updates, flops)

    def _step(self, ctx: Context, keys: frozenset[str]) -> tuple[int, int]:
        """Return the parameter count of these keys, and the FLOPs of one example in a step on them."""
        address = (ctx.architecture, keys)
        if address not in self._steps:
            dataset = self.population.dataset
            example = dataset.normalise(tree.wrap_array(dataset.train.x[:1]))[0]
            self._steps[address] = ctx.net.count_parameters_of(keys), example_flops(ctx.net, keys, example)
        return self._steps[address]


def _sum_kinds(kinds: Mapping[_Kind, tuple[int, Cost]]) -> Cost:
    costs = (Cost(times * one.updates, times * one.flops) for times, one in kinds.values())
    return sum(costs, Cost())


_LINEAR_PASSES = 4
"""FLOPs of an example for each weight of a linear layer: forward, and backward for the weights."""
