"""Ensemble Distillation for Robust Model Fusion in Federated Learning.

Lin, Kong, Stich, Jaggi, NeurIPS 2020, arXiv:2006.07242.

Idea: the server averages the clients' models and then teaches the average what all of them together say of
examples that nobody has labelled; so models of different architectures teach one another.

Wire:
    down    params    the global model of the client's architecture
    up      params    the trained model, MEAN within each architecture
            said      free: the model's logits of the public set, which the server computes itself, and
                      whether they are numbers, SUM
    keeps   nothing
    server  params

After every round the server trains each architecture's mean on

    KL(softmax(mean over the clients of their logits) || student)

by Adam whose rate falls by a cosine over `steps` batches of public examples, looks every `check_every` steps
at how the student does on public examples that it keeps apart, with their labels, and stops after `patience`
steps without gain. The best student is the next global model; the mean itself counts as the first.

Deviations: what the student is judged on is a share of the public set, where the authors' code has a part of
the training set. An architecture that nobody came with is taught as well. Logits that are no numbers, of a
model that diverged, are left out of the mean. Bytes are those of the models, as the method sends them;
`charged: logits` counts what the ACE-pFL paper charges, a number for each public example and class in both
directions.

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
    """What the server knows.

    Attributes:
        said: the mean of the last cohort's logits of the public set, float32 `[n, classes]`; None before, and
            after a round in which nobody's were numbers.
        lessons: of each architecture, how many steps the last distillation made, and the accuracy that it
            reached on what it is judged by.
    """

    said: Tensor | None
    lessons: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class FedDF(FedAvg, PayloadAccounting, ServerTraining):
    """FedAvg whose means learn from all the clients' logits on the public set; steps 0 is FedAvg.

    Attributes:
        steps: of the distillation after every round, at most.
        batch_size: public examples of a step of the distillation.
        lr: Adam's first rate in the distillation.
        temperature: of the logits in the distillation.
        check_every: steps between two looks at the student; the last step is looked at besides.
        patience: steps without gain after which it ends.
        clip: the greatest norm of a step's gradient; 0 for any.
        apart: the share of the public set that the student is judged on, and not taught.
        charged: what is counted as traffic.
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

    uploads: ClassVar[Mapping[str, Reduction]] = {"params": Reduction.MEAN, "said": Reduction.SUM}
    free_uploads: ClassVar = frozenset({"said"})
    needs_public_set: ClassVar[bool] = True
    trains_before_evaluation: ClassVar[bool] = True

    def init_server_state(self, ctx: Context) -> FedDFState:
        """The parent's; nobody has said anything."""
        return FedDFState(params=super().init_server_state(ctx).params, said=None, lessons=())

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """A model's bytes, or those of its logits of the public set."""
        if self.charged == "logits":
            return wire.NUMBER_BYTES * len(ctx.require_public_set()) * ctx.num_classes
        return wire.payload_bytes(payload)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, and what it says of the public set."""
        update = super().make_update(ctx, task, trained)
        logits = ctx.require_public_set().predict_examples(lambda x: ctx.net(trained.params, x))
        sound = all_finite(logits)
        said = {"logits": torch.where(sound, logits, 0.0), "sound": sound.float()}
        return update._replace(upload={**update.upload, "said": said})

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> FedDFState:
        """The parent's, and the mean of everybody's logits."""
        params = super().aggregate(ctx, state, reduced).params
        parts = list(reduced["said"].values()) if len(ctx.nets) > 1 else [reduced["said"]]
        heard = torch.stack([part["sound"] for part in parts]).sum()
        if not heard:
            return FedDFState(params=params, said=None, lessons=())
        said = torch.stack([part["logits"] for part in parts]).sum(0) / heard
        return FedDFState(params=params, said=said.float(), lessons=())

    def train_server(
        self, ctx: Context, state: Any, reduced: ReducedUpdates
    ) -> Generator[Progress, None, FedDFState]:
        """Every architecture's student, one after another."""
        if not self.steps or state.said is None:
            return state  # type: ignore[no-any-return]
        lessons = list[DistilledModel]()
        for model in range(len(ctx.nets)):
            mine = ctx.for_model(model)
            lessons.append(
                (yield from self.distil_student(mine, mine.select_architecture(state.params), state.said))
            )
        params: Tree = {str(model): lesson.params for model, lesson in enumerate(lessons)}
        told = tuple((lesson.steps, lesson.score) for lesson in lessons)
        params = params if len(ctx.nets) > 1 else params["0"]
        return FedDFState(params=params, said=state.said, lessons=told)

    def distil_student(
        self, ctx: Context, start: Params, said: Tensor
    ) -> Generator[Progress, None, DistilledModel]:
        """One architecture's student.

        Args:
            ctx: the round, for this architecture.
            start: the mean of its clients' models.
            said: the mean of everybody's logits of the public set.
        """
        public = ctx.require_public_set().to_device(ctx.device)
        chosen = draw_apart(rng.stream(ctx.seed, "apart"), len(public), self.apart)
        aside = torch.from_numpy(chosen).to(public.y.device)
        rows = (~aside).nonzero().squeeze(1)
        batches = make_public_batches(
            public, ctx.seed, ctx.round, steps=self.steps, batch_size=self.batch_size, rows=rows
        )
        course = DistillationSettings(
            lr=self.lr,
            cosine=True,
            clip=self.clip,
            check_every=self.check_every,
            patience=self.patience,
        )
        judge = make_accuracy_judge(ctx.net, public, aside.nonzero().squeeze(1))
        taught = soften_logits(said.to(public.y.device), self.temperature, public.several_labels)
        return (
            yield from distil_model(
                ctx.net,
                start,
                batches,
                lambda params, batch: self.distillation_loss(ctx, params, batch, taught, public),
                course,
                judge,
                address=(ctx.seed, ctx.round, ctx.model),
            )
        )

    def distillation_loss(
        self, ctx: Context, params: Params, batch: Batch, taught: Tensor, public: PublicSet
    ) -> Tensor:
        """What a step of the distillation descends: KL(teacher || student), a scalar."""
        target = taught[batch.noise[ROWS]]
        return soft_target_loss(target, ctx.net(params, batch.x), self.temperature, public.several_labels)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """How long the distillations were, and how good the students are on what they were judged by."""
        if not state.lessons:
            return {}
        scores = [None if isnan(score) else round(score, 6) for _, score in state.lessons]
        steps = [steps for steps, _ in state.lessons]
        return {"distillation_steps": steps, "distillation_accuracy": scores}
