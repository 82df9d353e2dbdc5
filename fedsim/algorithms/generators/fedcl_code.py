"""FedCL: Federated Multi-Phase Curriculum Learning to Synchronously Correlate User Heterogeneity (its code).

Wang, Guo, Jia, IEEE Transactions on Artificial Intelligence 2023, arXiv:2211.07248.

Idea: the method of the authors' public code, which differs from their text (`fedcl`) in every part: FedGen
whole, SuperLoss on real examples, and a client that has reached the stage's goal ends its local steps of the
round.

Wire:
    down    params    the global model
            generator, labels  as in FedGen, from the second round on
            scores    the last cohort's scores, K x batch size numbers; from the second round on
            stage     the range of generated difficulties and the goal of the stage, four numbers; likewise
    up      params    the trained model, MEAN
            labels, heads  as in FedGen
            scores    the scores of the last batch, and whether the client reached the goal, GATHER
    keeps   nothing
    server  FedGen's, the last cohort's scores, the stage, and which places of the cohort reached its goal

With l the cross-entropy of an example, C the classes and s = 0.01, a local step descends

    s / C mean(-sum over c of log p_c) + (1 - s) mean SuperLoss(l)
      + alpha_t (B_g / B) CE(h(G(y', d')), y') + beta_t KL(h(G(y, d)) || h(f(x)))

with alpha_t and beta_t as in FedGen, tau = log 10 and lambda = 1. Scores of a batch are l - tau, shifted and
scaled to [0, 1]. q1 and q3 are the quartiles of the last cohort's scores. Difficulties d of the batch's own
labels are the scores of one client of the last cohort; those of drawn labels, d', are drawn evenly from (0,
q1) in stage 0, (q1, q3) in stage 1 and (q3, 1) later. Before each step the client looks at l - tau of its
generated features. If their 80 % quantile is below q1 (stage 0), between q1 and q3 (stage 1) or above q3
(later), its local steps of this round are over. When 80 % of the cohort's places have reached the goal, from
the fourth round on and not in one round necessarily, the next stage begins. The generator descends the
diversity loss and, over the cohort's clients k, the sum of their mean share of the labels times their local
loss of generated features.

Deviations: the code's repository does not run; this is what its parts do together. It fits a mixture of as
many Gaussians as the cohort has clients to their vectors of scores, and draws from it: that is one of the
vectors, with a noise of variance 1e-6, which is left out. Its generator makes other features for each
client's head; here all heads judge the same ones, as in FedGen. A last batch with less examples repeats its
scores. Each step is a local loop of its own: momentum and rates that fall within a round have no effect, and
the code has neither. Its rate falls from round to round by 0.99: `local.round_decay`.

Reference result: see docs/results/fedcl.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, inf, log
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.generators.fedgen import FedGen, FedGenState, gather_label_counts
from fedsim.base import tree
from fedsim.base.parameters import Positive, Range, Share
from fedsim.base.shares import ceil_share
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction
from fedsim.models.net import Params
from fedsim.techniques.generator_training import Critic, GeneratorBatches, make_classifiers
from fedsim.techniques.generators import draw_entries
from fedsim.techniques.superloss import SuperLoss
from fedsim.training.local_loop import LocalLoop, TrainedModel, run_local_loop
from fedsim.training.losses import cross_entropy, example_losses, masked_mean

FIRST_COUNTED_ROUND = 3
"""The round, from 0, from which clients that reach the goal count."""

LAST_STAGE = 2


@dataclass(frozen=True, kw_only=True)
class FedCLCodeState(FedGenState):
    """The server state.

    Attributes:
        scores: of the last cohort, float32 `[clients, batch size]`.
        stage: from 0.
        reached: whether each place of the cohort has reached the stage's goal, bool `[cohort size]`.
    """

    scores: Tensor
    stage: int
    reached: Tensor


@dataclass(frozen=True, kw_only=True)
class FedCLCode(FedGen):
    """FedCL as its authors' public code has it: FedGen, SuperLoss, and clients that end their round early.

    Attributes:
        lambda_cl: lambda, the cost of a confidence other than 1.
        tau_classes: tau is the logarithm of this number.
        smoothing: share of the smoothed labels in the loss of real examples.
        v: quantile of a client's generated features that has to meet the goal.
        finished: share of the cohort's places that have to reach the goal before the next stage begins.
    """

    lambda_cl: Positive = 1.0
    tau_classes: Annotated[float, Range(above=1, maximum=1e6)] = 10.0
    smoothing: Share = 0.01
    v: Annotated[float, Range(minimum=0, below=1)] = 0.8
    finished: Annotated[float, Range(above=0, maximum=1)] = 0.8

    purposes: ClassVar[tuple[str, ...]] = ("label-skew", "curriculum", "distillation")
    registered: ClassVar[str] = "fedcl_code"
    scalars: ClassVar[int] = 1
    assumes_sgd: ClassVar[bool] = True
    uploads: ClassVar[Mapping[str, Reduction]] = {**FedGen.uploads, "scores": Reduction.GATHER}

    # server

    def init_server_state(self, ctx: Context) -> FedCLCodeState:
        """FedGen's state, in stage 0."""
        begun = super().init_server_state(ctx)
        return FedCLCodeState(
            params=begun.params,
            labels=begun.labels,
            generator=begun.generator,
            scores=torch.zeros(0, ctx.local.batch_size),
            stage=0,
            reached=torch.zeros(ctx.cohort_size, dtype=torch.bool),
        )

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """FedGen's payloads, the last cohort's scores, and the stage."""
        sent = dict(super().broadcast(ctx, state))
        if self.uses_generated_features(ctx):
            scores = state.scores if len(state.scores) else torch.full((1, ctx.local.batch_size), 0.5)
            low, high = np.quantile(scores.numpy(), (0.25, 0.75)).tolist()
            ranges = [(0.0, low), (low, high), (high, 1.0)]
            goals = [(-inf, low), (low, high), (high, inf)]
            at = min(state.stage, LAST_STAGE)
            sent["scores"] = {"values": scores}
            sent["stage"] = {"range": torch.tensor(ranges[at]), "goal": torch.tensor(goals[at])}
        return sent

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """FedGen's state, the cohort's scores, and the stage."""
        now, sent = super().aggregate(ctx, state, reduced), reduced["scores"]
        told = [entry["values"] for entry in sent if entry and torch.isfinite(entry["values"]).all()]
        now = replace(now, scores=torch.stack(told) if told else state.scores)
        if ctx.round < FIRST_COUNTED_ROUND:
            return now
        reached = state.reached.clone()
        # A curriculum may have larger cohorts: further places do not count.
        for place, entry in enumerate(sent[: len(reached)]):
            reached[place] |= bool(entry) and bool(entry["reached"])
        if int(reached.sum()) >= ceil_share(self.finished, len(reached)):
            return replace(now, stage=state.stage + 1, reached=torch.zeros_like(reached))
        return replace(now, reached=reached)

    def generator_batches(
        self, ctx: Context, state: Any, reduced: ReducedUpdates, stream: np.random.Generator
    ) -> GeneratorBatches:
        """FedGen's labels; the difficulties of a batch are the scores of random clients of the cohort."""
        labels = super().generator_batches(ctx, state, reduced, stream).labels
        scores = state.scores.numpy()
        if not len(scores):
            return GeneratorBatches(labels, [np.full((len(each), 1), 0.5, np.float32) for each in labels])
        each, size = ceil(self.generator_batch_size / scores.shape[1]), self.generator_batch_size
        rows = scores[stream.integers(len(scores), size=(len(labels), each))].reshape(len(labels), -1)
        return GeneratorBatches(labels, list(rows[:, :size, None].astype(np.float32)))

    def critic(self, ctx: Context, state: Any, reduced: ReducedUpdates, device: torch.device) -> Critic:
        """The sum over the cohort of a client's mean share of the labels times its loss."""
        counts = gather_label_counts(reduced)
        shares = (counts / counts.sum(0).clamp(min=1)).float().to(device)
        heads = make_classifiers(ctx.net, self.generator(ctx).feature_entry, reduced["heads"], device)

        def judge(made: Tensor, wanted: Tensor) -> Tensor:
            losses = torch.stack([self.superloss(logits, Batch(made, wanted)) for logits in heads(made)])
            return (shares[:, wanted].mean(1) * losses).sum()

        return judge

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The stage, the places that have reached its goal, and the generator's last loss."""
        said = {"stage": state.stage, "reached_clients": int(state.reached.sum())}
        return {**said, **super().describe_round(ctx, state)}

    # client

    def draw_step_noise(
        self, ctx: Context, rng: np.random.Generator, steps: int, batch_size: int, *more: int
    ) -> Tree:
        """FedGen's noise, and random numbers for the client whose scores own labels take."""
        drawn = super().draw_step_noise(ctx, rng, steps, batch_size, *more)
        return {**drawn, "teller": rng.random((steps,), np.float32)} if drawn else {}

    def tau(self) -> float:
        """The loss that separates easy from hard examples."""
        return log(self.tau_classes)

    def superloss(self, logits: Tensor, batch: Batch) -> Tensor:
        """The mean SuperLoss with smoothed labels, whose part has no confidence: a scalar."""
        losses = SuperLoss(self.tau(), self.lambda_cl)(example_losses(logits, batch.y, batch.label_smoothing))
        spread = -torch.log_softmax(logits, -1).mean(-1)
        value = self.smoothing * spread + (1 - self.smoothing) * losses
        return masked_mean(value, batch.mask)

    def logits_loss(self, ctx: Context, task: ClientTask, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of real examples."""
        return self.superloss(logits, batch)

    def generated_loss(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """The cross-entropy of the head on generated features of drawn labels: a scalar."""
        logits, labels = self.classify_drawn_features(ctx, task, params, batch)
        return cross_entropy(logits, Batch(logits, labels))

    def generator_scalars(self, task: ClientTask, batch: Batch, *, own: bool) -> Tensor:
        """Difficulties in the stage's range for drawn labels; for the batch's labels those of one client."""
        if not own:
            low, high = task.broadcast["stage"]["range"]
            ranged: Tensor = low + (high - low) * batch.noise["places"]
            return ranged.unsqueeze(-1)
        scores = draw_entries(task.broadcast["scores"]["values"], batch.noise["teller"])
        return scores[: len(batch.y)].unsqueeze(-1)

    @torch.no_grad()
    def meets_goal(self, ctx: Context, task: ClientTask, params: Params, batch: Batch) -> Tensor:
        """Whether the quantile `v` of l - tau of generated features meets the stage's goal: a bool scalar."""
        if not self.uses_generated_features(ctx):
            return torch.zeros((), dtype=torch.bool, device=task.device)
        logits, labels = self.classify_drawn_features(ctx, task, params, batch)
        scores = (example_losses(logits, labels) - self.tau()).sort().values
        goal: Tensor = task.broadcast["stage"]["goal"]
        value = scores[int(len(scores) * self.v)]
        return (goal[0] < value) & (value < goal[1])

    @torch.no_grad()
    def score_batch(self, ctx: Context, params: Params, batch: Batch) -> Tensor:
        """The scores of a batch's examples, shifted and scaled to [0, 1]: float32 `[batch size]`."""
        scores = example_losses(ctx.net(params, batch.x), batch.y) - self.tau()
        scores = (scores - scores.min()) / (scores.max() - scores.min()).clamp(min=1e-12)
        size = ctx.local.batch_size
        return scores.repeat(ceil(size / len(scores)))[:size]

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Local steps until the goal is reached; the steps after it change nothing."""
        params, moving = self.initial_params(ctx, task), self.trainable_keys(ctx, task.broadcast)
        done = torch.zeros((), dtype=torch.bool, device=task.device)
        total, steps, scores = torch.zeros((), device=task.device), torch.zeros((), device=task.device), None
        for batch in task.batches:
            new = self.score_batch(ctx, params, batch)
            scores = new if scores is None else torch.where(done, scores, new)
            done = done | self.meets_goal(ctx, task, params, batch)
            loop = LocalLoop(ctx, task._replace(batches=[batch]), params, self.loss, moving)
            trained, before, is_done = run_local_loop(loop), params, done
            params = tree.map(
                lambda old, stepped, stop=is_done: torch.where(stop, old, stepped), before, trained.params
            )
            total, steps = total + torch.where(done, 0.0, trained.loss), steps + (~done).float()
        found = TrainedModel(params, total / steps.clamp(min=1), len(task.batches))
        update = self.collect_update(ctx, task, found)
        sent = {} if scores is None else {"values": scores, "reached": done}
        upload = {**update.upload, "scores": sent}
        return update._replace(upload=upload, metrics={**update.metrics, "local_steps": steps})
