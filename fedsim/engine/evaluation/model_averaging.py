"""ModelAveraging: an average of the global models of several rounds, scored beside them, for any algorithm.

Polyak and Juditsky, SIAM Journal on Control and Optimization 1992; `torch.optim.swa_utils` has both kinds.
The average is the control for methods whose teacher or server model is an average over time.

Wire:
    down, up, keeps  the base algorithm's
    server  base      the base algorithm's state
            averages  of each architecture

The average is taken over the first deployed model of the algorithm, after each round, from round 1 on: the
untrained model never counts. Statistics of normalisation layers are averaged like parameters. No client sees
the average: all rounds are those of the base algorithm.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch

from fedsim.base import tree
from fedsim.base.parameters import Count, Range
from fedsim.base.tree import Tree
from fedsim.core import Context, Progress, ReducedUpdates
from fedsim.core.wrapper import StatefulWrapper, WrapperState

AVERAGE = "average"
"""The name of the averaged model: a record has `average_accuracy`."""


@dataclass(frozen=True, kw_only=True)
class ModelAveragingState(WrapperState):
    """The server state.

    Attributes:
        averages: {architecture: {"mean": the exponential mean, float64}}, or with `last` {"models": the last
            models, the oldest first}; {} before round 1.
    """

    averages: Tree


@dataclass(frozen=True, kw_only=True)
class ModelAveraging(StatefulWrapper):
    """Any algorithm that deploys a model, with an average of its models over the rounds.

    Attributes:
        base: the algorithm.
        ema: d of the exponential mean m <- d m + (1 - d) w, from m = w of round 1; None with `last`.
        last: number of rounds of the plain mean; None with `ema`.

    Raises:
        ValueError: if the base deploys no model, or unless exactly one of the two is given.

    Example:
        >>> from fedsim.algorithms import FedAvg
        >>> ModelAveraging(base=FedAvg(), ema=0.9).ema
        0.9
    """

    ema: Annotated[float, Range(minimum=0, below=1)] | None = None
    last: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.ema is None) == (self.last is None):
            raise ValueError("give either ema, such as 0.9, or last, such as 5")
        if not self.base.deploys_models:
            raise ValueError(f"{type(self.base).__name__} deploys no model; score personal models instead")

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, without an average."""
        return ModelAveragingState(base=self.base.init_server_state(ctx), averages={})

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's state, and the averages with its new model."""
        after = super().aggregate(ctx, state, reduced)
        return after if self.trains_before_evaluation else self._add_models(ctx, after)

    def train_server(
        self, ctx: Context, state: Any, reduced: ReducedUpdates
    ) -> Generator[Progress, None, Any]:
        """The base algorithm's server training; the averages, if it changes the deployed model."""
        after = yield from super().train_server(ctx, state, reduced)
        return self._add_models(ctx, after) if self.trains_before_evaluation else after

    def deploy_models(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The base algorithm's models, and `average`, once there is one."""
        models: Mapping[str, Tree] = super().deploy_models(ctx, state)
        held = state.averages.get(str(ctx.architecture))
        if held is None:
            return models
        first = next(iter(models.values()))
        mean = held["mean"] if self.last is None else _average_models(held["models"])
        return {**models, AVERAGE: tree.cast_like(mean, first)}

    def _add_models(self, ctx: Context, state: Any) -> Any:
        """The state with the averages after one more round."""
        averages = {
            number: self._add_model(state.averages.get(number), self._select_first_model(each, state))
            for number, each in ctx.architectures.items()
        }
        return replace(state, averages=averages)

    def _select_first_model(self, ctx: Context, state: Any) -> Tree:
        return next(iter(super().deploy_models(ctx, state).values()))

    def _add_model(self, held: Tree | None, model: Tree) -> dict[str, Any]:
        """The average of one architecture with one more model."""
        if self.last is not None:
            earlier = held["models"] if held else []
            return {"models": [*earlier, model][-self.last :]}
        new = tree.map(lambda leaf: leaf.double(), model)
        decay = self.ema or 0.0
        if held is not None:
            new = tree.map(lambda mean, leaf: decay * mean + (1 - decay) * leaf, held["mean"], new)
        return {"mean": new}


def _average_models(models: list[Tree]) -> Tree:
    """The plain mean, in float64."""
    return tree.map(lambda *leaves: torch.stack([leaf.double() for leaf in leaves]).mean(0), *models)
