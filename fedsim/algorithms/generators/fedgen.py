"""Data-Free Knowledge Distillation for Heterogeneous Federated Learning.

Zhu, Hong, Zhou, ICML 2021, arXiv:2105.10056.

Idea: the server trains a generator of features that the clients' classifiers assign to a wanted class, and
clients get features of the classes that they lack from it.

Wire:
    down    params    the global model
            generator the conditional generator, with its running statistics; from the second round on
            labels    probabilities with which clients draw the generated labels; with the generator
    up      params    the trained model, MEAN
            labels    how many examples of each class the client holds, GATHER
            heads     free: the head of its model, GATHER
    keeps   nothing
    server  params, the probabilities of the labels, the generator with Adam's moments

From the second round on, a local step on B examples descends

    CE(h(f(x)), y) + alpha_t (B_g / B) CE(h(G(y')), y') + beta_t KL(h(G(y)) || h(f(x))),

with B_g labels y' drawn from all labels that the server has seen. Features G enter at the head h; no gradient
flows back through the first argument of KL. Both weights fall: alpha_t = max(1e-4, alpha decay^t), t from 0.

After the round the generator descends, over the cohort's heads h_k,

    sum over k of mean over y of (n_ky / sum over j of n_jy) CE(h_k(G(y)), y) + the diversity loss

with labels y drawn evenly from those that the cohort holds; n_ky are the label counts.

Deviations: noise is Gaussian, as in the paper; its code draws it evenly from [0, 1). Label counts are over
all examples of a client; its code counts the examples trained on in the round, beginning at 1. The code
trains the generator on batches of 32, the clients' batch size, and has an Adam rate of 3e-4 for MNIST and
CelebA and 1e-4 for EMNIST; the defaults here are batches of 128 and 1e-4. It multiplies the mean of the
losses by the mean of the labels' weights; here each label's loss has its own weight.

Reference result: see docs/results/fedcl.md.
"""

from __future__ import annotations

from collections.abc import Generator as Steps
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.fedavg import FedAvg
from fedsim.algorithms.generators.generator_base import GeneratorBase, find_generator_faults
from fedsim.base import rng as streams
from fedsim.base import tree
from fedsim.base.parameters import Count, Positive, Range, Share
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
    Critic,
    GeneratorBatches,
    GeneratorTraining,
    label_critic,
    make_classifiers,
)
from fedsim.techniques.generators import (
    Diversity,
    Generator,
    Output,
    draw_labels,
    feature_flops,
    make_generator,
)
from fedsim.techniques.soft_targets import kl_divergence
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import cross_entropy

LEAST_STRENGTH = 1e-4
"""Lower bound of the falling weights `alpha` and `beta`."""


@dataclass(frozen=True, kw_only=True)
class FedGenState(ServerState):
    """The server state.

    Attributes:
        labels: probabilities with which clients draw labels, float32 `[classes]`; zeros before the first
            round.
        generator: as in `fedsim.techniques.generator_training`; {} without a generator.
    """

    labels: Tensor
    generator: Tree


@dataclass(frozen=True, kw_only=True)
class FedGen(GeneratorBase):
    """FedAvg with a generator of features; `alpha: 0, beta: 0` is FedAvg.

    Subclasses may override the generator's loss on features (`critic`), its training labels
    (`generator_batches`), further inputs of the generator (`scalars`, `generator_scalars`), and the loss of
    logits (`logits_loss`).

    Attributes:
        alpha: weight of the loss on generated features of drawn labels, in round 1.
        beta: weight of the KL term on generated features of the client's own labels, in round 1.
        decay: factor of both weights from round to round.
        samples: generated features of a local step, B_g; null for as many as a batch has examples.
        generator_steps: Adam steps of the generator after each round.
        generator_batch_size: generated features of each of these steps.
        generator_lr: Adam's learning rate in round 1.
        generator_gamma: factor of the generator's learning rate from round to round.
        generator_decay: the generator's weight decay.
        generator_noise: size of the generator's noise input.
        generator_hidden: the generator's hidden width.
        output: activation of the generator's last layer.
        diversity: loss that makes the features of a batch differ; `pairs` is this paper's, `ratio` KDIA's.
    """

    alpha: Annotated[float, Range(minimum=0)] = 10.0
    beta: Annotated[float, Range(minimum=0)] = 10.0
    decay: Share = 0.98
    samples: Count | None = 32
    generator_steps: Count = 50
    generator_batch_size: Annotated[int, Range(minimum=2)] = 128
    generator_lr: Positive = 0.0001
    generator_gamma: Share = 0.98
    generator_decay: Annotated[float, Range(minimum=0)] = 0.01
    generator_noise: Count = 32
    generator_hidden: Count = 256
    output: Output = "none"
    diversity: Diversity = "pairs"

    purposes: ClassVar[tuple[str, ...]] = ("label-skew", "distillation")
    registered: ClassVar[str] = "fedgen"
    scalars: ClassVar[int] = 0
    further_example_use: ClassVar[str] = "label counts"
    uploads: ClassVar[Mapping[str, Reduction]] = {
        **FedAvg.uploads,
        "labels": Reduction.GATHER,
        "heads": Reduction.GATHER,
    }
    free_uploads: ClassVar = frozenset({"heads"})

    def check_hyperparameters(self, net: Net, rounds: int) -> Sequence[FieldError]:
        """An error for a model whose head cannot run alone on generated features."""
        return find_generator_faults(self.registered, net, "head") if self.has_generator() else ()

    def generator(self, ctx: Context) -> Generator:
        """The generator for the model."""
        return make_generator(
            ctx.net,
            ctx.input_shape,
            ctx.num_classes,
            noise=self.generator_noise,
            hidden=self.generator_hidden,
            output=self.output,
            at="head",
            scalars=self.scalars,
        )

    def strength_in_round(self, ctx: Context, strength: float) -> float:
        """A weight after its decay, in this round."""
        return max(min(strength, LEAST_STRENGTH), strength * self.decay**ctx.round)

    def has_generator(self) -> bool:
        """Whether the algorithm has a generator."""
        return self.alpha > 0 or self.beta > 0

    def uses_generated_features(self, ctx: Context) -> bool:
        """Whether clients use generated features in this round."""
        return self.has_generator() and ctx.round > 0

    # server

    def init_server_state(self, ctx: Context) -> FedGenState:
        """The parent's state, and an untrained generator."""
        params, nobody = super().init_server_state(ctx).params, torch.zeros(ctx.num_classes)
        return FedGenState(params=params, labels=nobody, generator=self.init_generator(ctx))

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The global model, the generator and the probabilities of its labels."""
        sent = dict(super().broadcast(ctx, state))
        if self.uses_generated_features(ctx):
            # Equal for all classes if no client so far held an example: zeros would draw the first class.
            chances = state.labels if bool(state.labels.any()) else torch.ones_like(state.labels)
            sent |= {"generator": state.generator["params"], "labels": {"chances": chances}}
        return sent

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The parent's state, and the probabilities of the labels."""
        state = super().aggregate(ctx, state, reduced)
        if not self.has_generator():
            return state
        return replace(state, labels=update_label_chances(state.labels, gather_label_counts(reduced)))

    def train_server(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Steps[Progress, None, Any]:
        """Train the generator on the cohort's heads."""
        if not self.has_generator() or not sum(reduced.num_examples):
            return state
        stream = streams.stream(ctx.seed, "generator", ctx.round)
        critic = self.critic(ctx, state, reduced, ctx.device)
        batches = self.generator_batches(ctx, state, reduced, stream)
        training = self.generator_schedule(ctx)
        return (yield from self.train_generator(ctx, state, critic, training, batches, stream))

    def generator_schedule(self, ctx: Context) -> GeneratorTraining:
        """The generator's training after this round."""
        return GeneratorTraining(
            epochs=1,
            batches=self.generator_steps,
            batch_size=self.generator_batch_size,
            lr=self.generator_lr * self.generator_gamma**ctx.round,
            weight_decay=self.generator_decay,
            diversity=self.diversity,
        )

    def generator_batches(
        self, ctx: Context, state: Any, reduced: ReducedUpdates, stream: np.random.Generator
    ) -> GeneratorBatches:
        """Labels drawn evenly from those that the cohort holds."""
        held = np.flatnonzero(gather_label_counts(reduced).sum(0).numpy())
        return GeneratorBatches(list(stream.choice(held, (self.generator_steps, self.generator_batch_size))))

    def critic(self, ctx: Context, state: Any, reduced: ReducedUpdates, device: torch.device) -> Critic:
        """The cohort's heads, each weighted by its client's share of the cohort's examples of a class."""
        counts = gather_label_counts(reduced)
        shares = (counts / counts.sum(0).clamp(min=1)).float().to(device)
        heads = make_classifiers(ctx.net, self.generator(ctx).feature_entry, reduced["heads"], device)
        return label_critic(heads, shares)

    # client

    def draw_step_noise(
        self, ctx: Context, rng: np.random.Generator, steps: int, batch_size: int, *_: int
    ) -> Tree:
        """Random numbers for drawn labels, the noise of features, and the further inputs of drawn labels."""
        if not self.uses_generated_features(ctx) or not steps:
            return {}
        samples, wide = self.samples or batch_size, self.generator_noise
        made = {
            "chance": rng.random((steps, samples), np.float32),
            "noise": rng.standard_normal((steps, samples, wide), np.float32),
        }
        own = {"own": rng.standard_normal((steps, batch_size, wide), np.float32)} if self.beta else {}
        places = {"places": rng.random((steps, samples), np.float32)} if self.scalars else {}
        return {**made, **own, **places}

    def loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The loss of the examples, plus the loss of generated features, plus the KL term."""
        logits = ctx.net(params, batch.x)
        value = self.logits_loss(ctx, task, logits, batch)
        if self.uses_generated_features(ctx) and self.alpha:
            size = ctx.local.batch_size
            weight = self.strength_in_round(ctx, self.alpha) * (self.samples or size) / size
            value = value + weight * self.generated_loss(ctx, task, params, batch)
        if self.uses_generated_features(ctx) and self.beta:
            predict_generated = self.predict_own_labels(ctx, task, params, batch)
            value = value + self.strength_in_round(ctx, self.beta) * kl_divergence(
                predict_generated, logits, batch.mask
            )
        return value

    def logits_loss(self, ctx: Context, task: ClientTask, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of logits `[batch, classes]`, a scalar: of examples and of generated features alike."""
        return cross_entropy(logits, batch)

    def generated_loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The head's loss on generated features of drawn labels: a scalar."""
        logits, labels = self.classify_drawn_features(ctx, task, params, batch)
        return self.logits_loss(ctx, task, logits, Batch(logits, labels))

    def classify_drawn_features(
        self, ctx: Context, task: ClientTask, params: Params, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """The head's logits `[samples, classes]` for generated features of drawn labels; and the labels."""
        labels = draw_labels(task.broadcast["labels"]["chances"], batch.noise["chance"])
        scalars = self.generator_scalars(task, batch, own=False)
        made = self.make_features(ctx, task, batch.noise["noise"], labels, scalars)
        return self.classify_features(ctx, params, made), labels

    @torch.no_grad()
    def predict_own_labels(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The head's logits `[batch, classes]` for generated features of the batch's own labels."""
        scalars = self.generator_scalars(task, batch, own=True)
        made = self.make_features(ctx, task, batch.noise["own"][: len(batch.y)], batch.y, scalars)
        return self.classify_features(ctx, params, made)

    def generator_scalars(self, task: ClientTask, batch: Batch, *, own: bool) -> Tensor | None:
        """The generator's inputs besides noise and labels, `[features, scalars]`; None if it has none.

        Args:
            task: the client's work.
            batch: the batch of a step, with its noise.
            own: whether the features are of the batch's own labels, or of drawn labels.
        """
        return None

    @torch.no_grad()
    def make_features(
        self, ctx: Context, task: ClientTask, noise: Tensor, labels: Tensor, scalars: Tensor | None
    ) -> Tensor:
        """Features `[batch, ...]` of these labels, from the broadcast generator."""
        return self.generator(ctx)(task.broadcast["generator"], noise, labels, scalars)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """The model, the label counts, and the model's head."""
        update = super().make_update(ctx, task, trained)
        more: dict[str, Tree] = {"labels": {}, "heads": {}}
        if self.has_generator():
            keys = self.generator(ctx).feature_entry.keys(ctx.net)
            counts = task.label_counts.to(torch.int32)
            more = {"labels": {"counts": counts}, "heads": tree.select(trained.params, keys)}
        return update._replace(upload={**update.upload, **more})

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, and the generated features; those of own labels need no gradient."""
        # The parent's payloads alone: the others may be slow to make, and this runs once for each size.
        usual = Effort(steps, self.trainable_keys(ctx, super().broadcast(ctx, state)))
        if not self.uses_generated_features(ctx):
            return (usual,)
        made, own = (feature_flops(ctx.net, self.generator(ctx), trains) for trains in (True, False))
        samples = steps * (self.samples or ctx.local.batch_size) if self.alpha else 0
        return (usual._replace(flops_per_example=own if self.beta else 0, extra_flops=samples * made),)


def gather_label_counts(reduced: ReducedUpdates) -> Tensor:
    """The number of examples of each class, for each client of a cohort: float64 `[clients, classes]`."""
    return torch.stack([each["counts"].cpu() for each in reduced["labels"]]).double()


def update_label_chances(chances: Tensor, counts: Tensor) -> Tensor:
    """The probabilities `[classes]` with which clients draw labels: equal for all labels seen so far.

    Args:
        chances: the probabilities before the round, `[classes]`.
        counts: of the cohort, float64 `[clients, classes]`.
    """
    met = ((chances > 0) | (counts.sum(0) > 0)).float()
    return met / met.sum().clamp(min=1)
