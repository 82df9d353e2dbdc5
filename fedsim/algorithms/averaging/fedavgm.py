"""Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.

Hsu, Qi, Brown, 2019, arXiv:1909.06335.

Idea: the server treats the cohort's mean as a gradient step and applies momentum, to even out the bias of
single cohorts.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   nothing
    server  params, and its own last step

With D = w - (the clients' mean), the heavy ball is v <- beta v + D, w <- w - v. Papers that compare with
FedAvgM often use the moving average v <- beta v + (1 - beta) D instead. Its steps are shorter, in the long
run by the factor 1 - beta; a beta tuned for one form does not suit the other.

Deviations: here are the heavy ball of the paper's text and the moving average; Flower's baseline reads the
paper's experiments as Nesterov's momentum. v is the difference of the server's models after rounding.
Statistics of normalisation layers are replaced by the mean, without momentum.

Reference result: see docs/results/kdia.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from fedsim.algorithms.fedavg import FedAvg, step_towards, zero_weights
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import Context, ReducedUpdates, ServerState
from fedsim.models.net import Params


@dataclass(frozen=True, kw_only=True)
class FedAvgMState(ServerState):
    """The server's model and its last step.

    Attributes:
        velocity: v, over the parameters; with several architectures, one tree for each.
    """

    velocity: Tree


@dataclass(frozen=True, kw_only=True)
class FedAvgM(FedAvg):
    """FedAvg whose server moves with momentum; `beta: 0` is FedAvg.

    Attributes:
        beta: share of the last step that is added again, in [0, 1).
        form: `heavy_ball` adds the whole step to the mean, `average` the share 1 - beta of it.
    """

    beta: Annotated[float, Range(minimum=0, below=1)] = 0.9
    form: Literal["heavy_ball", "average"] = "heavy_ball"

    purposes: ClassVar[tuple[str, ...]] = ("server-optimisation", "label-skew")

    def init_server_state(self, ctx: Context) -> FedAvgMState:
        """The parent's state, with a velocity of 0."""
        params = super().init_server_state(ctx).params
        return FedAvgMState(params=params, velocity=ctx.map_architectures(zero_weights, params))

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> FedAvgMState:
        """The step to the mean plus beta times the last step, for each architecture of the cohort."""
        means = reduced["params"]
        params = ctx.update_architectures(
            lambda arch_ctx, model, mean: self._apply_momentum(
                arch_ctx, model, mean, arch_ctx.select_architecture(state.velocity)
            ),
            state.params,
            means,
        )
        velocity = ctx.update_architectures(
            lambda arch_ctx, last, _: tree.sub(
                tree.select(arch_ctx.select_architecture(state.params), last),
                tree.select(arch_ctx.select_architecture(params), last),
            ),
            state.velocity,
            means,
        )
        return FedAvgMState(params=params, velocity=velocity)

    def _apply_momentum(self, ctx: Context, params: Params, mean: Tree, velocity: Tree) -> Params:
        """Return w - v with v <- beta v + D; the form `average` has (1 - beta) D.

        Args:
            ctx: the round, for this architecture.
            params: w, the present model.
            mean: of the clients' models; D = w - mean.
            velocity: v, the last step.
        """
        target = dict(step_towards(ctx, params, mean, 1.0 if self.form == "heavy_ball" else 1 - self.beta))
        for key, last in tree.select(velocity, target).items():
            target[key] = target[key] - self.beta * last.double()
        return {**params, **tree.cast_like(target, tree.select(params, target))}
