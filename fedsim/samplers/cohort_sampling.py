"""CohortSampling: any algorithm, with another choice of the clients of a round.

Wire:
    down    the base algorithm's
            survey    the global model, to the clients that a sampler asks before the round
    up      the base algorithm's
            survey    the mean loss, one number, of the clients that a sampler asks
            score     one number for samplers that remember clients, GATHER
    keeps   the base algorithm's
    server  base      the base algorithm's state
            scores    of every client, as far as known
            heard     the round of each score
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.core import ClientTask, ClientUpdate, Context, Effort, ReducedUpdates, Reduction
from fedsim.core.capabilities import ClientSurvey, CohortSelection, capability
from fedsim.core.wrapper import StatefulWrapper, WrapperState
from fedsim.samplers.sampler import ClientScores, Sampler
from fedsim.training.losses import measure_losses

SCORE = "score"
"""The payload that has a client's score."""


@dataclass(frozen=True, kw_only=True)
class CohortSamplingState(WrapperState):
    """The server state of a run with a sampler.

    Attributes:
        scores: each client's last known score, float32 `[N]`; NaN for an unknown one. `[0]` if the sampler
            needs none.
        heard: the round of that score, int64 `[N]`; -1 for never.
    """

    scores: Tensor
    heard: Tensor


@dataclass(frozen=True, kw_only=True)
class CohortSampling(StatefulWrapper):
    """Any algorithm, with a sampler of its clients.

    Attributes:
        base: the algorithm.
        sampler: selects the clients of each round.

    Raises:
        ValueError: if the base algorithm selects its clients itself, or has no global model for the
            questions of the sampler.
    """

    own: ClassVar[frozenset[type]] = frozenset({CohortSelection})
    own_payloads: ClassVar[tuple[str, ...]] = (SCORE,)

    sampler: Sampler

    def __post_init__(self) -> None:
        super().__post_init__()
        if capability(self.base, CohortSelection) or capability(self.base, ClientSurvey):
            name = type(self.base).__name__
            raise ValueError(f"{name} chooses its clients itself; remove the sampler")
        if self.sampler.surveys and not self.base.deploys_models:
            name = type(self.base).__name__
            raise ValueError(f"{name} has no global model to ask clients about; take another sampler")
        if self.sampler.score is not None:
            self.add_upload(SCORE, Reduction.GATHER)

    def provides(self, kind: type) -> bool:
        """Whether the wrapper has this capability; only some samplers ask clients before a round."""
        return super().provides(kind) or (kind is ClientSurvey and self.sampler.surveys)

    # server

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, without scores."""
        remembers = self.sampler.surveys or self.sampler.score is not None
        heard = torch.full((ctx.num_clients if remembers else 0,), -1)
        unknown = torch.full_like(heard, torch.nan, dtype=torch.float32)
        return CohortSamplingState(base=self.base.init_server_state(ctx), scores=unknown, heard=heard)

    def select_surveyed_clients(self, ctx: Context, state: Any) -> Sequence[int]:
        """The clients that the sampler asks before this round."""
        return list(map(int, self.sampler.list_surveyed(ctx, np.arange(ctx.num_clients))))

    def apply_survey(self, ctx: Context, state: Any, losses: NDArray[np.float64]) -> Any:
        """The state with the losses of the clients that the sampler asked."""
        return self.keep_scores(ctx, state, self.select_surveyed_clients(ctx, state), losses)

    def keep_scores(
        self, ctx: Context, state: Any, clients: Sequence[int], scores: NDArray[np.float64]
    ) -> Any:
        """The state with the scores of these clients in this round."""
        who = torch.tensor(list(clients), dtype=torch.int64)
        found = torch.from_numpy(np.asarray(scores, np.float32))
        heard = state.heard.index_fill(0, who, ctx.round)
        return replace(state, scores=state.scores.index_copy(0, who, found), heard=heard)

    def select_cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
        """The clients that the sampler selects."""
        return self.select_among(ctx, state, np.arange(ctx.num_clients), rng)

    def select_among(
        self, ctx: Context, state: Any, clients: NDArray[np.int64], rng: np.random.Generator
    ) -> Sequence[int]:
        """The clients that the sampler selects among `clients`, in ascending order."""
        known = ClientScores(state.scores.numpy(), state.heard.numpy())
        return sorted(map(int, self.sampler.select(ctx, clients, known, rng)))

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's state, and the scores that the cohort sent."""
        after = super().aggregate(ctx, state, reduced)
        if self.sampler.score is None:
            return after
        scores = torch.stack([entry["value"] for entry in reduced[SCORE]]).numpy()
        return self.keep_scores(ctx, after, reduced.clients, scores)

    # client

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training; with a score of the received model, if the sampler remembers one."""
        update: ClientUpdate = super().train_client(ctx, task)
        if self.sampler.score is None:
            return update
        losses = measure_losses(ctx, self.initial_params(ctx, task), task.examples).double()
        value = losses.mean() if self.sampler.score == "loss" else len(losses) * losses.square().mean().sqrt()
        return update._replace(upload={**update.upload, SCORE: {"value": value.float()}})

    def count_effort(self, ctx: Context, state: Any, steps: int) -> Sequence[Effort]:
        """The base algorithm's effort, and one forward pass over the examples if the sampler needs scores."""
        usual: Sequence[Effort] = super().count_effort(ctx, state, steps)
        return usual if self.sampler.score is None else (*usual, ctx.local.count_forward_passes(steps))
