"""FedCL: Federated Multi-Phase Curriculum Learning to Synchronously Correlate User Heterogeneity.

Wang, Guo, Jia, IEEE Transactions on Artificial Intelligence 2023, arXiv:2211.07248.

Idea: all clients learn at one pace. Easy examples weigh more than hard ones. A client that reaches a phase's
goal waits until most clients have reached it; its last model still counts in the global model.

Wire:
    down    params    the global model
            generator, labels  as in FedGen; labels are drawn from the clients' label distribution
            difficulties  quantiles of the global difficulty distribution, `draws` numbers; with the generator
            tau       with `tau: running`, the loss that separates easy from hard examples, one number
    up      params    the trained model, MEAN
            labels    how many examples of each class the client holds, GATHER
            difficulty  the mixture of its examples' difficulties, 3 L numbers, GATHER; with `tau: running`
                      the mean loss of its examples as well
            heads     free: the head of its model, GATHER
            sums      free: the client's part of the mean of last models, or the change of it, SUM
            models    free: with `average: frozen` the trained model, GATHER
    keeps   model, visits  with `average: all`: the model that it trained last, and in how many rounds it came
    server  params, the sums, the draws from all mixtures, the phase, the label counts, the generator, tau

A local step descends (Eq. 19) the mean SuperLoss of the batch and, from the second round on, alpha times the
mean SuperLoss of as many generated features. After the last step the client fits a mixture of L Gaussians to
the difficulties (l - tau) sigma of all its examples. The server draws numbers from each mixture; all clients'
draws, sorted, are the global distribution of difficulty, beta. The generator makes features from a label, a
difficulty drawn from beta, and noise, on the server and for the clients alike. It descends the SuperLoss of
the mean of the cohort's logits (Eq. 18) and the diversity loss. For the rules of frozen clients and of a
phase's end, see `fedsim.techniques.learning_phases`. The new global model is the plain mean of the cohort's
models and of the last models of the frozen clients (Eq. 21).

Deviations: Eq. 21 can be read as the mean of the cohort and the frozen clients (`average: frozen`, the
default: its text aggregates "all models, including frozen models"), or as that of the last models of all
clients that ever took part (`all`, a running sum in O(K)). The public code averages the cohort (`cohort`).
On MNIST none of the three agrees with the paper at all Dirichlet parameters: in the distance to FedGen
`frozen` comes nearest at 0.1, and `cohort` at 0.05 and 1; see docs/results/fedcl.md. Over all N clients only
K models of a round are new, so that with `all` the global model moves at about K/N of the speed of the
cohort's mean. With `tau: running`, tau is the exponential mean of the cohort's losses with the factor 0.9, as
SuperLoss's authors have it over batches; it is taken once a round, because all clients share one tau.

By default tau is log 10 (`tau_classes`), as in the public code, because the literal 10 gives every example
below 10 - 2 lambda / e the same weight e. The phases' levels ascend, as in the paper's experiments; in its
text they descend. A phase's threshold is fixed at its beginning. The phase ends when a share P of the
clients is frozen (Algorithm 1: all of them) or after a number of rounds; plain rounds follow the last
phase. Only clients of the cohort are checked. Difficulties are measured with the client's trained model.
The generator learns from the cohort's heads, not from all clients', and its difficulties are those of the
round; Algorithm 1 uses the last round's. Beta travels as evenly spaced quantiles, not as the list of all
draws. The distribution of the labels (Eq. 15) counts every example once, so that a client with more
examples counts more; in the paper all clients count alike. The generator's rate falls by 2 % a round and
has a weight decay of 0.01, as in FedGen's code; the paper has a rate of 1e-4 and names neither. Table I's
"generator inference size" of 128 is read as the server's batch; `samples` is the clients' number of
generated features. The paper's abstract names an auto-regressive auto-encoder that the paper does not
describe.

The public code differs in every part: see `fedcl_code`.

Reference result: see docs/results/fedcl.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import log
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.generators.fedcl_state import FedCLState, RunningTauState
from fedsim.algorithms.generators.fedgen import FedGen, gather_label_counts
from fedsim.base.parameters import Count, Positive, Range, Share
from fedsim.base.tree import Tree
from fedsim.core import Batch, ClientTask, ClientUpdate, Context, Effort, ReducedUpdates, Reduction
from fedsim.core.capabilities import CohortSelection, UpdatePostprocessing
from fedsim.techniques.gaussian_mixtures import pool_draws
from fedsim.techniques.generator_training import Critic, GeneratorBatches, make_joint_classifier
from fedsim.techniques.generators import draw_entries
from fedsim.techniques.last_models import (
    EQUAL_POWERS,
    add_new_models,
    advance_sums,
    init_sums,
    make_client_change,
    make_new_part,
    make_teacher,
)
from fedsim.techniques.learning_phases import PhaseSettings, PhaseState
from fedsim.techniques.superloss import SuperLoss, advance_tau
from fedsim.training.local_loop import TrainedModel
from fedsim.training.losses import example_losses, masked_mean, measure_losses

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FedCL(PhaseSettings, FedGen, CohortSelection, UpdatePostprocessing):
    """FedGen's generator, SuperLoss, and phases; without all three and the cohort's mean it is FedAvg.

    FedAvg is `alpha: 0, superloss: false, levels: [], average: cohort`. A local step has as many
    generated features as examples (Eq. 19).

    Attributes:
        superloss: whether examples are weighted by their confidence; if false, the loss is the cross-entropy.
        lambda_cl: lambda, the cost of a confidence other than 1.
        tau_classes: tau is the logarithm of this number, unless `tau` is given.
        tau: loss that separates easy from hard examples, in nats; it replaces `tau_classes`. `running`
            is the exponential mean of the loss over the rounds, from log `tau_classes`.
        scored_by: model that measures the difficulties: the client's `trained` model, or the `received` one.
        average: models of which the new model is the plain mean (Eq. 21): those of the cohort and of the
            `frozen` clients, or the last models of `all` clients; `cohort` is FedAvg's mean.
        selected_only: deprecated; `true` is `average: cohort`.
    """

    alpha: Annotated[float, Range(minimum=0)] = 1.0
    beta: Annotated[float, Range(minimum=0)] = 0.0
    decay: Share = 1.0
    samples: Count | None = None
    superloss: bool = True
    lambda_cl: Positive = 0.5
    tau_classes: Annotated[float, Range(above=1, maximum=1e6)] = 10.0
    tau: Annotated[float, Range(0, 1000)] | Literal["running"] | None = None
    scored_by: Literal["trained", "received"] = "trained"
    average: Literal["all", "frozen", "cohort"] = "frozen"
    selected_only: bool = False

    purposes: ClassVar[tuple[str, ...]] = ("label-skew", "curriculum", "distillation")
    registered: ClassVar[str] = "fedcl"
    scalars: ClassVar[int] = 1
    further_example_use: ClassVar[str] = "label counts and mixtures of losses"
    uploads: ClassVar[Mapping[str, Reduction]] = {
        **FedGen.uploads,
        "difficulty": Reduction.GATHER,
        "sums": Reduction.SUM,
        "models": Reduction.GATHER,
    }
    free_uploads: ClassVar = frozenset({"heads", "sums", "models"})
    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        if self.selected_only:
            warn_of_selected_only()
            object.__setattr__(self, "average", "cohort")
            object.__setattr__(self, "selected_only", False)

    def superloss_rule(self, tau: float | Tensor) -> SuperLoss:
        """The confidence-aware loss, which gives the difficulties as well."""
        return SuperLoss(tau, self.lambda_cl)

    def first_tau(self) -> float:
        """Tau of the first round; of all rounds unless it is running."""
        return self.tau if isinstance(self.tau, float | int) else log(self.tau_classes)

    def measures_difficulty(self) -> bool:
        """Whether phases or the generator need the clients' difficulties."""
        return bool(self.levels) or self.has_generator()

    # server

    def init_server_state(self, ctx: Context) -> FedCLState:
        """The parent's state, with empty sums and the first phase."""
        begun = super().init_server_state(ctx)
        everybody, nobody = ctx.num_clients, torch.zeros(ctx.num_clients, dtype=torch.bool)
        make = partial(RunningTauState, tau=self.first_tau()) if self.tau == "running" else FedCLState
        return make(
            params=begun.params,
            labels=torch.full_like(begun.labels, 1 / ctx.num_classes),
            generator=begun.generator,
            sums={} if self.average == "cohort" else init_sums(EQUAL_POWERS, begun.params),
            counts=torch.zeros(ctx.num_classes, dtype=torch.float64),
            counted=nobody,
            draws=self.init_draws(everybody if self.measures_difficulty() else 0),
            standing=PhaseState(frozen=nobody.clone()),
        )

    def select_cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
        """A uniform sample of the clients that are not frozen; all of them if they are few."""
        return self.sample_ready_clients(ctx, state.standing, rng)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """FedGen's payloads, the quantiles of beta, and a running tau."""
        sent = dict(super().broadcast(ctx, state))
        if self.tau == "running":
            sent["tau"] = {"value": torch.tensor([state.tau], dtype=torch.float32)}
        if self.uses_generated_features(ctx):
            sent["difficulties"] = {"quantiles": self.difficulty_quantiles(state)}
        return sent

    def difficulty_quantiles(self, state: Any) -> Tensor:
        """Evenly spaced quantiles of beta, float32 `[draws]`; zeros before the first mixture."""
        pool = pool_draws(state.draws).numpy()
        # Diverged models have no finite difficulties, and the pool may be empty.
        levels = (np.arange(self.draws) + 0.5) / self.draws
        found = np.quantile(pool if len(pool) else np.zeros(1), levels, method="inverted_cdf")
        return torch.from_numpy(found.astype(np.float32))

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The mean of the last models (Eq. 21), the draws from the cohort's mixtures, the phase, and tau."""
        now: Any = super().aggregate(ctx, state, reduced)
        if self.tau == "running":
            told = [float(sent["loss"]) for sent in reduced["difficulty"]]
            now = replace(now, tau=advance_tau(state.tau, told, reduced.num_examples))
        if self.average != "cohort":
            sums = advance_sums(EQUAL_POWERS, state.sums, reduced["sums"])
            now = replace(now, sums=sums, params=make_teacher(sums, now.params))
        if self.measures_difficulty():
            now = self._advance_phase(ctx, state, now, reduced)
        if self.average == "frozen":
            came = zip(reduced.clients, reduced.num_examples, reduced["models"], strict=True)
            newly = [(model, n) for client, n, model in came if now.standing.frozen[client]]
            held = state.sums if now.standing.frozen.any() else init_sums(EQUAL_POWERS, now.params)
            now = replace(now, sums=add_new_models(EQUAL_POWERS, held, newly))
        return now

    def _advance_phase(
        self, ctx: Context, state: FedCLState, now: FedCLState, reduced: ReducedUpdates
    ) -> FedCLState:
        """The state with the cohort's labels and draws, and with the phase after the round."""
        came = list(reduced.clients)
        if self.has_generator():
            counts = state.counts + (~state.counted[came]).double() @ gather_label_counts(reduced)
            counted = state.counted.index_fill(0, torch.tensor(came), True)
            chances = (counts / counts.sum()).float() if counts.any() else state.labels
            now = replace(now, counts=counts, counted=counted, labels=chances)
        draws = self.update_draws(ctx, state.draws, came, [sent["mixture"] for sent in reduced["difficulty"]])
        standing = self.phases(ctx).advance(state.standing, ctx.round, came, reduced.num_examples, draws)
        return replace(now, draws=draws, standing=standing)

    def generator_batches(
        self, ctx: Context, state: Any, reduced: ReducedUpdates, stream: np.random.Generator
    ) -> GeneratorBatches:
        """Labels from all clients' label distribution, and difficulties from all draws."""
        size, pool = (self.generator_steps, self.generator_batch_size), pool_draws(state.draws).numpy()
        chances = state.counts.numpy() / float(state.counts.sum())
        labels = stream.choice(len(chances), size, p=chances)
        # Diverged models have no finite difficulties, and the pool may be empty.
        wanted = stream.choice(pool if len(pool) else np.zeros(1), (*size, 1))
        return GeneratorBatches(list(labels), list(wanted.astype(np.float32)))

    def critic(self, ctx: Context, state: Any, reduced: ReducedUpdates, device: torch.device) -> Critic:
        """The loss of the mean of the cohort's logits (Eq. 18)."""
        heads = [head for n, head in zip(reduced.num_examples, reduced["heads"], strict=True) if n]
        shares = [1 / len(heads)] * len(heads)
        judge = make_joint_classifier(ctx.net, self.generator(ctx).feature_entry, heads, shares, device)
        tau = state.tau if self.tau == "running" else self.first_tau()
        return lambda made, wanted: self._superloss_or_plain(judge(made), Batch(made, wanted), tau)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The phase, its rounds and threshold, the frozen clients, why the phase ended, and a running tau."""
        standing = state.standing
        said = {**standing.said, "phase_rounds": standing.lasted} if self.levels else {}
        tau = {"tau": round(state.tau, 6)} if self.tau == "running" else {}
        return {**said, **tau, **super().describe_round(ctx, state)}

    # client

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """The same weight for all clients (Eq. 21), also if no client of a small cohort holds an example."""
        return super().weigh_client(ctx, task) if self.average == "cohort" else 1.0

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The global model, with 0 rounds; nothing unless all clients' last models are averaged."""
        if self.average != "all":
            return {}
        return {"model": dict(broadcast["params"]), "visits": torch.zeros((), dtype=torch.int64)}

    def logits_loss(self, ctx: Context, task: ClientTask, logits: Tensor, batch: Batch) -> Tensor:
        """The SuperLoss of logits `[batch, classes]`, mean over the batch (Eq. 10)."""
        return (
            self._superloss_or_plain(logits, batch, self._tau_of(task))
            if self.superloss
            else super().logits_loss(ctx, task, logits, batch)
        )

    def _tau_of(self, task: ClientTask) -> float | Tensor:
        """Tau in the client's round: a number, or the broadcast scalar."""
        return task.broadcast["tau"]["value"][0] if self.tau == "running" else self.first_tau()

    def _superloss_or_plain(self, logits: Tensor, batch: Batch, tau: float | Tensor) -> Tensor:
        losses = example_losses(logits, batch.y, batch.label_smoothing)
        return masked_mean(self.superloss_rule(tau)(losses) if self.superloss else losses, batch.mask)

    def draw_step_noise(
        self, ctx: Context, rng: np.random.Generator, steps: int, batch_size: int, *more: int
    ) -> Tree:
        """FedGen's noise, and random numbers for the difficulties of own labels."""
        drawn = super().draw_step_noise(ctx, rng, steps, batch_size, *more)
        if not (drawn and self.beta):
            return drawn
        return {**drawn, "own_places": rng.random((steps, batch_size), np.float32)}

    def generator_scalars(self, task: ClientTask, batch: Batch, *, own: bool) -> Tensor:
        """Difficulties that the client draws from beta."""
        places = batch.noise["own_places"][: len(batch.y)] if own else batch.noise["places"]
        return draw_entries(task.broadcast["difficulties"]["quantiles"], places).unsqueeze(-1)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> ClientUpdate:
        """FedGen's update, and the client's part of the mean of last models, or the change of it."""
        update = super().make_update(ctx, task, trained)
        held, model = torch.tensor(task.num_examples, device=task.device), dict(trained.params)
        upload: dict[str, Tree] = {**update.upload, "difficulty": {}, "sums": {}, "models": {}}
        if self.average == "cohort":
            return update._replace(upload=upload)
        if self.average == "frozen":
            part = make_new_part(EQUAL_POWERS, model, held)
            return update._replace(upload={**upload, "sums": part, "models": model})
        visits = task.client_state["visits"]
        before = (task.client_state["model"], 0 * visits, visits)
        upload["sums"] = make_client_change(EQUAL_POWERS, held, (model, visits + 1), before)
        return update._replace(upload=upload, client_state={"model": model, "visits": visits + 1})

    def postprocess_update(self, ctx: Context, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """The update with the mixture of the client's difficulties (Eq. 12), and its share at sigma = e."""
        if not (self.measures_difficulty() or self.tau == "running"):
            return update
        model = self.initial_params(ctx, task) if self.scored_by == "received" else update.model
        losses = measure_losses(ctx, model or self.initial_params(ctx, task), task.examples)
        rule, sent = self.superloss_rule(self._tau_of(task)), dict[str, Tensor]()
        if self.measures_difficulty():
            sent["mixture"] = self.fit_difficulties(rule.difficulty(losses.double()))
        if self.tau == "running":
            sent["loss"] = losses.mean().reshape(1).cpu()
        metrics = dict(update.metrics)
        if self.superloss:
            largest = rule.is_most_confident(losses).double()
            metrics["largest_confidence_share"] = largest.mean() if len(largest) else torch.zeros(())
        return update._replace(upload={**update.upload, "difficulty": sent}, metrics=metrics)

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The parent's effort, and one forward pass over the examples for the losses."""
        usual = super().count_effort(ctx, state, steps)
        is_scored = self.measures_difficulty() or self.tau == "running"
        return (*usual, ctx.local.count_forward_passes(steps)) if is_scored else usual


@cache
def warn_of_selected_only() -> None:
    """Log once that the field has a new name."""
    _LOG.warning("fedcl: selected_only is deprecated; write average: cohort for selected_only: true")
