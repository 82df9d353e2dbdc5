"""When Do Curricula Work in Federated Learning? Part two: an ordered choice of clients.

Vahidian, Kadaveru, Baek, Wang, Kungurtsev, Chen, Shah, Lin, ICCV 2023, arXiv:2212.12712.

Idea: the server begins with clients whose data the global model finds easy, and adds the harder ones during
the run.

Wire:
    down    the base algorithm's
            survey    the global model, to every client that is online, before the cohort is chosen (`scores:
                      all`), without keys that all clients have from the run's seed: a fixed head, a closed
                      block
    up      the base algorithm's
            survey    the mean loss, one number: of all clients (`scores: all`), or with the cohort's uploads
                      (`scores: kept`), GATHER; an expert's mean loss, once, before round 1 (`scores: expert`)
    keeps   the base algorithm's
    server  base      the base algorithm's state
            losses    of every client, as far as known
            heard     the round of each loss
            line      the clients of the mini-batches still to come (`batches: all`)

Deviations: pacing is corrected (see `pacing`), and never opens fewer clients than a cohort has. The paper
divides the open clients into mini-batches. By default one mini-batch drawn at random from them is the
round's cohort, at the cost of the base algorithm. With `batches: all` all of them take part, one mini-batch a
round, before clients are ranked again; with `pace: outer` T counts these rankings, as the paper, and not
the rounds of the run. With `batches: together` the K(t) open clients are one cohort, whose mean is the next
model: participation grows, as in Fig. 5. There is no survey while all clients are open. `kept` scores are
fedsim's, for large federations: a client has its last known loss, which moves with age towards the mean of
all known losses; a client without a loss has that mean. With `scores: expert` (Fig. 6) clients are ranked
once, by the loss of the data curriculum's expert; the expert itself costs neither bytes nor time. A surveyed
client of the cohort is charged the global model twice, with the survey and with the broadcast, though both
are the same.

Reference result: see docs/results/curriculum.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng as streams
from fedsim.base.parameters import Range, Share
from fedsim.core import ClientTask, ClientUpdate, Context, Effort, ReducedUpdates, Reduction
from fedsim.core.capabilities import ClientSurvey, CohortSelection, ExpertSurvey, capability
from fedsim.core.wrapper import StatefulWrapper, WrapperState
from fedsim.curriculum.pacing import Family, count_open, plan_outer_rounds
from fedsim.curriculum.scores import Order, rank_by_easiness
from fedsim.samplers import CohortSampling
from fedsim.samplers.availability import OnlineClients
from fedsim.training.losses import measure_losses


@dataclass(frozen=True, kw_only=True)
class ClientCurriculumState(WrapperState):
    """The server state of the client curriculum.

    Attributes:
        losses: each client's last known mean loss, float32 `[N]`; NaN for an unknown loss.
        heard: the round of that loss, int64 `[N]`; -1 for never.
        line: the clients of the mini-batches still to come, int64.
    """

    losses: Tensor
    heard: Tensor
    line: Tensor


@dataclass(frozen=True, kw_only=True)
class ClientCurriculum(StatefulWrapper):
    """Any algorithm, with its clients in order (section 4.2).

    Attributes:
        base: the algorithm.
        pacing: family of the pacing function, over the rounds of the run.
        a: share of the rounds after which all clients are open.
        b: share of the clients that is open at first.
        order: `curriculum` (small loss first), `anti` (large loss first), or `random`.
        scores: `all` asks every client that is online before each round; `kept` uses the losses that cohorts
            sent; `expert` the losses of an expert, which every client sends once.
        half_life: rounds after which a kept loss has moved half the way to the mean, for `kept`.
        batches: `one` mini-batch of the open clients before they are ranked again, or `all` of them, or all
            `together` as one cohort.
        pace: T of the pacing: the `rounds` of the run, or with `batches: all` the `outer` rounds, in each of
            which all mini-batches of the open clients take part.

    Raises:
        ValueError: if the base algorithm chooses its clients itself, but by a `CohortSampling`; or if `pace`
            is `outer` without `batches: all`.
    """

    own: ClassVar[frozenset[type]] = frozenset({CohortSelection})
    own_payloads: ClassVar[tuple[str, ...]] = ("survey",)

    pacing: Family = "linear"
    a: Share = 0.8
    b: Share = 0.2
    order: Order = "curriculum"
    scores: Literal["all", "kept", "expert"] = "all"
    half_life: Annotated[float, Range(above=0)] = 10.0
    batches: Literal["one", "all", "together"] = "one"
    pace: Literal["rounds", "outer"] = "rounds"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._sampling is not None and self.batches != "one":
            message = f"with batches={self.batches!r} every open client takes part; remove the sampler"
            raise ValueError(message)
        if self.pace == "outer" and self.batches != "all":
            raise ValueError("pace='outer' needs batches='all'")
        chooses = any(capability(self.base, kind) is not None for kind in (CohortSelection, ClientSurvey))
        if self._sampling is None and chooses:
            name = type(self.base).__name__
            raise ValueError(f"{name} chooses its clients itself; remove the client curriculum")
        if self._uploads_losses:
            self.add_upload("survey", Reduction.GATHER)

    def provides(self, kind: type) -> bool:
        """Whether the curriculum has this capability; a survey belongs to its scores."""
        asks = (kind is ClientSurvey and self._surveys) or (kind is ExpertSurvey and self._asks_expert)
        return asks or super().provides(kind)

    @property
    def _sampling(self) -> CohortSampling | None:
        """The sampler that selects the cohort from the open clients; None for a uniform sample."""
        return self.base if isinstance(self.base, CohortSampling) else None

    @property
    def _surveys(self) -> bool:
        """Whether all clients are asked for their losses before each round."""
        return self.scores == "all" and self.order != "random"

    @property
    def _asks_expert(self) -> bool:
        """Whether all clients send an expert's losses before round 1."""
        return self.scores == "expert" and self.order != "random"

    def depends_on_num_rounds(self) -> bool:
        """True: the pacing is over the rounds of the run."""
        return True

    @property
    def _uploads_losses(self) -> bool:
        """Whether the cohort's clients send their losses with their uploads."""
        return self.scores == "kept" and self.order != "random"

    # server

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, without losses."""
        never = torch.full((ctx.num_clients,), -1)
        nobody = torch.zeros(0, dtype=torch.int64)
        return ClientCurriculumState(
            base=self.base.init_server_state(ctx),
            losses=torch.full_like(never, torch.nan, dtype=torch.float32),
            heard=never,
            line=nobody,
        )

    def count_open_clients(self, ctx: Context) -> int:
        """K(t): the number of open clients in this round."""
        done = ctx.round / ctx.rounds
        if self.pace == "outer":
            how = (self.pacing, self.a, self.b, ctx.num_clients)
            starts = plan_outer_rounds(*how, ctx.cohort_size, ctx.rounds)
            done = int(np.searchsorted(starts, ctx.round, "right") - 1) / len(starts)
        now = np.array([done])
        return int(count_open(self.pacing, self.a, self.b, ctx.num_clients, now, ctx.cohort_size)[0])

    def apply_expert_losses(self, ctx: Context, state: Any, losses: NDArray[np.float64]) -> Any:
        """The state with the expert's losses, by which clients are ranked in every round."""
        known = torch.from_numpy(losses.astype(np.float32))
        return replace(state, losses=known, heard=torch.zeros_like(state.heard))

    def select_surveyed_clients(self, ctx: Context, state: Any) -> Sequence[int]:
        """All clients that are online, while losses change the choice of the cohort; else the sampler's."""
        if self._asks_all_clients(ctx, state):
            return self._list_online_clients(ctx)
        return self._list_sampler_survey(ctx, state)

    def _asks_all_clients(self, ctx: Context, state: Any) -> bool:
        return self._surveys and self.count_open_clients(ctx) < ctx.num_clients and not len(state.line)

    def _list_online_clients(self, ctx: Context) -> Sequence[int]:
        sampler = None if self._sampling is None else self._sampling.sampler
        if not isinstance(sampler, OnlineClients):
            return range(ctx.num_clients)
        return list(map(int, np.flatnonzero(sampler.find_online(ctx))))

    def _list_sampler_survey(self, ctx: Context, state: Any) -> Sequence[int]:
        if self._sampling is None or not self._sampling.sampler.surveys:
            return ()
        ready = np.sort(self._list_open_clients(ctx, state))
        return list(map(int, self._sampling.sampler.list_surveyed(ctx, ready)))

    def apply_survey(self, ctx: Context, state: Any, losses: NDArray[np.float64]) -> Any:
        """The state with the losses of the clients that were asked."""
        asked_all = self._asks_all_clients(ctx, state)
        if asked_all:
            who = torch.tensor(self._list_online_clients(ctx), dtype=torch.int64)
            known = state.losses.index_copy(0, who, torch.from_numpy(losses.astype(np.float32)))
            state = replace(state, losses=known, heard=state.heard.index_fill(0, who, ctx.round))
        asked = self._list_sampler_survey(ctx, state)
        if self._sampling is None or not asked:
            return state
        theirs = losses[np.array(asked)] if asked_all else losses
        return replace(state, base=self._sampling.keep_scores(ctx, state.base, asked, theirs))

    def select_cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
        """A mini-batch of the open clients, drawn at random or the next in the queue; or all open clients."""
        if self.batches == "all":
            return sorted(self._waiting_clients(ctx, state)[: ctx.cohort_size].tolist())
        if self.batches == "together":
            return sorted(self._list_open_clients(ctx, state).tolist())
        ready = np.sort(self._list_open_clients(ctx, state))
        if self._sampling is not None:
            return self._sampling.select_among(ctx, state.base, ready, rng)
        return sorted(ready[rng.choice(len(ready), ctx.cohort_size, replace=False)].tolist())

    def _list_open_clients(self, ctx: Context, state: Any) -> NDArray[np.int64]:
        """The first K(t) clients of the ranking."""
        easiness = -age_losses(state.losses.numpy(), state.heard.numpy(), ctx.round, self._loss_half_life)
        ranking = rank_by_easiness(
            easiness, self.order, streams.stream(ctx.seed, "client ranking", ctx.round)
        )
        return ranking[: self.count_open_clients(ctx)]

    @property
    def _loss_half_life(self) -> float:
        return self.half_life if self.scores == "kept" else np.inf

    def _waiting_clients(self, ctx: Context, state: Any) -> NDArray[np.int64]:
        """The clients still to come: the rest of the last queue, or all open clients in a random order."""
        if len(state.line):
            waiting: NDArray[np.int64] = state.line.numpy()
            return waiting
        return streams.stream(ctx.seed, "client batches", ctx.round).permutation(
            self._list_open_clients(ctx, state)
        )

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's state, and the losses that the cohort sent."""
        changed = dict[str, Tensor]()
        if self.batches == "all":
            changed["line"] = torch.from_numpy(self._drop_batch(ctx, state, reduced.clients))
        if self._uploads_losses:
            who = torch.tensor(reduced.clients, dtype=torch.int64)
            said = torch.stack([entry["loss"] for entry in reduced["survey"]])
            changed["losses"] = state.losses.index_copy(0, who, said)
            changed["heard"] = state.heard.index_fill(0, who, ctx.round)
        return replace(super().aggregate(ctx, state, reduced), **changed)

    def _drop_batch(self, ctx: Context, state: Any, counted: Sequence[int]) -> NDArray[np.int64]:
        """Return the queue after a round: without the clients that counted.

        If fewer than K counted, the first others leave it too: a client that is always late, or fails, would
        stay in it for good.
        """
        waiting = self._waiting_clients(ctx, state)
        first = np.argsort(~np.isin(waiting, counted), kind="stable")[: ctx.cohort_size]
        return np.delete(waiting, first)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, and the open clients."""
        how = {"order": self.order, "pacing": self.pacing, "a": self.a, "b": self.b, "scores": self.scores}
        known = state.losses[~torch.isnan(state.losses)].double()
        found = {
            "open_clients": self.count_open_clients(ctx),
            "known_clients": len(known),
            "mean_loss": float(known.mean()) if len(known) else None,
        }
        return {**super().describe_round(ctx, state), "client_curriculum": {**how, **found}}

    # client

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training; with kept scores, the update has the loss of the broadcast model."""
        update: ClientUpdate = super().train_client(ctx, task)
        if not self._uploads_losses:
            return update
        loss = measure_losses(ctx, self.initial_params(ctx, task), task.examples).double().mean().float()
        return update._replace(upload={**update.upload, "survey": {"loss": loss}})

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The base algorithm's effort; with kept scores, also one forward pass over the examples."""
        usual: Sequence[Effort] = super().count_effort(ctx, state, steps)
        return (*usual, ctx.local.count_forward_passes(steps)) if self._uploads_losses else usual


def age_losses(
    losses: NDArray[np.float32], heard: NDArray[np.int64], now: int, half_life: float
) -> NDArray[np.float32]:
    """The loss of each client for the ranking: its last known loss, moved towards the mean with age.

    Args:
        losses: `[N]`, NaN for an unknown loss.
        heard: the round of each loss, `[N]`, -1 for never.
        now: this round.
        half_life: rounds after which a loss is half way to the mean; infinite for losses that do not age.

    Returns:
        `[N]`: the mean for a client without a report; NaN for a client that reported and holds no examples.
    """
    known = ~np.isnan(losses)
    mean = losses[known].mean(dtype=np.float64) if known.any() else 0.0
    old = np.where(heard < 0, 0.0, losses - mean) * 0.5 ** ((now - heard) / half_life)
    return np.asarray(mean + old, np.float32)
