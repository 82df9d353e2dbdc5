"""Fed-ensemble: Improving Generalization through Model Ensembling in Federated Learning.

Shi, Lai, Kontar, Chowdhury, 2021, arXiv:2107.10663.

Idea: several models predict together, at the training cost of one model.

Wire:
    down    params    the global model; with `permutation` one of the `models`
    up      params    the trained model, MEAN
            models    free: the same model, client by client, GATHER
    keeps   nothing
    server  params, and the models of the ensemble

`fedgen` is the variant that FedGen (arXiv:2105.10056) runs under this name: training is FedAvg's, and the
models of all N users predict together by the mean of their log-probabilities, which chooses the same classes
as their sum. Users of the last cohort hold
their trained models; all other users hold the previous global model. The ensemble has therefore one model
more than the cohort has clients, and the previous global model has the weight of all other users. If all
clients were in the cohort, the ensemble is their models alone.

`permutation` is the authors' variant: clients are divided into as many strata as there are models. An age has
as many rounds; in each of them every stratum trains a different model. After an age every stratum has trained
every model. The first model of each stratum is drawn anew for each age. A model becomes the mean of the
clients that trained it in the round, weighted by examples; without such clients it does not change. The
models predict together by the mean of their probabilities.

To use the ensemble, a client downloads all its models once (`bytes.personal`); rounds do not pay for that.

Deviations: strata are client numbers modulo the number of models. The first model starts as FedAvg's, the
others from different seeds.

Reference result: see docs/results/fedcl.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import rng as streams
from fedsim.base import tree
from fedsim.base.parameters import Count
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction, ServerState
from fedsim.core.capabilities import ClientInstructions, PersonalBroadcast, PersonalModels
from fedsim.models.net import Params
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class FedEnsembleState(ServerState):
    """The server state; with `permutation`, `params` has the models by their number as text.

    Attributes:
        members: models of the ensemble of `fedgen`, by number as text: the last cohort's models, then the
            previous global model unless all clients were in the cohort. {} before round 1, and with
            `permutation`.
        shares: the share of the N users that holds each member; float32 `[members]`, sum 1.
    """

    members: Tree
    shares: Tensor


@dataclass(frozen=True, kw_only=True)
class FedEnsemble(FedAvg, ClientInstructions, PersonalBroadcast, PersonalModels):
    """FedAvg whose users' models predict together, or several models that are trained in turns.

    Attributes:
        mode: `fedgen` makes an ensemble of the users' models after FedAvg, `permutation` trains several
            models.
        models: number of models, with `permutation`.
    """

    mode: Literal["fedgen", "permutation"] = "fedgen"
    models: Count = 5

    purposes: ClassVar[tuple[str, ...]] = ("generalisation",)
    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "models": Reduction.GATHER}
    free_uploads: ClassVar = frozenset({"models"})
    heterogeneous: ClassVar[bool] = False
    tasks: ClassVar[Collection[str]] = frozenset({"classes"})

    @property
    def has_several_models(self) -> bool:
        """Whether the algorithm trains several models."""
        return self.mode == "permutation"

    # server

    def init_server_state(self, ctx: Context) -> FedEnsembleState:
        """The parent's model; with `permutation`, all models."""
        nobody = torch.zeros(0)
        if not self.has_several_models:
            return FedEnsembleState(params=super().init_server_state(ctx).params, members={}, shares=nobody)
        seeds = [ctx.seed, *(streams.torch_seed(ctx.seed, "ensemble", m) for m in range(1, self.models))]
        params = {str(m): ctx.net.init(seed) for m, seed in enumerate(seeds)}
        return FedEnsembleState(params=params, members={}, shares=nobody)

    def assigned_model(self, ctx: Context, client: int) -> int:
        """The number of the model that this client trains in this round, with `permutation`."""
        age, turn = divmod(ctx.round, self.models)
        first = streams.stream(ctx.seed, "ensemble-age", age).permutation(self.models)
        return int(first[client % self.models] + turn) % self.models

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The global model; with `permutation`, no payload that is the same for all clients."""
        return {} if self.has_several_models else super().broadcast(ctx, state)

    def instruct_client(self, ctx: Context, state: Any, client: int) -> Mapping[str, Tree]:
        """The model that the client trains, with `permutation`."""
        return (
            {"params": state.params[str(self.assigned_model(ctx, client))]} if self.has_several_models else {}
        )

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> FedEnsembleState:
        """The new models, and the members of the ensemble."""
        if self.has_several_models:
            return replace(state, params=self.average_models(ctx, state, reduced))  # type: ignore[no-any-return]
        others = ctx.num_clients - len(reduced.clients)
        members = [*reduced["models"], *([state.params] if others else [])]
        return FedEnsembleState(
            params=super().aggregate(ctx, state, reduced).params,
            members={str(number): dict(model) for number, model in enumerate(members)},
            shares=torch.tensor([1.0] * len(reduced.clients) + [others] * bool(others)) / ctx.num_clients,
        )

    def average_models(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> dict[str, Params]:
        """Each model, replaced by the mean of the clients that trained it in this round."""
        models = dict(state.params)
        for number, held in models.items():
            mine = [
                at
                for at, client in enumerate(reduced.clients)
                if self.assigned_model(ctx, client) == int(number)
            ]
            weights = [reduced.weights[at] for at in mine]
            if sum(weights):
                models[number] = average_params([reduced["models"][at] for at in mine], weights, held)
        return models

    def ensemble(self, state: Any) -> dict[str, Tree]:
        """The ensemble: `models` by number, and the `shares` of each, which sum to 1."""
        if self.has_several_models:
            return {"models": state.params, "shares": {"of": torch.ones(self.models) / self.models}}
        if not state.members:
            return {"models": {"0": state.params}, "shares": {"of": torch.ones(1)}}
        return {"models": state.members, "shares": {"of": state.shares}}

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The whole ensemble."""
        return self.ensemble(state)

    def deploy_models(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The ensemble, with `permutation`; with `fedgen` the global model and the ensemble."""
        together = self.ensemble(state)
        return (
            {"global": together}
            if self.has_several_models
            else {"global": state.params, "ensemble": together}
        )

    def predict(self, ctx: Context, model: Tree, x: Tensor) -> Tensor:
        """The log-probabilities of the ensemble, or the logits of one model: `[batch, classes]`."""
        if "models" not in model:
            return ctx.net(model, x)
        said = torch.stack([ctx.net(each, x).log_softmax(-1) for each in model["models"].values()])
        shares = model["shares"]["of"].to(said.device).view(-1, 1, 1)
        together: Tensor = (
            (said + shares.log()).logsumexp(0) if self.has_several_models else (shares * said).sum(0)
        )
        return together

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The number of different models in the ensemble."""
        return {"ensemble_models": len(self.ensemble(state)["models"])}

    # client

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The model that the server sent."""
        params: Params = {**task.broadcast, **task.instruction}["params"]
        return params

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, for the mean and for the ensemble."""
        model = dict(trained.params)
        return ClientUpdate({"params": model, "models": model}, {}, {"train_loss": trained.loss})

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The ensemble."""
        return {"models": task.broadcast["models"], "shares": task.broadcast["shares"]}

    def predict_personal(self, ctx: Context, model: Tree, x: Tensor) -> Tensor:
        """The same as `predict`."""
        return self.predict(ctx, model, x)


def average_params(models: Sequence[Params], weights: Sequence[float], pattern: Params) -> Params:
    """The weighted mean of models, computed in float64 and rounded once to the dtypes of `pattern`."""
    total = sum(weights)
    weighed = tree.map(
        lambda *leaves: (
            torch.stack([n * leaf.double() for n, leaf in zip(weights, leaves, strict=True)]).sum(0) / total
        ),
        *models,
    )
    return tree.cast_like(weighed, pattern)
