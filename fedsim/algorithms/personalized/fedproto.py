"""FedProto: Federated Prototype Learning across Heterogeneous Clients.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, AAAI 2022, arXiv:2105.00243.

Idea: clients exchange their mean features of each class, the prototypes, and keep their models, which may
have different architectures.

Wire:
    down    prototypes  the mean features of each class over the clients; from the second round on
    up      prototypes  the client's mean features of each class that it holds, GATHER
    keeps   own         its model; before the first round the initial model, the same for all
    server  prototypes

The features z are the input of the head, d numbers. A local step descends

    CE + lambda_proto |z - C_y|^2 / d,

where C_y is the prototype of the example's class. Afterwards the client computes its prototypes with its
trained model over all its examples (Eq. 3). The server's prototype of a class is the mean over the clients of
the cohort that hold it. A class that none of them holds keeps its prototype. A class without a prototype
travels as NaN, and its examples have no distance term.

Deviations: the printed mean over clients (Eq. 6) is weighted by their examples of the class, which would have
to travel too; as in the authors' code, each client has the same weight. The distance is the authors' code's,
a mean over the d features. The authors average features during the last epoch of training. A client predicts
by its head; the paper's choice of the nearest prototype is left out. There is no global model, and records
have no `global_accuracy`.

Reference result: see docs/results/common.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from fedsim.algorithms.personal_parts import PersonalParts, find_missing_features
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import (
    Batch,
    ClientTask,
    ClientUpdate,
    Context,
    Effort,
    ReducedUpdates,
    Reduction,
    ServerState,
)
from fedsim.core.capabilities import PersonalBroadcast
from fedsim.errors import FedsimError, FieldError
from fedsim.models.net import Net, Params
from fedsim.techniques.label_means import mean_by_label
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import masked_mean, supervised_loss


@dataclass(frozen=True, kw_only=True)
class FedProtoState(ServerState):
    """The server state.

    Attributes:
        prototypes: the mean features of each class, float32 `[classes, features]`; NaN for a class without.
    """

    prototypes: Tensor


@dataclass(frozen=True, kw_only=True)
class FedProto(PersonalParts, PersonalBroadcast):
    """Personal models of any architecture whose features stay near the clients' mean features of each class.

    Attributes:
        lambda_proto: weight of the distance to the prototypes, >= 0; with 0 each client trains alone.
    """

    purposes: ClassVar[tuple[str, ...]] = (
        "communication",
        "privacy",
        "model-heterogeneity",
        "personalisation",
    )
    further_example_use: ClassVar[str] = "mean features of each class"

    lambda_proto: Annotated[float, Range(minimum=0)] = 1.0

    uploads: ClassVar[Mapping[str, Reduction]] = {**PersonalParts.uploads, "prototypes": Reduction.GATHER}
    shares_parameters: ClassVar[bool] = False
    tasks: ClassVar[Collection[str]] = frozenset({"classes"})

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model whose head cannot run alone."""
        return find_missing_features("fedproto", net)

    def has_prototypes(self, ctx: Context) -> bool:
        """Whether clients get prototypes in this round."""
        return self.lambda_proto > 0 and ctx.round > 0

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """No keys."""
        return ()

    def init_server_state(self, ctx: Context) -> FedProtoState:
        """The parent's state, without prototypes.

        Raises:
            FedsimError: the architectures have different numbers of features.
        """
        widths = [count_features(net, ctx.input_shape) for net in ctx.nets]
        if len(set(widths)) > 1:
            found = ", ".join(f"{net.name} {width}" for net, width in zip(ctx.nets, widths, strict=True))
            message = f"fedproto compares the features before the head, and their numbers differ: {found}"
            raise FedsimError(message, "choose models whose heads have equally many inputs")
        unknown = torch.full((ctx.num_classes, widths[0]), torch.nan)
        return FedProtoState(params=super().init_server_state(ctx).params, prototypes=unknown)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The prototypes."""
        more = {"prototypes": {"rows": state.prototypes}} if self.has_prototypes(ctx) else {}
        return {**super().broadcast(ctx, state), **more}

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """Nothing: a personal model needs no prototypes."""
        return super().broadcast(ctx, state)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The mean prototype of each class; a class that no client sent keeps its own."""
        state = super().aggregate(ctx, state, reduced)
        if not self.lambda_proto:
            return state
        rows = torch.stack([each["rows"].cpu() for each in reduced["prototypes"]])
        # The squared distance to a row of a diverged model can be infinite though its numbers are finite.
        rows = rows.where(rows.square().sum(-1, keepdim=True).isfinite(), torch.nan)
        mean = rows.double().nanmean(0).to(state.prototypes.dtype)
        return replace(state, prototypes=torch.where(mean.isnan(), state.prototypes, mean))

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, plus the distance of the features to the prototypes of their classes."""
        if not self.has_prototypes(ctx):
            return super().loss(ctx, task, params, batch)
        features = ctx.net.features(params, batch.x)
        base = supervised_loss(ctx, ctx.net.classify(params, features), batch)
        rows = task.broadcast["prototypes"]["rows"]
        return base + self.lambda_proto * prototype_distance(features, rows, batch)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The client's prototypes; its model for the client state."""
        update = super().make_update(ctx, task, trained)
        rows = {"rows": compute_prototypes(ctx, task, trained.params)} if self.lambda_proto else {}
        return update._replace(upload={**update.upload, "prototypes": rows})

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, and one forward pass over the examples for the prototypes."""
        usual = super().count_effort(ctx, state, steps)
        return (*usual, ctx.local.count_forward_passes(steps)) if self.lambda_proto else usual


def prototype_distance(features: Tensor, prototypes: Tensor, batch: Batch) -> Tensor:
    """The mean squared difference of a batch's features to the prototypes of their classes, a scalar.

    Args:
        features: of the batch's examples, `[batch, ...]`.
        prototypes: `[classes, features]`; an example of a class whose row is NaN has no distance.
        batch: with class labels.
    """
    nearest = prototypes[batch.y]
    known = ~nearest.isnan().any(-1)
    distances = (features.flatten(1) - nearest.nan_to_num()).square().mean(-1)
    return masked_mean(distances * known, batch.mask)


def compute_prototypes(ctx: Context, task: ClientTask, params: Params) -> Tensor:
    """A model's mean features of a client's examples, for each class: float32 `[classes, features]`.

    The row of a class without examples is NaN.
    """
    width = count_features(ctx.net, ctx.input_shape)
    return mean_by_label(ctx, task, width, lambda x: ctx.net.features(params, x).flatten(1))


@lru_cache(maxsize=16)
def count_features(net: Net, input_shape: tuple[int, ...]) -> int:
    """Return the number of features of one example, the inputs of the head."""
    reads_tokens = any(isinstance(module, nn.Embedding) for module in net.module.modules())
    x = torch.zeros((1, *input_shape), dtype=torch.int64 if reads_tokens else None)
    with torch.no_grad():
        return net.features(net.init(0), x).numel()
