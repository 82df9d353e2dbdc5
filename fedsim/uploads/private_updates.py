"""PrivateUpdates: any algorithm whose clients send model updates, with differential privacy for each client.

Central: the server adds Gaussian noise to the sum of clipped updates (McMahan et al., ICLR 2018,
    arXiv:1710.06963). The clipping bound can follow a quantile of the updates' norms (Andrew et al., NeurIPS
    2021, arXiv:1905.03871).
Tree: the server adds the noise to the running sum of all rounds, by a binary tree (DP-FTRL; Kairouz et al.,
    ICML 2021, arXiv:2103.00039). The budget needs no random cohorts.
Local: each client adds the noise to its own clipped update before it sends it. A shuffler can hide from the
    server which client sent it (`fedsim.uploads.shuffling`).

Wire:
    down    the base algorithm's
            clip      with adaptive clipping: the bound, one number
    up      the base algorithm's; the update is clipped, with local privacy also noisy
            below     with adaptive clipping: whether the norm is at most the bound, one number, SUM
            envelope  with a shuffler: what encrypts the update for the server, 60 bytes, SUM
    keeps   the base algorithm's
    server  base      the base algorithm's state
            clip      the bound of the next round
            steps     rounds so far

The update is one vector over all payloads of a client: one clipping and one noise cover everything that it
sends. Every client has the weight 1. With central privacy, each client takes part in a round with the
probability K / N, independently of the others. With a tree, the clients take part in turn, always in the same
order. The sum is divided by K, whatever the size of the cohort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isinf
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng, tree
from fedsim.base.parameters import Positive, Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction
from fedsim.core.capabilities import CohortSelection, capability
from fedsim.core.wrapper import StatefulWrapper, WrapperState
from fedsim.errors import FedsimError
from fedsim.models.net import Net
from fedsim.uploads.accounting import AccountantName, ClientMechanism, PrivacyKind
from fedsim.uploads.attacked_clients import AttackedClients
from fedsim.uploads.model_updates import (
    ModelUpdate,
    explain_statistics,
    read_update,
    replace_upload,
    require_model_updates,
    unwrap,
    write_update,
)
from fedsim.uploads.server_view import explain_answers
from fedsim.uploads.tree_noise import draw_round_noise

CLIP = "clip"
"""The payload that has the clipping bound."""

BELOW = "below"
"""The payload that says whether an update was below the bound: 0.5 or -0.5."""

ENVELOPE = "envelope"
"""The payload that stands for the encryption of an update, which the shuffler passes on unread."""

ENVELOPE_BYTES = 32 + 28
"""A public key of the client, and nonce and tag of authenticated encryption."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """A clipping bound that follows a quantile of the norms (Andrew et al., Algorithm 1).

    Attributes:
        quantile: gamma, the share of updates that shall be below the bound.
        learning_rate: eta, of the bound: it is multiplied by exp(-eta (share below - gamma)).
        count_noise: standard deviation of the noise on the number of updates below the bound; by default K
            / 20.
    """

    quantile: Annotated[float, Range(minimum=0, maximum=1)] = 0.5
    learning_rate: Positive = 0.2
    count_noise: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class PrivateState(WrapperState):
    """The server state.

    Attributes:
        clip: the clipping bound of the next round.
        steps: number of rounds so far.
    """

    clip: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class PrivateUpdates(StatefulWrapper):
    """Any algorithm whose uploads are model updates, with differential privacy for each client.

    Attributes:
        base: the algorithm.
        kind: "central", "tree" or "local".
        clip: C, the largest norm of an update; with `adaptive`, that of the first round.
        noise_multiplier: z; the noise has the standard deviation z C in each coordinate: of the sum of all
            updates (central), of each node of the tree (tree), or of each update (local). 0: no noise, and
            no privacy.
        delta: of the budget.
        accountant: computes the budget.
        adaptive: how the bound changes; None for a fixed bound. Central only.
        tree_rounds: with a tree, another one begins after so many rounds; None for one tree. Tree only.
        shuffled: whether a shuffler hides from the server which client sent an update. Local only.

    Raises:
        ValueError: if the uploads of the base algorithm are no model updates, `adaptive`, `tree_rounds` or
            `shuffled` has another kind; if its clients tell more than updates, such as their labels; or if it
            chooses its clients itself, except with local privacy without a shuffler.
    """

    own_payloads: ClassVar[tuple[str, ...]] = (CLIP, BELOW, ENVELOPE)
    asynchronous: ClassVar[bool] = False

    kind: PrivacyKind = "central"
    clip: Positive = 1.0
    noise_multiplier: Annotated[float, Range(minimum=0)]
    delta: Annotated[float, Range(above=0, below=1)] = 1e-5
    accountant: AccountantName = "rdp"
    adaptive: AdaptiveClip | None = None
    tree_rounds: Annotated[int, Range(minimum=1)] | None = None
    shuffled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_model_updates(self.base)
        if answer := explain_answers(unwrap(self.base)):
            raise ValueError(f"{type(unwrap(self.base)).__name__} tells more than updates: {answer}")
        if capability(self.base, CohortSelection) and (self.kind != "local" or self.shuffled):
            name = type(unwrap(self.base)).__name__
            raise ValueError(f"{name} chooses its clients itself, and the budget does not hold for them")
        if self.tree_rounds is not None and self.kind != "tree":
            raise ValueError(f"{self.kind} privacy has no tree; leave tree_rounds out")
        if self.shuffled:
            if self.kind != "local":
                raise ValueError(f"{self.kind} privacy needs no shuffler; leave shuffled out")
            self.add_upload(ENVELOPE, Reduction.SUM)
        if self.adaptive is None:
            return
        if self.kind != "central":
            raise ValueError(f"the clipping bound of {self.kind} privacy is fixed; leave adaptive out")
        self.add_upload(BELOW, Reduction.SUM)

    def provides(self, kind: type) -> bool:
        """Whether the wrapper has this capability; noise of the server determines the cohorts."""
        return super().provides(kind) or (kind is CohortSelection and self.kind != "local")

    # server

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, before any release.

        Raises:
            FedsimError: if there are several architectures, or the model sends statistics of its examples.
        """
        if reason := explain_unsuitable_nets(ctx.nets):
            raise FedsimError(f"the model does not suit privacy: {reason}", "choose another model")
        if reason := explain_count_noise(self.adaptive, self.noise_multiplier, ctx.cohort_size):
            raise FedsimError(reason, "set count_noise, or a smaller noise_multiplier")
        return PrivateState(base=self.base.init_server_state(ctx), clip=self.clip, steps=0)

    def select_cohort(self, ctx: Context, state: Any, stream: np.random.Generator) -> Sequence[int]:
        """The Poisson sample of the round; if it is empty, one client, whose update does not count.

        With a tree, the clients whose turn it is: a round without a result is repeated with them.
        """
        if self.kind == "local":
            found: Sequence[int] = super().select_cohort(ctx, state, stream)
            return found
        if self.kind == "tree":
            return self._find_turn(ctx, state.steps)
        cohort = _draw_poisson_cohort(ctx)
        return cohort.tolist() if len(cohort) else [int(stream.integers(ctx.num_clients))]

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The base algorithm's payloads, and an adaptive clipping bound."""
        sent: Mapping[str, Tree] = super().broadcast(ctx, state)
        if self.adaptive is None:
            return sent
        return {**sent, CLIP: {"bound": torch.tensor(state.clip, dtype=torch.float32)}}

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """The bytes of a payload; an envelope has none in the simulation, and is counted as a real one."""
        return ENVELOPE_BYTES if name == ENVELOPE else super().count_bytes(ctx, name, payload)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's state after the noisy mean, and the clipping bound of the next round."""
        if self.kind == "local":
            return replace(super().aggregate(ctx, state, reduced), steps=state.steps + 1)
        counted = float(self.kind == "tree" or len(_draw_poisson_cohort(ctx)) > 0)
        stream = rng.stream(ctx.seed, "privacy", ctx.round)
        kinds, broadcast = self.base.uploads, self.base.broadcast(ctx, state.base)
        mean = read_update(kinds, broadcast, {name: reduced[name] for name in kinds})
        sums = {
            name: tree.scale(part, counted * (len(reduced.clients) if kinds[name] is Reduction.MEAN else 1))
            for name, part in mean.items()
        }
        if self.kind == "tree":
            noisy = self._add_tree_noise(ctx, state, sums)
        else:
            noisy = _add_noise(sums, self._update_noise(ctx) * state.clip, stream)
        scaled = {
            name: tree.scale(part, 1 / ctx.cohort_size) if kinds[name] is Reduction.MEAN else part
            for name, part in noisy.items()
        }
        payloads = {**reduced.payloads, **write_update(kinds, broadcast, scaled)}
        after = super().aggregate(ctx, state, _hide_cohort(reduced, payloads, ctx.cohort_size))
        if isinstance(self.base, AttackedClients):
            after = replace(after, base=self.base.note_attackers(ctx, after.base, reduced.clients))
        halves = 0.0 if self.adaptive is None else counted * float(reduced[BELOW]["half"])
        return replace(after, clip=self._adapt_clip(ctx, state, halves, stream), steps=state.steps + 1)

    def _find_turn(self, ctx: Context, steps: int) -> list[int]:
        """Return the clients of a round of a tree: K in a row, of an order that stays the same."""
        order = rng.stream(ctx.seed, "tree order").permutation(ctx.num_clients)
        first = steps % self._describe_clients(ctx).period * ctx.cohort_size
        return sorted(order[first : first + ctx.cohort_size].tolist())

    def _add_tree_noise(self, ctx: Context, state: Any, sums: ModelUpdate) -> ModelUpdate:
        """Return the sum of a round with what the tree adds to the noise of the running sum."""
        std = self.noise_multiplier * state.clip
        if std == 0:
            return sums
        vector = tree.flatten(sums)
        noise = std * draw_round_noise(ctx.seed, state.steps, len(vector), self.tree_rounds)
        return tree.unflatten(vector + torch.from_numpy(noise).to(vector.device), tree.layout(sums))

    def _adapt_clip(self, ctx: Context, state: Any, halves: float, stream: np.random.Generator) -> float:
        """Return the clipping bound of the next round: C exp(-eta (b - gamma))."""
        if self.adaptive is None:
            return float(state.clip)
        noise = stream.standard_normal() * self._count_noise(ctx)
        below = (halves + noise) / ctx.cohort_size + 0.5
        return float(state.clip) * exp(-self.adaptive.learning_rate * (below - self.adaptive.quantile))

    def _count_noise(self, ctx: Context) -> float:
        """Return the standard deviation of the noise on the number of updates below the bound."""
        if self.adaptive is None or self.noise_multiplier == 0:
            return 0.0
        return self.adaptive.count_noise or ctx.cohort_size / 20

    def _update_noise(self, ctx: Context) -> float:
        """Return the noise multiplier of the updates: with that of the count, the two together have z."""
        if not (count := self._count_noise(ctx)):
            return self.noise_multiplier
        return float((self.noise_multiplier**-2 - (2 * count) ** -2) ** -0.5)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, and the budget that is spent; epsilon is null without noise."""
        epsilon = self.compute_spent_epsilon(ctx, state.steps)
        said = {
            "kind": self.kind,
            "epsilon": None if isinf(epsilon) else round(epsilon, 6),
            "delta": self.delta,
            "noise_multiplier": round(self.noise_multiplier, 6),
            "clip": round(state.clip, 6),
        }
        return {**super().describe_round(ctx, state), "privacy": said}

    def compute_spent_epsilon(self, ctx: Context, steps: int) -> float:
        """Return the epsilon of these rounds; with local privacy, of a client that was in all of them."""
        mechanism = self._describe_clients(ctx)
        return mechanism.compute_epsilon(self.accountant, self.noise_multiplier, steps, self.delta)

    def _describe_clients(self, ctx: Context) -> ClientMechanism:
        return ClientMechanism(
            kind=self.kind,
            cohort_size=ctx.cohort_size,
            num_clients=ctx.num_clients,
            tree_rounds=self.tree_rounds,
            shuffled=self.shuffled,
        )

    # client

    def weigh_client(self, ctx: Context, task: ClientTask) -> float:
        """1 for every client: a number of examples would be private too."""
        return 1.0

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training, with a clipped update; with local privacy, a noisy one."""
        update: ClientUpdate = super().train_client(ctx, task)
        bound = float(task.broadcast[CLIP]["bound"]) if self.adaptive is not None else self.clip
        kinds, received = self.base.uploads, task.broadcast
        sent = read_update(kinds, received, {name: update.upload[name] for name in kinds})
        norm = measure_norm(sent)
        factor = (bound / norm.clamp(min=1e-12)).clamp(max=1.0)
        if norm.isfinite():
            sent = {name: tree.scale(part, factor) for name, part in sent.items()}
        else:  # no factor makes an infinite update as short as the bound
            sent = {name: tree.zeros_like(part) for name, part in sent.items()}
        if self.kind == "local":
            stream = rng.stream(ctx.seed, "local privacy", ctx.round, task.client)
            sent = _add_noise(sent, self.noise_multiplier * bound, stream)
        upload = write_update(kinds, received, sent, {name: update.upload[name] for name in kinds})
        if self.shuffled:
            upload[ENVELOPE] = {}
        if self.adaptive is not None:
            upload[BELOW] = {"half": torch.where(norm <= bound, 0.5, -0.5).to(torch.float32)}
        return replace_upload(self.base, ctx, self.base_value(task), update, upload)


def _hide_cohort(reduced: ReducedUpdates, payloads: Mapping[str, Any], size: int) -> ReducedUpdates:
    """Return what the algorithm may know of a cohort: not who came, nor how many, nor their losses."""
    shown, ones = tuple(range(size)), (1,) * size
    return replace(reduced, payloads=payloads, clients=shown, weights=ones, num_examples=ones, metrics={})


def measure_norm(update: ModelUpdate) -> Tensor:
    """Return the Euclidean norm over all payloads of an update, a float64 scalar."""
    norm: Tensor = torch.linalg.vector_norm(tree.flatten(update))
    return norm


def _add_noise(update: ModelUpdate, std: float, stream: np.random.Generator) -> ModelUpdate:
    """Return an update with Gaussian noise of this standard deviation on every number."""
    if std == 0:
        return update
    vector = tree.flatten(update)
    noise = torch.from_numpy(std * stream.standard_normal(len(vector))).to(vector.device)
    return tree.unflatten(vector + noise, tree.layout(update))


def _draw_poisson_cohort(ctx: Context) -> NDArray[np.int64]:
    """Draw the clients of a round: each takes part with the probability K / N."""
    drawn = rng.stream(ctx.seed, "poisson cohort", ctx.round).random(ctx.num_clients)
    return np.flatnonzero(drawn < ctx.cohort_size / ctx.num_clients)


def explain_unsuitable_nets(nets: Sequence[Net]) -> str:
    """Return why models do not suit privacy; "" if they do."""
    if len(nets) > 1:
        return "there are several architectures, each with an unknown number of clients in a round"
    return explain_statistics(nets)


def explain_count_noise(adaptive: AdaptiveClip | None, noise_multiplier: float, cohort_size: int) -> str:
    """Return why the noise on the count of an adaptive bound is too small; "" if it is not."""
    if adaptive is None:
        return ""
    count = adaptive.count_noise or cohort_size / 20
    if noise_multiplier < 2 * count:
        return ""
    return f"count_noise has to be above noise_multiplier / 2 = {noise_multiplier / 2:g}, and is {count:g}"
