"""Adaptive Federated Optimization: FedAdagrad, FedAdam and FedYogi.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021, arXiv:2003.00295.

Idea: the server treats the mean change of the cohort as a gradient and makes a step of an adaptive optimizer
with it.

Wire:
    down    params    the global model
    up      params    the trained model, MEAN
    keeps   nothing
    server  params, the first and the second moment of the changes

With D = (the clients' mean) - w, a round of Algorithm 2 is, for each weight,

    m <- beta1 m + (1 - beta1) D                                       m = 0 at first
    v <- v + D^2                                       FedAdagrad      v = tau^2 at first
    v <- beta2 v + (1 - beta2) D^2                     FedAdam
    v <- v - (1 - beta2) D^2 sign(v - D^2)             FedYogi
    w <- w + server_lr m / (sqrt(v) + tau)

There is no bias correction. Towards D^2, v moves by (1 - beta2) D^2 in FedYogi, and by (1 - beta2) |v - D^2|
in FedAdam.

With tau far above every change, v stays at tau^2 in FedAdagrad and FedYogi. The step is then
server_lr / (2 tau) m: FedAvgM of the form `average` with beta = beta1 and this rate. FedAdam's v falls to
beta2^t tau^2, and its rate rises from there towards server_lr / tau.

In the first round, FedYogi's v is larger than FedAdam's by (1 - beta2) tau^2 where |D| > tau, and by
(1 - beta2) (tau^2 - 2 D^2) elsewhere. The smaller tau, the nearer are their first steps.

Deviations: means are weighted by numbers of examples. v begins with the smallest value that the paper allows.
Statistics of normalisation layers become those of the mean.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg, zero_weights
from fedsim.base import tree
from fedsim.base.parameters import Positive, Range
from fedsim.base.tree import Tree
from fedsim.core import Context, ReducedUpdates, ServerState
from fedsim.models.net import Params

Decay = Annotated[float, Range(minimum=0, below=1)]


@dataclass(frozen=True, kw_only=True)
class FedOptState(ServerState):
    """The server's model and the moments of its changes; with several architectures, one tree for each.

    Attributes:
        first_moment: m, over the parameters.
        second_moment: v, over the parameters.
    """

    first_moment: Tree
    second_moment: Tree


@dataclass(frozen=True, kw_only=True)
class FedOpt(FedAvg):
    """FedAvg with an adaptive step of the server; subclasses say how the second moment follows.

    Attributes:
        server_lr: learning rate of the server, above 0; the paper tunes it for each task.
        beta1: share of the last first moment in the next one; 0 is a step without momentum.
        tau: added to the root of the second moment, whose first value is tau squared; above 0.
    """

    server_lr: Positive = 0.01
    beta1: Decay = 0.9
    tau: Positive = 0.001

    @abstractmethod
    def update_second_moment(self, moment: Tensor, change: Tensor) -> Tensor:
        """The next v of one parameter, from v and D; all float64 and of the parameter's shape."""

    def init_server_state(self, ctx: Context) -> FedOptState:
        """The parent's state, with m = 0 and v = tau^2."""
        params = super().init_server_state(ctx).params
        zeros = ctx.map_architectures(zero_weights, params)
        return FedOptState(
            params=params,
            first_moment=zeros,
            second_moment=tree.map(lambda zero: zero + self.tau**2, zeros),
        )

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> FedOptState:
        """Both moments, then the model, for each architecture of the cohort."""
        means = reduced["params"]
        if not means:
            return state  # type: ignore[no-any-return]
        changes = ctx.map_architectures(
            lambda arch_ctx, mean: tree.difference(
                mean, arch_ctx.select_architecture(state.params), arch_ctx.net.parameters
            ),
            means,
        )
        first = ctx.update_architectures(
            lambda _, old, change: _map_moment(self._update_first_moment, old, change),
            state.first_moment,
            changes,
        )
        second = ctx.update_architectures(
            lambda _, old, change: _map_moment(self.update_second_moment, old, change),
            state.second_moment,
            changes,
        )
        params = ctx.update_architectures(
            lambda arch_ctx, model, mean: self._step(
                model, mean, arch_ctx.select_architecture(first), arch_ctx.select_architecture(second)
            ),
            state.params,
            means,
        )
        return FedOptState(params=params, first_moment=first, second_moment=second)

    def _update_first_moment(self, moment: Tensor, change: Tensor) -> Tensor:
        """The next m of one parameter, from m and D."""
        return self.beta1 * moment + (1 - self.beta1) * change

    def _step(self, params: Params, mean: Tree, first: Tree, second: Tree) -> Params:
        """The model w + server_lr m / (sqrt(v) + tau), with the statistics of the mean."""
        moved = {
            key: params[key].double() + self.server_lr * m.double() / (second[key].double().sqrt() + self.tau)
            for key, m in first.items()
        }
        target = {**mean, **moved}
        return {**params, **tree.cast_like(target, tree.select(params, target))}


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(FedOpt):
    """FedAvg with a step of Adagrad on the server (Algorithm 2)."""

    purposes: ClassVar[tuple[str, ...]] = ("server-optimisation",)

    server_lr: Positive = 0.1
    beta1: Decay = 0.0

    def update_second_moment(self, moment: Tensor, change: Tensor) -> Tensor:
        """The sum of all squared changes, v + D^2."""
        return moment + change**2


@dataclass(frozen=True, kw_only=True)
class FedAdam(FedOpt):
    """FedAvg with a step of Adam on the server (Algorithm 2).

    Attributes:
        beta2: 1 - beta2 is the share of a squared change in the next second moment.
    """

    purposes: ClassVar[tuple[str, ...]] = ("server-optimisation",)

    beta2: Decay = 0.99

    def update_second_moment(self, moment: Tensor, change: Tensor) -> Tensor:
        """The running mean of the squared changes, beta2 v + (1 - beta2) D^2."""
        return self.beta2 * moment + (1 - self.beta2) * change**2


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    """FedAvg with a step of Yogi on the server (Algorithm 2).

    Attributes:
        beta2: 1 - beta2 is the share of a squared change by which the second moment rises or falls.
    """

    purposes: ClassVar[tuple[str, ...]] = ("server-optimisation",)

    def update_second_moment(self, moment: Tensor, change: Tensor) -> Tensor:
        """The moment moved towards the squared change, v - (1 - beta2) D^2 sign(v - D^2)."""
        square = change**2
        return moment - (1 - self.beta2) * square * torch.sign(moment - square)


def _map_moment(update: Callable[[Tensor, Tensor], Tensor], old: Tree, change: Tree) -> Tree:
    """The next moment of each parameter, computed in float64 and rounded once."""
    return tree.map(lambda moment, moved: update(moment.double(), moved).to(moment.dtype), old, change)
