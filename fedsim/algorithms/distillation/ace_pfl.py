"""ACE-pFL: Accurate, Efficient Personalized Federated Learning With Knowledge Distillation.

He, Bai, Li, Chen, Du, IEEE/ACM Transactions on Networking 2025, doi:10.1109/TON.2025.3527467.

Idea: every client has a model of its own, of any architecture, says what it predicts on a public set, and
learns from the mean of what all say, from its own best model so far, and from what all said before.

Wire:
    down    predictions  what all said in the last round, its `top_k` largest entries of each row
            share        free: what a client counts in the mean, which the server applies in reality
            census       once: a client's label distribution (see `fedsim.core.census`)
    up      predictions  the `top_k` largest entries of each row, and whether they are numbers, OVERALL_MEAN
            census       once: the distance to that distribution
    keeps   model, best and its score, the mean of what all said before, and of how many rounds
    server  predictions, clusters, the clients' weights

A kept entry costs 8 bytes, its value and its index. Rounds are Algorithm 1, cut elsewhere: what a client
learns on the public set in round r needs what all said in round r, so it does that when it is reached next,
at the beginning of its next visit, and before it is scored. With r from 1 and client n of cluster v:

    s_n^r = top_k(softmax(z_n / T_r))                                     after SGD on its own examples
    s^r   = top_k(sum over v of (D_v / D) mean of s_n^r over n in v)                                  (Eq. 3)
    loss  = alpha1 CE + T_r^2 (alpha2 KL(s^r || s_n) + alpha3 KL(s_n^b || s_n) + alpha4 KL(m || s_n)) (Eq. 4)

with D_v the examples of v's clients, s_n^b what the client's best model of earlier rounds says, and m the
mean of s^1 to s^(r-1). T_r and the curves are in `fedsim.techniques.soft_predictions`, the loss in
`fedsim.techniques.triple_distillation`.

Deviations: Eq. 3 prints D_v inside the sum, so that its weights do not sum to 1; here they are D_n. What is
kept has the sum 1 again, and the divergences have the teacher first, for with zeros in s^r the printed order
is infinite. At T = 40 all probabilities are alike, and a class taken for impossible outweighs everything
else: with `unsent: zero`, which is the paper's, clients end in no numbers, so that what is not sent has equal
shares of the rest here. The printed L_GD, KL(s^r || m), has no gradient; `l_gd: literal` is that. The best
model is chosen on examples that the client keeps apart. Under partial participation the weights are over
those that came. Who says what is no number, having diverged, is left out of the mean. All clients of an
architecture begin with one model. Of several labels each has a probability.

Reference result: see docs/results/ace-pfl.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

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
    ServerState,
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
NOBODY = 1e-9  # the share of the weights below which nobody is heard: sums are rounded
MOST_NAMED = 1000  # up to so many clients, the first round's record has the cluster of each


@dataclass(frozen=True, kw_only=True)
class AceState(ServerState):
    """What the server knows; it has no model.

    Attributes:
        predictions: s^r, float32 `[public examples, classes]`; None at first, or if nobody said numbers.
        clusters: of each client, int64 `[N]`; None without clustering.
        weights: what each client counts in the mean, float64 `[N]`; None without clustering.
        mean_emd: the mean distance between the clients of each cluster, by what they told.
    """

    predictions: Tensor | None = None
    clusters: Tensor | None = None
    weights: Tensor | None = None
    mean_emd: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AcePFL(
    Algorithm, ClientInstructions, HeldOutExamples, LabelCensus, PayloadAccounting, PersonalModels, RoundNoise
):
    """Personal models of any architecture that learn from one another's predictions on a public set.

    Attributes:
        clustering, clusters: by the distances to one client, by all, or none, the plain mean; and |V|.
        ground: what moving a unit costs in the distances, see `clustering.emd`.
        selection: of the client that the distances are to (`vector`): each number draws another time.
        top_k: how many entries of a prediction travel, at most; K in the paper.
        unsent: what the others are taken for: equal shares of the rest, or 0, the kept of sum 1 (the paper).
        curve: of the temperature; see `distillation.Temperature`, as for the next.
        t0, k1, k2, r0, stage: its constants, and what its stages are counted by.
        alpha1, alpha2, alpha3, alpha4: weights of the labels' loss and of the three divergences.
        distillation: `single` has the first divergence alone, `double` the first two.
        l_gd: `live` compares the client's prediction with the past, `literal` the server's, a constant.
        eta2: the learning rate on the public set; the one on the client's own examples is `local.lr`.
        public_epochs, public_batch_size: passes over it in a round; by default the local training's batches.
        validation: the share of its examples that a client keeps apart, to choose its best model by.
        label_epsilon: the privacy budget of a client's label distribution; None for no noise.
        prediction_epsilon: that of each single prediction; None for no noise.
        mechanism, delta: of the noise, see `privacy.Mechanism`.
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
    k2: Positive = 5.0
    r0: Count = 100
    stage: Stage = "r0"
    alpha1: Weight = 0.4
    alpha2: Weight = 0.3
    alpha3: Weight = 0.2
    alpha4: Weight = 0.1
    distillation: Strategy = "triple"
    l_gd: GlobalTerm = "live"
    eta2: Positive = 0.015
    public_epochs: Count = 1
    public_batch_size: Count | None = None
    validation: Annotated[float, Range(minimum=0, below=1)] = 0.1
    label_epsilon: Positive | None = None
    prediction_epsilon: Positive | None = None
    mechanism: NoiseKind = "laplace"
    delta: Annotated[float, Range(above=0, below=1)] = 1e-5

    uploads: ClassVar[Mapping[str, Reduction]] = {"predictions": Reduction.OVERALL_MEAN}
    stateful: ClassVar[bool] = True
    heterogeneous: ClassVar[bool] = True
    deploys_models: ClassVar[bool] = False
    needs_public_set: ClassVar[bool] = True

    def depends_on_num_rounds(self) -> bool:
        """Where the temperature's curve ends with the run."""
        return self.curve in RUN_LENGTH_CURVES

    def temperature(self, ctx: Context) -> Temperature:
        """T_r as a function of r."""
        shape = Temperature(curve=self.curve, stage=self.stage, rounds=ctx.rounds)
        return replace(shape, t0=self.t0, k1=self.k1, k2=self.k2, r0=self.r0)

    # server

    def init_server_state(self, ctx: Context) -> AceState:
        """Nothing is known."""
        return AceState(params={})

    def plan_census(self, ctx: Context) -> CensusQuestion | None:
        """The clients' label distributions, compared (Algorithm 2)."""
        if self.clustering == "none":
            return None
        noise = self._noise_mechanism(self.label_epsilon)
        return CensusQuestion(ask=self.clustering, ground=self.ground, selection=self.selection, noise=noise)

    def apply_census(self, ctx: Context, state: AceState, answers: CensusAnswers) -> AceState:
        """The clusters, and the weights of Eq. 3: the examples of a client's cluster, over its clients."""
        clusters = cluster_features(answers.distances, self.clusters, ctx.seed)
        weights = np.bincount(clusters, answers.sizes) / np.bincount(clusters)
        return replace(
            state,
            clusters=torch.from_numpy(clusters),
            weights=torch.from_numpy(weights[clusters]),
            mean_emd=tuple(mean_cluster_distances(answers.shares, clusters, self.ground)),
        )

    def broadcast(self, ctx: Context, state: AceState) -> Mapping[str, Tree]:
        """What all said in the last round."""
        said = state.predictions
        return {"predictions": {} if said is None else {"probabilities": said}}

    def instruct_client(self, ctx: Context, state: AceState, client: int) -> Mapping[str, Tree]:
        """What the client counts; in reality the server applies it."""
        return {} if state.weights is None else {"share": {"weight": state.weights[client]}}

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """8 bytes for each entry of a prediction that is kept."""
        if name == "share" or not payload:
            return 0
        said: Tensor = payload["probabilities"]
        return wire.PAIR_BYTES * said.shape[0] * min(self.top_k, said.shape[1])

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """The examples of the client's cluster over its clients; 1 without clustering."""
        share = task.instruction.get("share")
        return 1.0 if share is None else float(share["weight"])

    def aggregate(self, ctx: Context, state: AceState, reduced: ReducedUpdates) -> AceState:
        """Eq. 3, over those who said numbers."""
        said, several = reduced["predictions"], ctx.require_public_set().several_labels
        heard = 1 - said["silent"] if said else 0.0  # the weights of those; 1 exactly, where it is everybody
        if heard < NOBODY:
            return replace(state, predictions=None)
        kept = top_k(said["probabilities"] / heard, self.top_k, self.unsent, several)
        return replace(state, predictions=kept.float())

    def deploy_models(self, ctx: Context, state: AceState) -> Mapping[str, Tree]:
        """Nothing: every model is a client's own."""
        return {}

    def describe_round(self, ctx: Context, state: AceState) -> Mapping[str, Any]:
        """The temperature, the clusters with their mean distances, and the privacy that was spent."""
        said: dict[str, Any] = {"temperature": self.temperature(ctx)(ctx.round + 1)}
        if state.clusters is not None:
            said |= {"clusters": torch.bincount(state.clusters).tolist(), "mean_emd": list(state.mean_emd)}
            if ctx.round == 0 and ctx.num_clients <= MOST_NAMED:
                said["cluster_of"] = state.clusters.tolist()
        labels = self._noise_mechanism(self.label_epsilon if self.clustering != "none" else None)
        sent = len(ctx.require_public_set()) * (ctx.round + 1)
        spent = make_privacy_record(labels, self._noise_mechanism(self.prediction_epsilon), sent)
        return {**said, "privacy": spent} if spent else said

    def _noise_mechanism(self, epsilon: float | None) -> Mechanism | None:
        return None if epsilon is None else Mechanism(kind=self.mechanism, epsilon=epsilon, delta=self.delta)

    # client

    def held_out_share(self, ctx: Context) -> float:
        """What the best model is chosen on, where there is to be one."""
        return 0.0 if self.distillation == "single" else self.validation

    def draw_round_noise(self, ctx: Context, rng: np.random.Generator) -> Tree:
        """The noise of the predictions, of scale 1."""
        noise = self._noise_mechanism(self.prediction_epsilon)
        shape = (len(ctx.require_public_set()), ctx.num_classes)
        return {} if noise is None else {"noise": noise.draw_standard_noise(rng, shape)}

    def initial_params(self, ctx: Context, task: ClientTask) -> Params:
        """The client's own model, as its last visit left it; at first the one that everybody makes."""
        model: Params | None = task.client_state.get("model")
        return ctx.cached_init_params(task.device) if model is None else model

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Lines 8 of the last round, and 4 to 7 of this one, of Algorithm 1."""
        model, client_state, public_loss = self._distil_predictions(ctx, task, ctx.round)
        trained = run_local_loop(LocalLoop(ctx, task, model, plain_loss))
        metrics = {"train_loss": trained.loss}
        if public_loss is not None:
            metrics["public_loss"] = public_loss
        said = self._predict_public_set(ctx, task, trained.params)
        sound = all_finite(said)
        told = {"probabilities": torch.where(sound, said, 0.0), "silent": (~sound).float()}
        return ClientUpdate(
            {"predictions": told}, {**client_state, "model": trained.params}, metrics, trained.params
        )

    def _predict_public_set(self, ctx: Context, task: ClientTask, params: Params) -> Tensor:
        """s_n^r on the public set, as it travels: `[public examples, classes]`."""
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
        """Line 8 of Algorithm 1: the client after what it learns from what all said in a round, from 1.

        Returns:
            Its model, what it keeps besides, and its mean loss; None where nothing was said yet.
        """
        model, client_state = self.initial_params(ctx, task), tree.drop(task.client_state, ("model",))
        said = task.broadcast["predictions"].get("probabilities")
        if said is None:
            return model, client_state, None
        size = self.public_batch_size or ctx.local.batch_size
        steps = ctx.require_public_set().shuffle_batches(
            ctx.seed, round, epochs=self.public_epochs, batch_size=size
        )
        temperature = self.temperature(ctx)(round)
        teachers = self._triple.make_teachers(ctx, task.client_state, said, temperature)
        taught = task._replace(batches=steps, instruction={**task.instruction, TEACHERS: teachers})
        there = replace(ctx, local=replace(ctx.local, lr=self.eta2, lr_alpha=0.0))
        trained = run_local_loop(LocalLoop(there, taught, model, TripleLoss(self._triple, temperature)))
        return trained.params, self._triple.update_client_state(ctx, task, trained.params, said), trained.loss

    @property
    def _triple(self) -> TripleDistillation:
        alphas = (self.alpha1, self.alpha2, self.alpha3, self.alpha4)
        return TripleDistillation(alphas=alphas, strategy=self.distillation, l_gd=self.l_gd)

    def count_effort(self, ctx: Context, state: AceState, steps: int) -> Sequence[Effort]:
        """The local steps, what is said of the public set, and once something came the steps on it."""
        public, moving = ctx.require_public_set(), ctx.net.parameters
        found = [Effort(steps, moving), Effort(1, (), examples=len(public))]
        if state.predictions is not None:
            size, passes = self.public_batch_size or ctx.local.batch_size, self.public_epochs
            found.append(Effort(passes * -(-len(public) // size), moving, examples=passes * len(public)))
            if self.distillation != "single":
                found.append(Effort(1, (), examples=len(public)))
        return found

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The client's model after this round: with what it learns from what all said in it."""
        return self._distil_predictions(ctx, task, ctx.round + 1)[0]
