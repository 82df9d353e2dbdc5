"""The base of algorithms with a generator of features: FedGen, FedCL and KDIA.

After each round the server trains a generator on the classifiers of the cohort. Clients train their
classifiers on its features too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Generator as Steps
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.algorithms.personal_parts import find_missing_features
from fedsim.base.tree import Tree
from fedsim.core import Context, Progress
from fedsim.core.capabilities import PersonalBroadcast, ServerTraining, StepNoise
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params
from fedsim.techniques.generator_training import (
    Critic,
    GeneratorBatches,
    GeneratorTraining,
    init_generator,
    train_generator,
)
from fedsim.techniques.generators import FeaturePlace, Generator, find_head_fault, find_maps_entry


class GeneratorBase(FedAvg, PersonalBroadcast, ServerTraining, StepNoise):
    """FedAvg with a generator of features; a subclass has the hyper-parameters and the losses."""

    heterogeneous: ClassVar[bool] = False
    tasks: ClassVar[Collection[str]] = frozenset({"classes"})

    @abstractmethod
    def has_generator(self) -> bool:
        """Whether the algorithm has a generator; if its weights are 0, it has none."""

    @abstractmethod
    def generator(self, ctx: Context) -> Generator:
        """The generator for the model."""

    def init_generator(self, ctx: Context) -> Tree:
        """The state of an untrained generator; {} without a generator."""
        return init_generator(self.generator(ctx), ctx.seed) if self.has_generator() else {}

    def train_generator(
        self,
        ctx: Context,
        state: Any,
        critic: Critic,
        training: GeneratorTraining,
        batches: GeneratorBatches,
        stream: np.random.Generator,
    ) -> Steps[Progress, None, Any]:
        """Train the generator of a server state, and return the new state.

        Args:
            ctx: the round.
            state: the server state, with the field `generator`.
            critic: the loss of generated features.
            training: the settings of the training.
            batches: the labels of each step.
            stream: draws the noise.
        """
        generator = self.generator(ctx)
        trained = yield from train_generator(
            generator, state.generator, critic, training, batches, stream, ctx.device
        )
        return replace(state, generator=trained)

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The global model."""
        return FedAvg.broadcast(self, ctx, state)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The generator's last loss."""
        return {"generator_loss": round(float(state.generator["loss"]), 6)} if self.has_generator() else {}

    def classify_features(self, ctx: Context, params: Params, features: Tensor) -> Tensor:
        """The logits `[batch, classes]` of a model's classifier for generated features."""
        return ctx.net.run_blocks(params, features, start=self.generator(ctx).feature_entry.block)


def find_generator_faults(method: str, net: Net, at: FeaturePlace) -> Sequence[FieldError]:
    """Return an error if a generator cannot make the features of a model.

    Args:
        method: registry name of the algorithm.
        net: the model.
        at: the feature entry, see `make_generator`.
    """
    if faults := find_missing_features(method, net):
        return faults
    if at == "maps" and (net.inputs is None or find_maps_entry(net, net.inputs.shape)):
        return ()
    fault = find_head_fault(net)
    return (FieldError("name", method, fault, "end the model with a linear head"),) if fault else ()
