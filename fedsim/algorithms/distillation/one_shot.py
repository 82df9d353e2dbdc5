"""The base of one-shot distillation: clients train alone, upload their predictions once, and learn from all.

Wire:
    down    lesson    once, with the first task after the upload: all clients' predictions, combined
    up      said      once, in round `local_rounds`: the client's predictions on the public set, GATHER
    keeps   own       its model; before the first round the initial model of its architecture
            lesson    once the client has received it
    server  params    the central model of each architecture; which clients have the lesson

For `local_rounds` rounds (by default half of the run) every client trains its personal model, and nothing
travels. The cohort of the last of these rounds uploads. The server trains a central model of each
architecture, from its initial weights, on the combined predictions, the soft targets: this is the papers'
algorithm, and records have it as `global`.

Predictions that are not finite (of a diverged model) are left out. If no client has finite predictions,
there are no soft targets.

The papers end here. In a comparison of personal models every client continues for the rest of the rounds: it
first learns the soft targets on the public set, then trains on its own examples (unless `private` is false).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsim.algorithms.distillation.public_stage import PublicStage
from fedsim.algorithms.fedavg import PRIVATE_PARAMS, FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Count, Positive
from fedsim.base.tree import Tree
from fedsim.core import (
    Batch,
    ClientTask,
    ClientUpdate,
    Context,
    Effort,
    Progress,
    ReducedUpdates,
    Reduction,
    ServerState,
)
from fedsim.core.capabilities import ClientInstructions, ServerTraining
from fedsim.core.public_set import ROWS
from fedsim.errors import FieldError
from fedsim.learning_tasks.tasks import CLASS_TASKS
from fedsim.models.net import Net, Params
from fedsim.techniques.server_distillation import (
    DistillationSettings,
    all_finite,
    average_logits_by_class,
    distil_model,
)
from fedsim.training.local_loop import LocalLoop, run_local_loop

SOFT_TARGETS = "soft_targets"
"""Payload of the soft targets in a client's instruction."""

KEPT_TARGETS = "lesson"
"""Key of the soft targets in the client state; digests contain it."""


@dataclass(frozen=True, kw_only=True)
class OneShotState(ServerState):
    """The server state.

    Attributes:
        lesson: the soft targets: all clients' predictions, combined; {} before the upload.
        told: 1 for each client that has received the soft targets, uint8 `[clients]`.
        loss: the last training loss of the central model, mean over the architectures; None before it is
            trained.
    """

    lesson: Tree
    told: Tensor
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class OneShot(PublicStage, FedAvg, ClientInstructions, ServerTraining):
    """Personal models, and a central model that learns from all of them at once.

    Attributes:
        local_rounds: number of rounds before clients upload; null for half of the run.
        weights: weight of a client's logit of a class in the ensemble: its number of examples of that class
            (`counts`), or the same for all clients (`even`).
        private: whether clients continue to train on their own examples once they have the soft targets.
        public_epochs: passes over the public set in each later round.
        public_batch_size: public examples of a client's step.
        public_lr: learning rate on public examples; null for that of the local training.
        server_epochs: passes over the public set for the central model.
        server_batch_size: public examples of a step of the central model.
        server_lr: Adam's learning rate for the central model.
    """

    local_rounds: Count | None = None
    weights: Literal["counts", "even"] = "counts"
    private: bool = True
    public_epochs: Count = 1
    public_batch_size: Count = 128
    public_lr: Positive | None = None
    server_epochs: Count = 200
    server_batch_size: Count = 512
    server_lr: Positive = 0.001

    uploads: ClassVar[Mapping[str, Reduction]] = {"predictions": Reduction.GATHER}
    further_example_use: ClassVar[str] = "label counts"
    stateful: ClassVar[bool] = True
    needs_public_set: ClassVar[bool] = True
    tasks: ClassVar = CLASS_TASKS
    trains_before_evaluation: ClassVar[bool] = True

    @abstractmethod
    def predict_public_set(self, ctx: Context, task: ClientTask, params: Params) -> Tree:
        """The client's upload: its predictions on the public set."""

    @abstractmethod
    def combine_predictions(self, ctx: Context, said: Sequence[Tree]) -> Tree:
        """The soft targets: all clients' predictions, combined; a leaf has a row for every public example."""

    @abstractmethod
    def distillation_loss(self, ctx: Context, params: Params, batch: Batch, targets: Tree) -> Tensor:
        """The distance between a model and the soft targets on a public batch: a scalar.

        Args:
            ctx: the round.
            params: the model.
            batch: public examples.
            targets: the rows of the soft targets for these examples.
        """

    def ensemble_logits(self, said: Sequence[Tree]) -> Tensor:
        """The ensemble's logits `[n, classes]`, from all clients' uploads."""
        counts = [each["counts"] for each in said]
        if self.weights == "even":
            counts = [torch.ones_like(each) for each in counts]
        return average_logits_by_class([each["logits"] for each in said], counts)

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """Errors for an upload round after the last round, and for the scores of a stage that is skipped."""
        faults = list[FieldError]()
        if self.local_rounds is not None and self.local_rounds > rounds:
            message, hint = f"the run has {rounds} rounds", f"at most {rounds}, or null for half of them"
            faults.append(FieldError("local_rounds", self.local_rounds, message, hint))
        if self.scored_after == "public" and not self.private:
            message = "has no meaning with private: false, after which clients only train on the public set"
            faults.append(FieldError("scored_after", "public", message, "leave it out, or set private: true"))
        return faults

    def depends_on_num_rounds(self) -> bool:
        """Whether the upload round is half of the run."""
        return self.local_rounds is None

    def is_upload_round(self, ctx: Context) -> bool:
        """Whether clients upload in this round."""
        return ctx.round + 1 == (self.local_rounds or max(1, ctx.rounds // 2))

    # server

    def init_server_state(self, ctx: Context) -> OneShotState:
        """The initial models, without predictions."""
        told = torch.zeros(ctx.num_clients, dtype=torch.uint8)
        return OneShotState(params=super().init_server_state(ctx).params, lesson={}, told=told, loss=None)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """No payloads that are the same in every round."""
        return {}

    def instruct_client(self, ctx: Context, state: Any, client: int) -> Mapping[str, Tree]:
        """The soft targets, for a client that does not have them."""
        return {SOFT_TARGETS: state.lesson} if state.lesson and not state.told[client] else {}

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> OneShotState:
        """The soft targets, in the round of the upload; later, the clients that have received them."""
        if self.is_upload_round(ctx):
            heard = [said for said in reduced["predictions"] if all_finite(*said.values())]
            targets = self.combine_predictions(ctx, heard) if heard else {}
            return replace(state, lesson=targets)  # type: ignore[no-any-return]
        if not state.lesson:
            return state  # type: ignore[no-any-return]
        told = state.told.index_fill(0, torch.tensor(reduced.clients), 1)
        return replace(state, told=told)  # type: ignore[no-any-return]

    def train_server(
        self, ctx: Context, state: Any, reduced: ReducedUpdates
    ) -> Generator[Progress, None, OneShotState]:
        """Train the central models, in the round of the upload."""
        if not self.is_upload_round(ctx) or not state.lesson:
            return state  # type: ignore[no-any-return]
        public = ctx.require_public_set().to_device(ctx.device)
        targets = tree.map(lambda leaf: leaf.to(public.y.device), state.lesson)
        batches = public.shuffle_batches(
            ctx.seed, ctx.round, epochs=self.server_epochs, batch_size=self.server_batch_size
        )
        models, losses = dict[str, Tree](), list[float]()
        for key, arch_ctx in ctx.architectures.items():

            def student_loss(params: Params, batch: Batch, arch_ctx: Context = arch_ctx) -> Tensor:
                return self.distillation_loss(arch_ctx, params, batch, select_batch_rows(targets, batch))

            start = arch_ctx.select_architecture(state.params)
            outcome = yield from distil_model(
                arch_ctx.net,
                start,
                batches,
                student_loss,
                DistillationSettings(lr=self.server_lr),
                address=(ctx.seed, ctx.round, arch_ctx.architecture),
            )
            models[key] = outcome.params
            losses.append(outcome.loss)
        params: Tree = models if len(ctx.nets) > 1 else models["0"]
        return replace(state, params=params, loss=sum(losses) / len(losses))  # type: ignore[no-any-return]

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The last loss of the central model's training."""
        return {} if state.loss is None else {"central_loss": round(state.loss, 6)}

    # client

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Learn the soft targets if there are any, then train on the client's examples."""
        targets = _find_soft_targets(task)
        model, loss = self.initial_params(ctx, task), torch.zeros(())
        if targets:
            model, loss = self.distil_soft_targets(ctx, task, model, targets, ctx.round)
        if not targets or self.private:
            trained = self.train_locally(ctx, task, model, ctx.net.parameters)
            model, loss = trained.params, trained.loss
        said = self.predict_public_set(ctx, task, model) if self.is_upload_round(ctx) else {}
        client_state = {PRIVATE_PARAMS: dict(model), **({KEPT_TARGETS: targets} if targets else {})}
        return ClientUpdate({"predictions": said}, client_state, {"train_loss": loss}, model)

    def train_on_public_set(self, ctx: Context, task: ClientTask, model: Params, round: int) -> Params:
        """The model after learning the soft targets; unchanged before there are any."""
        targets = _find_soft_targets(task)
        return self.distil_soft_targets(ctx, task, model, targets, round)[0] if targets else model

    def distil_soft_targets(
        self, ctx: Context, task: ClientTask, model: Params, targets: Tree, round: int
    ) -> tuple[Params, Tensor]:
        """The model after learning the soft targets in this round, and the mean loss."""
        batches = ctx.require_public_set().shuffle_batches(
            ctx.seed, round, epochs=self.public_epochs, batch_size=self.public_batch_size
        )
        local = ctx.local if self.public_lr is None else ctx.local.with_constant_rate(self.public_lr)
        public_task = task._replace(batches=batches, instruction={SOFT_TARGETS: targets})
        trained = run_local_loop(LocalLoop(replace(ctx, local=local), public_task, model, self.public_loss))
        return trained.params, trained.loss

    def public_loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The loss of a step on the public set."""
        return self.distillation_loss(
            ctx, params, batch, select_batch_rows(task.instruction[SOFT_TARGETS], batch)
        )

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The local training, the predictions on the public set, and the steps on soft targets, if any."""
        public, moving = len(ctx.require_public_set()), ctx.net.parameters
        found = [Effort(steps if self.private or not state.lesson else 0, moving)]
        if state.lesson:
            passes, each = self.public_epochs, -(-public // self.public_batch_size)
            found.append(Effort(passes * each, moving, examples=passes * public))
        elif self.is_upload_round(ctx):
            found.append(Effort(1, (), examples=public))
        return found


def select_batch_rows(targets: Tree, batch: Batch) -> dict[str, Tensor]:
    """The rows of the soft targets for a batch of public examples."""
    return tree.map(lambda leaf: leaf[batch.noise[ROWS]], targets)


def _find_soft_targets(task: ClientTask) -> Tree | None:
    """The soft targets that a client receives now or has received; None before there are any."""
    return task.instruction.get(SOFT_TARGETS) or task.client_state.get(KEPT_TARGETS)
