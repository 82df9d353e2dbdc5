"""Parameterized Knowledge Transfer for Personalized Federated Learning (KT-pFL).

Zhang, Guo, Ma, Wang, Xu, Wu, NeurIPS 2021, arXiv:2111.02862.

Idea: every client has its own teacher, a mixture of all clients' predictions on public examples; the server
learns the weights of the mixture.

Wire:
    down    teacher   this client's mixture of the soft predictions of the previous round
    up      said      its soft predictions of this round's public examples, GATHER
    keeps   own       its model; before the first round the initial model of its architecture
    server  the coefficients c (N x N), and the last cohort's soft predictions

In every round all clients use the same `public_size` random public examples. A client first learns for
`public_epochs` passes at rate `public_lr` from its teacher on the previous round's examples,

    KL(sum over m of c_nm s_m || its own),   s = softmax(logits / temperature),

then trains on its own examples, then predicts this round's public examples. The server makes one step on

    MSE(s_n, sum over m of c_nm s_m) + rho MSE(c_n, 1/N)

for every client n of the cohort. The gradient is multiplied by the power of 5 that brings its mean size
nearest to 0.01, and the row is replaced by softmax(5 c_n).

Deviations: a round begins with the public examples of the previous round; the order of the steps is the
paper's. A client is scored at the end of a round, after its own examples, unless `scored_after` is `public`.
A teacher mixes the clients of the previous cohort, and its row is rescaled to sum to 1. The step on the
coefficients mixes in the same way, and treats the scale as a constant. A client whose predictions are not
finite is left out of both. The authors' code multiplies or divides the gradient by 5 at most five times,
until its mean size is between 0.01 and 0.05: up to five times as much as here, and less for tiny gradients.
Clients without examples count as all others: they learn from their teachers. The divergence is a mean over
examples; the authors' code divides by the number of classes as well. The first predictions come after a local
training. The paper's growing number of local epochs is the spec's `local.epochs`. With several labels per
example, the soft predictions are the probabilities of each label.

Reference result: see docs/results/ace-pfl.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsim.algorithms.distillation.public_stage import PublicStage
from fedsim.algorithms.fedavg import PRIVATE_PARAMS
from fedsim.algorithms.personal_parts import PersonalParts
from fedsim.base.parameters import Count, Positive, Range
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
from fedsim.core.capabilities import ClientInstructions
from fedsim.core.public_set import ROWS
from fedsim.learning_tasks.tasks import CLASS_TASKS
from fedsim.models.net import Params
from fedsim.techniques.server_distillation import all_finite
from fedsim.techniques.soft_targets import soft_target_loss, soften_logits
from fedsim.training.local_loop import LocalLoop, run_local_loop

SHARPNESS = 5.0
"""Factor of the coefficients before their softmax; its powers scale their gradients."""

STEP = 0.01
"""Target mean size of a coefficient's step."""


@dataclass(frozen=True, kw_only=True)
class KTState(ServerState):
    """The server state.

    Attributes:
        coefficients: float64 `[clients, clients]`; row n has the mixing weights of client n's teacher.
        who: the last cohort, int64 `[k]`.
        said: its soft predictions, float32 `[k, public_size, classes]`; None before the first round, and
            after a round in which all clients diverged.
    """

    coefficients: Tensor
    who: Tensor
    said: Tensor | None


@dataclass(frozen=True, kw_only=True)
class KTpFL(PublicStage, PersonalParts, ClientInstructions):
    """Personal models; the teacher of each is its own mixture of all clients' predictions.

    Attributes:
        public_size: number of public examples of a round; all, if there are fewer.
        public_epochs: passes over the public examples in a round.
        public_batch_size: public examples of a step.
        public_lr: learning rate on public examples.
        temperature: temperature of the soft predictions.
        rho: weight of the penalty on coefficients that differ from 1/N.
    """

    public_size: Count = 3000
    public_epochs: Count = 1
    public_batch_size: Count = 256
    public_lr: Positive = 0.02
    temperature: Positive = 10.0
    rho: Annotated[float, Range(minimum=0)] = 0.7

    purposes: ClassVar[tuple[str, ...]] = (
        *("personalisation", "communication", "distillation"),
        *("model-heterogeneity", "privacy"),
    )
    further_example_use: ClassVar[str] = "predictions of models that train without noise"
    uploads: ClassVar[Mapping[str, Reduction]] = {"predictions": Reduction.GATHER}
    needs_public_set: ClassVar[bool] = True
    tasks: ClassVar = CLASS_TASKS

    # server

    def init_server_state(self, ctx: Context) -> KTState:
        """Equal coefficients for all clients."""
        even = torch.full((ctx.num_clients, ctx.num_clients), 1 / ctx.num_clients, dtype=torch.float64)
        return KTState(params={}, coefficients=even, who=torch.zeros(0, dtype=torch.int64), said=None)

    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """No keys: the model does not travel."""
        return ()

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """No payloads that are the same for all clients."""
        return {}

    def instruct_client(self, ctx: Context, state: Any, client: int) -> Mapping[str, Tree]:
        """This client's teacher, once the server has predictions."""
        if state.said is None:
            return {}
        row = state.coefficients[client, state.who]
        mixed = torch.tensordot((row / row.sum()).to(state.said.dtype), state.said, dims=1)
        return {"teacher": {"said": mixed}}

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> KTState:
        """The cohort's predictions, and the coefficients after a step for each of its clients."""
        pairs = zip(
            reduced.clients, (entry["probabilities"] for entry in reduced["predictions"]), strict=True
        )
        heard = {client: said for client, said in pairs if all_finite(said)}
        who = torch.tensor(list(heard), dtype=torch.int64)
        if not heard:
            return replace(state, who=who, said=None)  # type: ignore[no-any-return]
        said, coefficients = torch.stack(list(heard.values())), state.coefficients.clone()
        flat = said.double().flatten(1)
        for at, client in enumerate(heard):
            row = coefficients[client]
            slope = self.coefficient_gradient(row, who, flat, at)
            row = row - _scale(slope) * slope
            coefficients[client] = torch.softmax(SHARPNESS * row, 0)
        return replace(state, coefficients=coefficients, who=who, said=said)  # type: ignore[no-any-return]

    def coefficient_gradient(self, row: Tensor, who: Tensor, said: Tensor, at: int) -> Tensor:
        """The gradient of one client's objective with respect to its coefficients, float64 `[clients]`.

        Args:
            row: the client's coefficients.
            who: the clients of the cohort with finite predictions.
            said: their soft predictions, float64 `[k, public_size * classes]`.
            at: position of the client in `who`.
        """
        # The teacher's row is rescaled to the cohort; with all clients in the cohort it sums to 1.
        scale = 1 / row[who].sum()
        away = scale * row[who] @ said - said[at]
        slope = 2 * self.rho * (row - 1 / len(row)) / len(row)
        return slope.index_add(0, who, 2 * scale * (said @ away) / said.shape[1])

    # client

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Learn from the teacher, train on the client's examples, then predict this round's public set."""
        model = self.train_on_public_set(ctx, task, self.initial_params(ctx, task), ctx.round)
        trained = self.train_locally(ctx, task, model, ctx.net.parameters)
        public = ctx.require_public_set()
        rows = public.choose_rows(ctx.seed, ctx.round, self.public_size)
        logits = public.predict_examples(lambda x: ctx.net(trained.params, x), rows)
        soft = soften_logits(logits, self.temperature, public.several_labels)
        metrics = {"train_loss": trained.loss}
        return ClientUpdate(
            {"predictions": {"probabilities": soft}},
            {PRIVATE_PARAMS: dict(trained.params)},
            metrics,
            trained.params,
        )

    def train_on_public_set(self, ctx: Context, task: ClientTask, model: Params, round: int) -> Params:
        """The model after learning from the client's teacher; unchanged if it has none."""
        if "teacher" not in task.instruction:
            return model
        public, before = ctx.require_public_set(), round - 1
        rows = public.choose_rows(ctx.seed, before, self.public_size)
        batches = public.shuffle_batches(
            ctx.seed, before, epochs=self.public_epochs, batch_size=self.public_batch_size, rows=rows
        )
        places = torch.zeros(len(public), dtype=torch.int64, device=rows.device)
        places[rows] = torch.arange(len(rows), device=rows.device)
        heard = {"said": task.instruction["teacher"]["said"], "places": places}
        learning = replace(ctx, local=ctx.local.with_constant_rate(self.public_lr))
        hearing = task._replace(batches=batches, instruction={"teacher": heard})
        return run_local_loop(LocalLoop(learning, hearing, model, self.distillation_loss)).params

    def distillation_loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """KL(teacher || student) on a public batch: a scalar."""
        teacher, several = task.instruction["teacher"], batch.y.dim() == 2
        targets = teacher["said"][teacher["places"][batch.noise[ROWS]]]
        return soft_target_loss(targets, ctx.net(params, batch.x), self.temperature, several)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The local training, the predictions, and the steps on the teacher once there is one."""
        public, moving = min(self.public_size, len(ctx.require_public_set())), ctx.net.parameters
        found = [Effort(steps, moving), Effort(1, (), examples=public)]
        if state.said is not None:
            passes = self.public_epochs
            each = -(-public // self.public_batch_size)
            found.append(Effort(passes * each, moving, examples=passes * public))
        return found

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The mean weight of a client in its own teacher: the mean of the coefficients' diagonal."""
        return {"self_coefficient": round(float(state.coefficients.diagonal().mean()), 6)}


def _scale(slope: Tensor) -> float:
    """The power of 5 that brings the mean size of a gradient nearest to `STEP`; 0 for a gradient of zeros."""
    size = float(slope.abs().mean())
    return SHARPNESS ** round(log(STEP / size, SHARPNESS)) if size else 0.0
