"""Tackling Data Heterogeneity in FL through Knowledge Distillation with Inequitable Aggregation (KDIA).

Ma, 2025, arXiv:2506.20431; "FL" is written out in its title.

Idea: when a cohort has few of many clients, its mean is a student; the teacher is the mean of the last models
of all clients, weighted by how recently and how often they took part and by their number of examples. The
teacher teaches the clients, and a generator on the server gives them features of the classes that they lack.

Wire:
    down    params    the student, which is the global model
            teacher   the mean of all clients' last models
            generator the conditional generator, with its running statistics
    up      params    the trained model, MEAN
            teacher   free: the change of the client's part of the teacher, SUM
            heads     free: the classifier of its model, GATHER
    keeps   model     the model that it trained last, in which round, and in how many rounds it took part
    server  params, the teacher's sums, the generator with Adam's moments

The local loss is CE + lambda_kd KL(teacher || student) at temperature tau + lambda_gen CE of the classifier
on generated features, as many as the batch has examples (Eqs. 11 to 13). Their labels are drawn evenly for a
whole pass and shuffled in each; a client with less than a batch draws new ones in each (Alg. 2).
`labels: data` is the variant that the paper compares with: a client uses the labels of its batch (section
6.3, Fig. 7).

Client k weighs F_k, proportional to u_k = (e^(t_k - t) c_k n_k)^(1/3), with t_k its last round, c_k its
number of rounds and n_k its examples (Eqs. 5 to 9, whose normalisers cancel). The weight of a client outside
the cohort only decays. The teacher's numerator and normaliser are therefore running sums, T <- e^(-1/3) T +
sum over the cohort of (u_new w_new - u_old w_old): a round costs O(K), for any N.

The generator learns after the round from the cohort's classifiers, while the deployed models are scored: the
cross-entropy of the mean of their logits, weighted by examples, and a diversity term (Eqs. 3 and 4). The next
round starts when the generator is trained.

Deviations: clients that never took part have the weight 0 in every kind of mean. Adam's moments are kept
between rounds. There is no tau^2 by default, as in the paper's text; its code has KL(student || teacher),
which is an option. Eq. 3 is the clients' weighted mean without its further 1/K, which only scales it. Alg.
1's labels for the server are one draw of batches x batch size, shuffled in each pass. The generator's sigmoid
is its code's, though the features of the model may exceed 1. A model without maps has a generator of flat
features.

Reference result: see docs/results/kdia.md.
"""

from __future__ import annotations

from collections.abc import Generator as Steps
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.algorithms.generators.generator_base import GeneratorBase, find_generator_faults
from fedsim.base import rng as streams
from fedsim.base import tree
from fedsim.base.parameters import Count, Positive, Range
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
from fedsim.errors import FieldError
from fedsim.models.net import Net, Params
from fedsim.techniques.generator_training import (
    GeneratorBatches,
    GeneratorTraining,
    LabelSource,
    draw_client_labels,
    joint_critic,
    make_joint_classifier,
)
from fedsim.techniques.generators import Diversity, Generator, Output, feature_flops, make_generator
from fedsim.techniques.last_models import (
    MeanKind,
    advance_client,
    advance_sums,
    init_sums,
    make_teacher,
)
from fedsim.techniques.late_starts import warn_of_late_start
from fedsim.techniques.soft_targets import kl_divergence
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import cross_entropy


@dataclass(frozen=True, kw_only=True)
class KDIAState(ServerState):
    """The server state.

    Attributes:
        sums: the teacher's running sums, as in `fedsim.techniques.last_models`.
        generator: as in `fedsim.techniques.generator_training`; {} without a generator.
    """

    sums: Tree
    generator: Tree


@dataclass(frozen=True, kw_only=True)
class KDIA(GeneratorBase):
    """FedAvg with a teacher of all clients and a generator of features; both lambdas 0 is FedAvg.

    The teacher is scored with both lambdas 0 too: a control that tells the gain of averaging last models.

    Attributes:
        lambda_kd: weight of the distillation; 0 sends no teacher.
        lambda_gen: weight of the loss on generated features; 0 has no generator.
        tau: temperature of the distillation.
        weights: what a client's weight in the teacher rises with: how recently it took part (`interval`), how
            often (`count`), its number of examples (`volume`), or the `geometric` or `arithmetic` mean of
            all three.
        kl: first argument of the KL divergence: the teacher or the student.
        tau_squared: whether the distillation is multiplied by tau^2.
        start_round: rounds of FedAvg before clients use the teacher and the generator.
        generator_epochs: passes over the labels in each training of the generator.
        generator_batches: batches of each pass over the labels.
        generator_batch_size: generated features of each batch.
        generator_lr: Adam's learning rate for the generator.
        generator_decay: the generator's weight decay.
        generator_noise: size of the generator's noise input.
        generator_hidden: hidden width of a generator of flat features.
        output: activation of the generator's last layer.
        diversity: loss that makes the features of a batch differ; `ratio` is this paper's, `pairs` FedGen's.
        labels: labels of the generated features: drawn for a whole pass (`pass`) or for each batch (`batch`),
            on the server and on clients; `data` takes the labels of the batch on clients, and draws them for
            each batch on the server, as earlier papers do.
    """

    lambda_kd: Annotated[float, Range(minimum=0)] = 0.5
    lambda_gen: Annotated[float, Range(minimum=0)] = 1.0
    tau: Positive = 2.0
    weights: MeanKind = "geometric"
    kl: Literal["teacher_first", "student_first"] = "teacher_first"
    tau_squared: bool = False
    start_round: Annotated[int, Range(minimum=0)] = 0
    generator_epochs: Count = 10
    generator_batches: Count = 200
    generator_batch_size: Annotated[int, Range(minimum=2)] = 64
    generator_lr: Positive = 0.001
    generator_decay: Annotated[float, Range(minimum=0)] = 0.00001
    generator_noise: Count = 100
    generator_hidden: Count = 256
    output: Output = "sigmoid"
    diversity: Diversity = "ratio"
    labels: LabelSource = "pass"

    purposes: ClassVar[tuple[str, ...]] = ("label-skew", "distillation")
    uploads: ClassVar[Mapping[str, Reduction]] = {
        **FedAvg.uploads,
        "teacher": Reduction.SUM,
        "heads": Reduction.GATHER,
    }
    free_uploads: ClassVar = frozenset({"teacher", "heads"})
    stateful: ClassVar[bool] = True

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model whose classifier cannot run alone on generated features."""
        return find_generator_faults("kdia", net, "maps") if self.has_generator() else ()

    def generator(self, ctx: Context) -> Generator:
        """The generator for the model."""
        return make_generator(
            ctx.net,
            ctx.input_shape,
            ctx.num_classes,
            noise=self.generator_noise,
            hidden=self.generator_hidden,
            output=self.output,
        )

    def has_generator(self) -> bool:
        """Whether the algorithm has a generator."""
        return self.lambda_gen > 0

    def has_teacher(self, ctx: Context) -> bool:
        """Whether clients learn from the teacher in this round."""
        return self.lambda_kd > 0 and ctx.round >= self.start_round

    def uses_generated_features(self, ctx: Context) -> bool:
        """Whether clients use generated features in this round."""
        return self.lambda_gen > 0 and ctx.round >= self.start_round

    # server

    def init_server_state(self, ctx: Context) -> KDIAState:
        """The parent's state, with empty sums and an untrained generator; a warning if none is used."""
        if self.lambda_kd or self.lambda_gen:
            effect = "the clients of kdia train as those of fedavg do"
            warn_of_late_start(ctx, "algorithm.start_round", self.start_round, effect)
        params = super().init_server_state(ctx).params
        sums = init_sums(self.weights, params)
        return KDIAState(params=params, sums=sums, generator=self.init_generator(ctx))

    def teacher(self, state: Any) -> Params:
        """The mean of all clients' last models; the global model before round 1."""
        return make_teacher(state.sums, state.params)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The student, its teacher and the generator."""
        sent = dict(super().broadcast(ctx, state))
        if self.has_teacher(ctx):
            sent["teacher"] = self.teacher(state)
        if self.uses_generated_features(ctx):
            sent["generator"] = state.generator["params"]
        return sent

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> KDIAState:
        """The parent's student; the teacher's sums, decayed by a round, plus the cohort's changes."""
        sums = advance_sums(self.weights, state.sums, reduced["teacher"])
        params = super().aggregate(ctx, state, reduced).params
        return KDIAState(params=params, sums=sums, generator=state.generator)

    def train_server(
        self, ctx: Context, state: Any, reduced: ReducedUpdates
    ) -> Steps[Progress, None, KDIAState]:
        """Train the generator on the cohort's classifiers."""
        heads = [(n, head) for n, head in zip(reduced.num_examples, reduced["heads"], strict=True) if n]
        if not self.has_generator() or not heads:
            return state  # type: ignore[no-any-return]
        total = sum(n for n, _ in heads)
        classifier = make_joint_classifier(
            ctx.net,
            self.generator(ctx).feature_entry,
            [head for _, head in heads],
            [n / total for n, _ in heads],
            ctx.device,
        )
        training = GeneratorTraining(
            epochs=self.generator_epochs,
            batches=self.generator_batches,
            batch_size=self.generator_batch_size,
            lr=self.generator_lr,
            weight_decay=self.generator_decay,
            diversity=self.diversity,
        )
        stream = streams.stream(ctx.seed, "generator", ctx.round)
        drawn: Literal["pass", "batch"] = "pass" if self.labels == "pass" else "batch"
        batches = GeneratorBatches(training.draw_step_labels(stream, ctx.num_classes, drawn))
        critic = joint_critic(classifier)
        trained = yield from self.train_generator(ctx, state, critic, training, batches, stream)
        return trained  # type: ignore[no-any-return]

    def deploy_models(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The student, as `global`, and the teacher."""
        return {"global": state.params, "teacher": self.teacher(state)}

    # client

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The global model, with 0 rounds."""
        never = torch.zeros((), dtype=torch.int64)
        return {"model": dict(broadcast["params"]), "last": never, "visits": never.clone()}

    def draw_step_noise(
        self, ctx: Context, rng: np.random.Generator, steps: int, batch_size: int, num_examples: int
    ) -> Tree:
        """Noise for the generated features of each step, and labels unless they are the examples' own."""
        if not self.uses_generated_features(ctx) or not steps:
            return {}
        drawn: dict[str, Any] = {}
        if self.labels != "data":
            sizes = {"steps": steps, "batch_size": batch_size, "num_examples": num_examples}
            drawn["labels"] = draw_client_labels(rng, ctx.num_classes, **sizes, drawn=self.labels)
        shape = (steps, batch_size, self.generator_noise)
        return {"noise": rng.standard_normal(shape, np.float32), **drawn}

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy, plus the distillation, plus the loss on generated features (Eq. 13)."""
        if not self.has_teacher(ctx):
            value = super().loss(ctx, task, params, batch)
        else:
            logits = ctx.net(params, batch.x)
            value = cross_entropy(logits, batch) + self.lambda_kd * self.distillation_loss(
                ctx, task, logits, batch
            )
        if self.uses_generated_features(ctx):
            value = value + self.lambda_gen * self.generated_loss(ctx, task, params, batch)
        return value

    def distillation_loss(self, ctx: Context, task: ClientTask, logits: Tensor, batch: Batch) -> Tensor:
        """The KL divergence between teacher and student at temperature tau (Eq. 11): a scalar."""
        with torch.no_grad(), ctx.net.evaluation_mode():
            wise = ctx.net(task.broadcast["teacher"], batch.x)
        pair = (wise, logits) if self.kl == "teacher_first" else (logits, wise)
        return (self.tau**2 if self.tau_squared else 1.0) * kl_divergence(*pair, batch.mask, self.tau)

    def generated_loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy of the classifier on generated features (Eq. 12): a scalar."""
        generator, count = self.generator(ctx), len(batch.y)
        labels = batch.y if self.labels == "data" else batch.noise["labels"][:count]
        with torch.no_grad():
            made = generator(task.broadcast["generator"], batch.noise["noise"][:count], labels)
        return cross_entropy(self.classify_features(ctx, params, made), Batch(made, labels, batch.mask))

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, the change of the client's part of the teacher, and the model's classifier."""
        update = super().make_update(ctx, task, trained)
        kept, round, examples = task.client_state, ctx.round, task.num_examples
        change, client_state = advance_client(self.weights, kept, trained.params, round, examples)
        more: dict[str, Tree] = {"teacher": change, "heads": {}}
        if self.lambda_gen:
            more["heads"] = tree.select(trained.params, self.generator(ctx).feature_entry.keys(ctx.net))
        return update._replace(upload={**update.upload, **more}, client_state=client_state)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, a forward pass of the teacher, and one generated feature for each example."""
        # The parent's payloads alone: the teacher is slow to make, and this runs once for each client size.
        moving = self.trainable_keys(ctx, super().broadcast(ctx, state))
        made = feature_flops(ctx.net, self.generator(ctx)) if self.uses_generated_features(ctx) else 0
        return (Effort(steps, moving, forwards=int(self.has_teacher(ctx)), flops_per_example=made),)
