"""Ensemble Distillation for Robust Model Fusion in Federated Learning.

Lin, Kong, Stich, Jaggi, NeurIPS 2020, arXiv:2006.07242.

Idea: the server averages the clients' models, then trains the average on the mean prediction of all clients
on unlabelled public examples; models of different architectures learn from one another in this way.

Wire:
    down    params    the global model of the client's architecture
    up      params    the trained model, MEAN within each architecture
            said      free: the model's logits of the public set, which the server computes itself, and
                      whether all of them are finite, SUM
    keeps   nothing
    server  params

After every round the server trains each architecture's mean on

    KL(softmax(mean over the clients of their logits) || student)

with Adam for up to `steps` batches of public examples; the learning rate falls to 0 by a cosine. Every
`check_every` steps the server measures the student's accuracy on labelled public examples that it does not
train on. It stops after `patience` steps without a better accuracy. The best student is the next global
model; the untrained mean counts as the first student.

Deviations: the student is judged on a share of the public set; the authors' code uses a part of the training
set, and by default keeps the last student; here the best one is kept, so a round in which no student beats
the untrained mean is a round of FedAvg. An architecture without clients in the cohort is trained as well.
Logits of a diverged model are left out of the mean. Bytes are those of the models, as the paper's clients
send them; `charged: logits` counts as the ACE-pFL paper does: a number for each public example and class in
both directions.

Reference result: see docs/results/ace-pfl.md.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import rng, wire
from fedsim.base.parameters import Count, Positive, Range
from fedsim.base.tree import Tree
from fedsim.clients.sampling import draw_apart
from fedsim.core import (
    Batch,
    ClientTask,
    ClientUpdate,
    Context,
    Progress,
    ReducedUpdates,
    Reduction,
    ServerState,
)
from fedsim.core.capabilities import PayloadAccounting, ServerTraining
from fedsim.core.public_set import ROWS, PublicSet
from fedsim.learning_tasks.tasks import CLASS_TASKS
from fedsim.models.net import Params
from fedsim.techniques.server_distillation import (
    DistillationSettings,
    DistilledModel,
    all_finite,
    distil_model,
    make_accuracy_judge,
    make_public_batches,
)
from fedsim.techniques.soft_targets import soft_target_loss, soften_logits
from fedsim.training.local_loop import TrainedModel


@dataclass(frozen=True, kw_only=True)
class FedDFState(ServerState):
    """The server state.

    Attributes:
        said: the mean of the last cohort's logits of the public set, float32 `[n, classes]`; None before
            round 1, and after a round in which all clients diverged.
        lessons: for each architecture, the steps of the last distillation and the accuracy that it reached on
            the examples kept apart.
    """

    said: Tensor | None
    lessons: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class FedDF(FedAvg, PayloadAccounting, ServerTraining):
    """FedAvg whose averaged models learn from all clients' logits of the public set; `steps: 0` is FedAvg.

    Attributes:
        steps: largest number of distillation steps after every round.
        batch_size: public examples of a distillation step.
        lr: Adam's initial learning rate in the distillation.
        temperature: temperature of the soft predictions in the distillation.
        check_every: steps between two accuracy checks of the student; the last step is always checked.
        patience: steps without a better accuracy after which the distillation ends.
        clip: largest norm of a step's gradient; 0 for no limit.
        apart: share of the public set on which the student is judged, and not trained.
        charged: payloads that count as traffic: the models, or logits of the public set.
    """

    steps: Annotated[int, Range(0)] = 10000
    batch_size: Count = 128
    lr: Positive = 0.001
    temperature: Positive = 1.0
    check_every: Count = 100
    patience: Count = 1000
    clip: Annotated[float, Range(minimum=0)] = 5.0
    apart: Annotated[float, Range(above=0, below=1)] = 0.1
    charged: Literal["models", "logits"] = "models"

    purposes: ClassVar[tuple[str, ...]] = ("distillation", "model-heterogeneity")
    uploads: ClassVar[Mapping[str, Reduction]] = {**FedAvg.uploads, "predictions": Reduction.SUM}
    free_uploads: ClassVar = frozenset({"predictions"})
    needs_public_set: ClassVar[bool] = True
    tasks: ClassVar = CLASS_TASKS
    trains_before_evaluation: ClassVar[bool] = True

    def init_server_state(self, ctx: Context) -> FedDFState:
        """The parent's state, without predictions."""
        return FedDFState(params=super().init_server_state(ctx).params, said=None, lessons=())

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """The bytes of a model, or of its logits of the public set."""
        if self.charged == "logits":
            return wire.NUMBER_BYTES * len(ctx.require_public_set()) * ctx.num_classes
        return wire.payload_bytes(payload)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, and its logits of the public set."""
        update = super().make_update(ctx, task, trained)
        logits = ctx.require_public_set().predict_examples(lambda x: ctx.net(trained.params, x))
        sound = all_finite(logits)
        said = {"logits": torch.where(sound, logits, 0.0), "sound": sound.float()}
        return update._replace(upload={**update.upload, "predictions": said})

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> FedDFState:
        """The parent's mean, and the mean of the cohort's logits."""
        params = super().aggregate(ctx, state, reduced).params
        parts = list(reduced["predictions"].values()) if len(ctx.nets) > 1 else [reduced["predictions"]]
        heard = torch.stack([part["sound"] for part in parts]).sum()
        if not heard:
            return FedDFState(params=params, said=None, lessons=())
        said = torch.stack([part["logits"] for part in parts]).sum(0) / heard
        return FedDFState(params=params, said=said.float(), lessons=())

    def train_server(
        self, ctx: Context, state: Any, reduced: ReducedUpdates
    ) -> Generator[Progress, None, FedDFState]:
        """Train the student of every architecture, one after another."""
        if not self.steps or state.said is None:
            return state  # type: ignore[no-any-return]
        students = list[DistilledModel]()
        for arch_ctx in ctx.architectures.values():
            start = arch_ctx.select_architecture(state.params)
            students.append((yield from self.distil_student(arch_ctx, start, state.said)))
        params: Tree = {str(model): student.params for model, student in enumerate(students)}
        results = tuple((student.steps, student.score) for student in students)
        params = params if len(ctx.nets) > 1 else params["0"]
        return FedDFState(params=params, said=state.said, lessons=results)

    def distil_student(
        self, ctx: Context, start: Params, said: Tensor
    ) -> Generator[Progress, None, DistilledModel]:
        """Train one architecture's student.

        Args:
            ctx: the round, for this architecture.
            start: the mean of the models of this architecture.
            said: the mean of all clients' logits of the public set.
        """
        public = ctx.require_public_set().to_device(ctx.device)
        chosen = draw_apart(rng.stream(ctx.seed, "apart"), len(public), self.apart)
        aside = torch.from_numpy(chosen).to(public.y.device)
        rows = (~aside).nonzero().squeeze(1)
        batches = make_public_batches(
            public, ctx.seed, ctx.round, steps=self.steps, batch_size=self.batch_size, rows=rows
        )
        settings = DistillationSettings(
            lr=self.lr,
            cosine=True,
            clip=self.clip,
            check_every=self.check_every,
            patience=self.patience,
        )
        judge = make_accuracy_judge(ctx.net, public, aside.nonzero().squeeze(1))
        targets = soften_logits(said.to(public.y.device), self.temperature, public.several_labels)
        return (
            yield from distil_model(
                ctx.net,
                start,
                batches,
                lambda params, batch: self.distillation_loss(ctx, params, batch, targets, public),
                settings,
                judge,
                address=(ctx.seed, ctx.round, ctx.architecture),
            )
        )

    def distillation_loss(
        self, ctx: Context, params: Params, batch: Batch, targets: Tensor, public: PublicSet
    ) -> Tensor:
        """The loss of a distillation step: KL(teacher || student), a scalar."""
        target = targets[batch.noise[ROWS]]
        return soft_target_loss(target, ctx.net(params, batch.x), self.temperature, public.several_labels)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The steps of each distillation, and the accuracy of each student on the examples kept apart."""
        if not state.lessons:
            return {}
        scores = [None if isnan(score) else round(score, 6) for _, score in state.lessons]
        steps = [steps for steps, _ in state.lessons]
        return {"distillation_steps": steps, "distillation_accuracy": scores}
