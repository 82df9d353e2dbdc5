"""ACE-pFL: Accurate, Efficient Personalized Federated Learning With Knowledge Distillation.

He, Bai, Li, Chen, Du, IEEE Transactions on Networking 2025, doi:10.1109/TON.2025.3527467.

Idea: every client has a personal model of any architecture, predicts a public set, and learns from the mean
of all clients' predictions, from its own best model so far, and from the mean of earlier rounds.

Wire:
    down    predictions  all clients' mean prediction of the last round, the `top_k` largest entries of a row
            share        free: the client's weight in the mean, which a real server applies itself
            census       once: a client's label distribution (see `fedsim.core.census`)
    up      predictions  the `top_k` largest entries of each row, and whether all are finite, OVERALL_MEAN
            census       once: the distance to that distribution
    keeps   model, best and its score, the mean of all earlier rounds' predictions, and of how many rounds
    server  predictions, clusters, the clients' weights

An entry that is sent costs 8 bytes, its value and its index. Rounds are Algorithm 1, divided at another line:
a client learns from the mean prediction of round r at the beginning of its next task, and before it is
scored, because the mean needs all clients of round r. With r from 1 and client n of cluster v:

    s_n^r = top_k(softmax(z_n / T_r))                                     after SGD on its own examples
    s^r   = top_k(sum over v of (D_v / D) mean of s_n^r over n in v)                                  (Eq. 3)
    loss  = alpha1 CE + T_r^2 (alpha2 KL(s^r || s_n) + alpha3 KL(s_n^b || s_n) + alpha4 KL(m || s_n)) (Eq. 4)

with D_v the examples of v's clients, s_n^b the prediction of the client's best model of earlier rounds, and m
the mean of those of s^1 to s^(r-1) that the client received. T_r and its curves are in
`fedsim.techniques.soft_predictions`, the loss is in `fedsim.techniques.triple_distillation`.

Deviations: the paper cuts to K entries on the clients alone, here the mean is cut as well. Eq. 3 prints D_v
inside the sum, so its weights do not sum to 1; here the clients of v share the weight D_v evenly, also those
without examples. Entries that are sent are rescaled to the sum 1, and the divergences have the teacher first:
with zeros in s^r the printed order is infinite. At T = 40 all probabilities are nearly equal, and a class of
probability 0 outweighs all other terms. With the paper's `unsent: zero` clients diverge; here entries that
are not sent share the rest evenly by default. The printed L_GD, KL(s^r || m), has no gradient; `l_gd:
literal` is that. The best model is chosen on examples that the client holds out. Under partial participation
the weights are over the cohort. A client whose predictions are not finite is left out of the mean. All
clients of an architecture start from one model. Without `tau_squared` the divergences lack T_r^2 (1,600 at
T_r = 40), which keeps their gradients as large as those of the cross-entropy; hence the default. `teachers:
cluster` is fedsim's extension: the paper has one s^r for all clients. The paper has several local epochs,
without a number; the presets have one. With several labels per example, a prediction is the probability of
each label.

Reference result: see docs/results/ace-pfl.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.distillation.ace_state import AceState
from fedsim.base import tree, wire
from fedsim.base.parameters import Count, Positive, Range
from fedsim.base.privacy import Mechanism, NoiseKind, make_privacy_record
from fedsim.base.tree import Tree
from fedsim.core import (
    Algorithm,
    ClientTask,
    ClientUpdate,
    Context,
    Effort,
    ReducedUpdates,
    Reduction,
)
from fedsim.core.capabilities import (
    ClientInstructions,
    HeldOutExamples,
    LabelCensus,
    PayloadAccounting,
    PersonalModels,
    RoundNoise,
)
from fedsim.core.census import CensusAnswers, CensusQuestion, Ground
from fedsim.models.net import Params
from fedsim.techniques.clustering import cluster_features, mean_cluster_distances
from fedsim.techniques.server_distillation import all_finite
from fedsim.techniques.soft_predictions import (
    RUN_LENGTH_CURVES,
    Curve,
    Stage,
    Temperature,
    Unsent,
    add_prediction_noise,
    average_in_clusters,
    top_k,
)
from fedsim.techniques.soft_targets import soften_logits
from fedsim.techniques.triple_distillation import (
    TEACHERS,
    GlobalTerm,
    Strategy,
    TripleDistillation,
    TripleLoss,
)
from fedsim.training.local_loop import LocalLoop, plain_loss, run_local_loop

Weight = Annotated[float, Range(minimum=0)]
Steepness = Annotated[float, Range(minimum=1e-6, maximum=700)]  # curves divide by 1 - e^-k2 and by e^k2 - 1
NO_WEIGHT = 1e-9  # a sum of weights below this is 0 but for rounding
MOST_LISTED_CLIENTS = 1000  # up to this many clients, the first round's record lists each one's cluster


@dataclass(frozen=True, kw_only=True)
class AcePFL(
    Algorithm, ClientInstructions, HeldOutExamples, LabelCensus, PayloadAccounting, PersonalModels, RoundNoise
):
    """Personal models of any architecture that learn from one another's predictions on a public set.

    Attributes:
        clustering: distances for the clusters: to one client (`vector`), between all (`matrix`), or no
            clusters (`none`, the plain mean).
        clusters: largest number of clusters, |V|.
        ground: cost of moving a unit in the distances: 1 between any two classes (`identity`), or the
            difference of two frequencies, whatever their classes (`sorted`).
        selection: number that selects the client of the distances (`vector`): each number draws another
            client.
        top_k: largest number of entries of a prediction that travel; K in the paper.
        unsent: value of entries that are not sent: equal shares of the rest (`even`), or 0 as in the paper,
            with the sent entries rescaled to the sum 1 (`zero`).
        curve: curve of the temperature over the rounds: `f1` rises in stages, ever slower within each, and
            `f4` ever faster; `f2` slows down and `f3` speeds up over the run; `f5` is linear; `fixed` is
            `t0`.
        t0: temperature before any rise.
        k1: rise of the temperature in a stage.
        k2: steepness of the rise.
        r0: rounds of a stage.
        stage: whether the rise of earlier stages counts in stages of `r0` rounds, or of `t0`, as Eq. 2
            prints.
        alpha1: weight of the cross-entropy.
        alpha2: weight of the divergence from all clients' mean prediction.
        alpha3: weight of the divergence from the client's best model.
        alpha4: weight of the divergence from the mean of earlier rounds.
        distillation: `single` has the first divergence alone, `double` the first two.
        tau_squared: whether the divergences are multiplied by T_r^2, as in Eq. 4.
        teachers: whose mean prediction a client learns from: that of `all` clients, as in the paper, or that
            of its `cluster`, an extension; without clusters (`clustering: none`) always that of all.
        l_gd: `live` compares the client's prediction with the past, `literal` the server's, a constant.
        eta2: learning rate on the public set; the rate on the client's own examples is `local.lr`.
        public_epochs: passes over the public set in a round.
        public_batch_size: batch size on the public set; null for that of the local training.
        validation: share of its examples that a client holds out to choose its best model.
        label_epsilon: privacy budget of a client's label distribution; null for no noise.
        prediction_epsilon: privacy budget of each single prediction; null for no noise.
        mechanism: kind of the noise: epsilon-private (`laplace`), or (epsilon, delta)-private (`gaussian`).
        delta: the delta of `gaussian`.
    """

    clustering: Literal["vector", "matrix", "none"] = "vector"
    clusters: Count = 3
    ground: Ground = "identity"
    selection: Annotated[int, Range(minimum=0)] = 0
    top_k: Count = 5
    unsent: Unsent = "even"
    curve: Curve = "f1"
    t0: Positive = 30.0
    k1: Annotated[float, Range(minimum=0)] = 5.0
    k2: Steepness = 5.0
    r0: Count = 100
    stage: Stage = "r0"
    alpha1: Weight = 0.4
    alpha2: Weight = 0.3
    alpha3: Weight = 0.2
    alpha4: Weight = 0.1
    distillation: Strategy = "triple"
    tau_squared: bool = True
    teachers: Literal["all", "cluster"] = "all"
    l_gd: GlobalTerm = "live"
    eta2: Positive = 0.015
    public_epochs: Count = 1
    public_batch_size: Count | None = None
    validation: Annotated[float, Range(minimum=0, below=1)] = 0.1
    label_epsilon: Positive | None = None
    prediction_epsilon: Positive | None = None
    mechanism: NoiseKind = "laplace"
    delta: Annotated[float, Range(above=0, below=1)] = 1e-5

    purposes: ClassVar[tuple[str, ...]] = (
        *("personalisation", "communication", "distillation"),
        *("model-heterogeneity", "clustering", "privacy"),
    )
    further_example_use: ClassVar[str] = "label distributions and held-out examples"
    uploads: ClassVar[Mapping[str, Reduction]] = {"predictions": Reduction.OVERALL_MEAN}
    stateful: ClassVar[bool] = True
    heterogeneous: ClassVar[bool] = True
    deploys_models: ClassVar[bool] = False
    needs_public_set: ClassVar[bool] = True

    def depends_on_num_rounds(self) -> bool:
        """Whether the temperature's curve ends with the run."""
        return self.curve in RUN_LENGTH_CURVES

    def temperature(self, ctx: Context) -> Temperature:
        """The temperature T_r as a function of r."""
        shape = Temperature(curve=self.curve, stage=self.stage, rounds=ctx.rounds)
        return replace(shape, t0=self.t0, k1=self.k1, k2=self.k2, r0=self.r0)

    # server

    def init_server_state(self, ctx: Context) -> AceState:
        """A state without predictions and clusters."""
        return AceState(params={})

    def plan_census(self, ctx: Context) -> CensusQuestion | None:
        """The question for the clients' label distributions, to compare them (Algorithm 2)."""
        if self.clustering == "none":
            return None
        noise = self._noise_mechanism(self.label_epsilon)
        return CensusQuestion(ask=self.clustering, ground=self.ground, selection=self.selection, noise=noise)

    def apply_census(self, ctx: Context, state: AceState, answers: CensusAnswers) -> AceState:
        """The clusters, and the weights of Eq. 3: the examples of a client's cluster, over its clients."""
        clusters = cluster_features(answers.distances, self.clusters, ctx.seed)
        weights = np.bincount(clusters, answers.sizes) / np.bincount(clusters)
        emd = {
            ground: tuple(mean_cluster_distances(answers.shares, clusters, ground))
            for ground in get_args(Ground)
        }
        return replace(
            state,
            clusters=torch.from_numpy(clusters),
            weights=torch.from_numpy(weights[clusters]),
            mean_emd=emd[self.ground],
            emd_by_ground=emd,
        )

    def broadcast(self, ctx: Context, state: AceState) -> Mapping[str, Tree]:
        """All clients' mean prediction of the last round; nothing with teachers of the clusters."""
        said = None if self.has_cluster_teachers() else state.predictions
        return {"predictions": {} if said is None else {"probabilities": said}}

    def instruct_client(self, ctx: Context, state: AceState, client: int) -> Mapping[str, Tree]:
        """The client's weight, which a real server applies itself, and the mean prediction of its cluster."""
        if state.weights is None or state.clusters is None:
            return {}
        share = {"weight": state.weights[client]}
        if not self.has_cluster_teachers():
            return {"share": share}
        mine, count = int(state.clusters[client]), int(state.clusters.max()) + 1
        sent = {"share": {**share, "cluster": torch.eye(count)[mine]}}
        said = state.predictions
        return sent if said is None else {**sent, "predictions": {"probabilities": said[mine]}}

    def has_cluster_teachers(self) -> bool:
        """Whether each cluster has a mean prediction of its own."""
        return self.teachers == "cluster" and self.clustering != "none"

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """8 bytes for each entry of a prediction that is sent."""
        if name == "share" or not payload:
            return 0
        said: Tensor = payload["probabilities"]
        return wire.PAIR_BYTES * said.shape[-2] * min(self.top_k, said.shape[-1])

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """The examples of the client's cluster, divided by its clients; 1 without clustering."""
        share = task.instruction.get("share")
        return 1.0 if share is None else float(share["weight"])

    def aggregate(self, ctx: Context, state: AceState, reduced: ReducedUpdates) -> AceState:
        """Eq. 3, over the clients with finite predictions."""
        said, several = reduced["predictions"], ctx.require_public_set().several_labels
        if said and self.has_cluster_teachers():
            means = average_in_clusters(said, NO_WEIGHT)
            kept = None if means is None else top_k(means, self.top_k, self.unsent, several).float()
            return replace(state, predictions=kept)
        heard = 1 - said["silent"] if said else 0.0  # exactly 1 if all clients have finite predictions
        if heard < NO_WEIGHT:
            return replace(state, predictions=None)
        kept = top_k(said["probabilities"] / heard, self.top_k, self.unsent, several)
        return replace(state, predictions=kept.float())

    def describe_round(self, ctx: Context, state: AceState) -> Mapping[str, Any]:
        """The temperature, the clusters with their mean distances, and the privacy budget spent so far."""
        said: dict[str, Any] = {"temperature": self.temperature(ctx)(ctx.round + 1)}
        if state.clusters is not None:
            said |= {"clusters": torch.bincount(state.clusters).tolist(), "mean_emd": list(state.mean_emd)}
            said |= {f"mean_emd_{ground}": list(emd) for ground, emd in state.emd_by_ground.items()}
            if ctx.round == 0 and ctx.num_clients <= MOST_LISTED_CLIENTS:
                said["cluster_of"] = state.clusters.tolist()
        labels = self._noise_mechanism(self.label_epsilon if self.clustering != "none" else None)
        sent = len(ctx.require_public_set()) * (ctx.round + 1)
        spent = make_privacy_record(labels, self._noise_mechanism(self.prediction_epsilon), sent)
        return {**said, "privacy": spent} if spent else said

    def _noise_mechanism(self, epsilon: float | None) -> Mechanism | None:
        return None if epsilon is None else Mechanism(kind=self.mechanism, epsilon=epsilon, delta=self.delta)

    # client

    def held_out_share(self, ctx: Context) -> float:
        """The share of examples to choose the best model on, if the algorithm needs it."""
        return 0.0 if self.distillation == "single" else self.validation

    def draw_round_noise(self, ctx: Context, rng: np.random.Generator) -> Tree:
        """The noise of the predictions, of scale 1."""
        noise = self._noise_mechanism(self.prediction_epsilon)
        shape = (len(ctx.require_public_set()), ctx.num_classes)
        return {} if noise is None else {"noise": noise.draw_standard_noise(rng, shape)}

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The client's personal model after its last round; at first the initial model, the same for all."""
        model: Params | None = task.client_state.get("model")
        return ctx.cached_init_params(task.device) if model is None else model

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Line 8 of the last round, then lines 4 to 7 of this round, of Algorithm 1."""
        model, client_state, public_loss = self._distil_predictions(ctx, task, ctx.round)
        trained = run_local_loop(LocalLoop(ctx, task, model, plain_loss))
        metrics = {"train_loss": trained.loss}
        if public_loss is not None:
            metrics["public_loss"] = public_loss
        said = self._predict_public_set(ctx, task, trained.params)
        sound = all_finite(said)
        prediction = {"probabilities": torch.where(sound, said, 0.0), "silent": (~sound).float()}
        if self.has_cluster_teachers():
            mine = task.instruction["share"]["cluster"]
            prediction = {
                "probabilities": mine[:, None, None] * prediction["probabilities"],
                "silent": mine * prediction["silent"],
                "present": mine,
            }
        return ClientUpdate(
            {"predictions": prediction}, {**client_state, "model": trained.params}, metrics, trained.params
        )

    def _predict_public_set(self, ctx: Context, task: ClientTask, params: Params) -> Tensor:
        """s_n^r on the public set, as the server receives it: `[public examples, classes]`."""
        public, temperature = ctx.require_public_set(), self.temperature(ctx)(ctx.round + 1)
        soft = soften_logits(
            public.predict_examples(lambda x: ctx.net(params, x)), temperature, public.several_labels
        )
        noise = self._noise_mechanism(self.prediction_epsilon)
        if noise is not None:
            scale = noise.prediction_scale(ctx.num_classes, public.several_labels)
            soft = add_prediction_noise(soft, scale * task.round_noise["noise"], public.several_labels)
        return top_k(soft, self.top_k, self.unsent, public.several_labels)

    def _distil_predictions(
        self, ctx: Context, task: ClientTask, round: int
    ) -> tuple[Params, Tree, Tensor | None]:
        """Line 8 of Algorithm 1: learn from the mean prediction of a round (from 1).

        Returns:
            The client's model, the other parts of its client state, and its mean loss; None without
            predictions or without a weight.
        """
        model, client_state = self.initial_params(ctx, task), tree.drop(task.client_state, ("model",))
        received = task.instruction.get("predictions", task.broadcast["predictions"])
        said = received.get("probabilities")
        if said is None:
            return model, client_state, None
        triple = self._triple_distillation
        if not triple.has_weight():  # not even running statistics follow the public set
            return model, triple.update_client_state(ctx, task, model, said), None
        size = self.public_batch_size or ctx.local.batch_size
        steps = ctx.require_public_set().shuffle_batches(
            ctx.seed, round, epochs=self.public_epochs, batch_size=size
        )
        temperature = self.temperature(ctx)(round)
        teachers = triple.make_teachers(ctx, task.client_state, said, temperature)
        public_task = task._replace(batches=steps, instruction={**task.instruction, TEACHERS: teachers})
        public_ctx = replace(ctx, local=ctx.local.with_constant_rate(self.eta2))
        loss = TripleLoss(triple, temperature)
        trained = run_local_loop(LocalLoop(public_ctx, public_task, model, loss))
        kept = triple.update_client_state(ctx, task, trained.params, said)
        return trained.params, kept, trained.loss

    @property
    def _triple_distillation(self) -> TripleDistillation:
        alphas = (self.alpha1, self.alpha2, self.alpha3, self.alpha4)
        terms = {"strategy": self.distillation, "l_gd": self.l_gd, "tau_squared": self.tau_squared}
        return TripleDistillation(alphas=alphas, **terms)  # type: ignore[arg-type]

    def count_effort(self, ctx: Context, state: AceState, steps: int) -> Sequence[Effort]:
        """The local steps, the predictions on the public set, and once there are predictions its steps."""
        public, moving = ctx.require_public_set(), ctx.net.parameters
        found = [Effort(steps, moving), Effort(1, (), examples=len(public))]
        if state.predictions is not None and self._triple_distillation.has_weight():
            size, passes = self.public_batch_size or ctx.local.batch_size, self.public_epochs
            found.append(Effort(passes * -(-len(public) // size), moving, examples=passes * len(public)))
            if self.distillation != "single":
                found.append(Effort(1, (), examples=len(public)))
        return found

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The client's model after this round, with the distillation of this round's mean prediction."""
        return self._distil_predictions(ctx, task, ctx.round + 1)[0]

    def personalize_before(self, ctx: Context, task: ClientTask) -> Tree:
        """The client's model after its own examples, before the distillation."""
        return self.initial_params(ctx, task)
