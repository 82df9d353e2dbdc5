"""FedExP: Speeding Up Federated Averaging via Extrapolation.

Jhunjhunwala, Wang, Joshi, ICLR 2023, arXiv:2301.09604.

Idea: the server goes beyond the mean of the clients' models, the further the more their changes differ.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
            norm      |D_i|^2 of its change of the global model, MEAN
    keeps   nothing
    server  params, the model before, the last step size

With D_i the change of client i and D the mean of all M changes of the cohort (Algorithm 1),

    eta_g = max(1, sum of |D_i|^2 / (2 M (|D|^2 + epsilon))),        w <- w + eta_g D.

The mean of the last two models is evaluated and exported, and is each client's personal model, because
single models swing about the optimum. Training goes on from the last one.

Deviations: means are weighted by numbers of examples, as in the authors' code; the code also multiplies
epsilon by M, and lets it fall with the square of a falling rate, neither of which is in the paper. After the
first round, the trained model alone is evaluated, as in the code. Norms are over the parameters. Statistics
of normalisation layers become the mean; those of the last model are evaluated.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg, step_towards
from fedsim.base import tree
from fedsim.base.parameters import Positive
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction, ServerState
from fedsim.core.capabilities import PersonalBroadcast
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class FedExPState(ServerState):
    """The server's model, the model before and the last step size; with several architectures, one of each.

    Attributes:
        previous: the model before the last round; {} in the first two rounds.
        step_size: `eta_g`, a scalar; 1 before the first round.
    """

    previous: Tree
    step_size: Tree


@dataclass(frozen=True, kw_only=True)
class FedExP(FedAvg, PersonalBroadcast):
    """FedAvg whose server extrapolates the mean of the clients' changes.

    Attributes:
        epsilon: added to the squared norm of the mean change, above 0; a larger one shortens the steps.
    """

    purposes: ClassVar[tuple[str, ...]] = ("server-optimisation",)

    epsilon: Positive = 0.001

    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "norm": Reduction.MEAN}
    update_figures: ClassVar[Collection[str]] = frozenset({"norm"})

    def init_server_state(self, ctx: Context) -> FedExPState:
        """The parent's model, without a model before."""
        params = super().init_server_state(ctx).params
        return FedExPState(
            params=params,
            previous=ctx.map_architectures(lambda *_: {}, params),
            step_size=ctx.map_architectures(
                lambda *_: {"eta_g": torch.ones((), dtype=torch.float64)}, params
            ),
        )

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The mean of the last two models."""
        sent = super().broadcast(ctx, state)
        return {**sent, "params": tree.select(self.deploy_models(ctx, state)["global"], sent["params"])}

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, and the squared norm of its change."""
        update = super().make_update(ctx, task, trained)
        change = tree.difference(trained.params, task.broadcast["params"], ctx.net.parameters)
        norm = {"squared": tree.dot(change, change)}
        return update._replace(upload={**update.upload, "norm": norm})

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> FedExPState:
        """The model `eta_g` times the way to the mean, for each architecture of the cohort."""
        means = reduced["params"]
        step_size = ctx.update_architectures(
            lambda arch_ctx, _, mean: {"eta_g": self._compute_step_size(arch_ctx, state, mean, reduced)},
            state.step_size,
            means,
        )
        params = ctx.update_architectures(
            lambda arch_ctx, model, mean: self.server_update(
                arch_ctx,
                model,
                step_towards(arch_ctx, model, mean, float(arch_ctx.select_architecture(step_size)["eta_g"])),
                reduced,
            ),
            state.params,
            means,
        )
        previous = ctx.update_architectures(
            lambda arch_ctx, *_: arch_ctx.select_architecture(state.params) if ctx.round else {},
            state.previous,
            means,
        )
        return FedExPState(params=params, previous=previous, step_size=step_size)

    def _compute_step_size(self, ctx: Context, state: Any, mean: Tree, reduced: ReducedUpdates) -> Tensor:
        """`eta_g` of this architecture, a float64 scalar."""
        change = tree.difference(mean, ctx.select_architecture(state.params), ctx.net.parameters)
        squared = ctx.select_architecture(reduced["norm"])["squared"]
        eta: Tensor = squared / (2 * (tree.dot(change, change) + self.epsilon))
        return eta.clamp(min=1)

    def deploy_models(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The mean of the last two models."""
        last, previous = (ctx.select_architecture(each) for each in (state.params, state.previous))
        if not previous:
            return {"global": last}
        return {"global": tree.cast_like(step_towards(ctx, previous, last, 0.5), last)}

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The step size `eta_g`; with several architectures, a list."""
        sizes = [
            round(float(each.select_architecture(state.step_size)["eta_g"]), 6)
            for each in ctx.architectures.values()
        ]
        return {"eta_g": sizes if len(sizes) > 1 else sizes[0]}
