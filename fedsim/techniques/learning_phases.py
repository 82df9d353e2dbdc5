"""Phases that all clients pass together: a client that has finished a phase waits for the others.

FedCL (arXiv:2211.07248), section IV-C and Algorithm 1. In phase z of Z a client is finished, and frozen, when
more than a share v of its difficulties is at most the phase's threshold: the quantile T_z of all clients'
difficulties. When enough clients are frozen the next phase begins, with all of them.

The threshold is fixed at the phase's beginning. Algorithm 1 as printed computes it in every round. It then
falls with the clients' difficulties, the share T_z is always below it, and a phase may never end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.base import rng as streams
from fedsim.base.digest import NOT_IN_DIGEST
from fedsim.base.parameters import Count, Range, Share
from fedsim.base.shares import ceil_share
from fedsim.core import Context
from fedsim.core.capabilities import sample_cohort
from fedsim.techniques.gaussian_mixtures import (
    EXAMPLES_PER_COMPONENT,
    draw_from_mixture,
    fit_mixture,
    pool_draws,
    quantile,
)

Level = Annotated[float, Range(above=0, below=1)]

LISTED_CLIENTS = 50
"""Largest number of frozen clients that a record lists; newly frozen clients are all listed."""

LISTED_LEVELS = 100
"""Largest number of levels whose quantile a record has."""


@dataclass(frozen=True, kw_only=True)
class PhaseState:
    """The progress of the clients.

    Attributes:
        phase: number of the phase, from 0; the number of phases once all are over.
        began: round of its beginning, from 0.
        threshold: difficulty that counts as learnt in it; NaN before the first report of difficulties.
        frozen: clients that have finished the phase, bool `[N]`.
        said: events of the last round, for its record.
        lasted: rounds that the phase of the last round has lasted, with that round; 0 after the last phase.
    """

    phase: int = 0
    began: int = 0
    threshold: float = nan
    frozen: Tensor
    said: Mapping[str, Any] = field(default_factory=dict)
    lasted: int = field(default=0, metadata=NOT_IN_DIGEST)

    @property
    def ready_clients(self) -> Tensor:
        """The clients that can be selected, int64, in ascending order."""
        return torch.nonzero(~self.frozen).flatten()


@dataclass(frozen=True)
class Phases:
    """The rules of the phases.

    Attributes:
        levels: T_z of each phase, in the order of the phases.
        v: a client has finished a phase if more than this share of its difficulties is at most the threshold.
        share: P, share of the clients that have to finish a phase.
        cap: largest number of rounds of a phase.
    """

    levels: tuple[float, ...]
    v: float
    share: float
    cap: int

    def current_level(self, standing: PhaseState) -> float | None:
        """The level of the current phase; None after the last phase."""
        return self.levels[standing.phase] if standing.phase < len(self.levels) else None

    def advance(
        self, standing: PhaseState, round: int, clients: Sequence[int], held: Sequence[int], draws: Tensor
    ) -> PhaseState:
        """The state of the phases after a round.

        Args:
            standing: state before the round.
            round: number of the round, from 0.
            clients: the cohort; only its clients are checked, because the others have not changed.
            held: number of examples of each of these clients.
            draws: numbers drawn from every client's last mixture, float64 `[N, count]`; NaN for a client
                without a mixture.
        """
        pool, level = pool_draws(draws), self.current_level(standing)
        if level is None:
            return replace(standing, said=self._make_record(standing, standing, pool, None), lasted=0)
        threshold = standing.threshold
        if isnan(threshold):
            threshold = quantile(pool, level)
        came = torch.tensor(clients, dtype=torch.int64)
        frozen = standing.frozen.clone()
        frozen[came[self.find_finished_clients(draws[came], threshold, torch.tensor(held))]] = True
        now = replace(standing, threshold=threshold, frozen=frozen, lasted=round + 1 - standing.began)
        left = self._reason_to_end(now, round)
        now = replace(now, said=self._make_record(now, standing, pool, left))
        return now if left is None else self._begin_next_phase(now, round, pool)

    def find_finished_clients(self, draws: Tensor, threshold: float, held: Tensor) -> Tensor:
        """Whether each client has finished the phase, bool `[clients]`.

        A client with too few examples for a mixture is finished. A client with enough examples but no mixture
        is not: its model has diverged.

        Args:
            draws: difficulties `[clients, count]`.
            threshold: the phase's threshold.
            held: examples `[clients]`.
        """
        below = (draws <= threshold).double().mean(-1)
        return (below > self.v) | (torch.isnan(draws).all(-1) & (held < EXAMPLES_PER_COMPONENT))

    def _reason_to_end(self, now: PhaseState, round: int) -> str | None:
        """The reason why the phase ends now; None if it goes on."""
        if int(now.frozen.sum()) >= ceil_share(self.share, len(now.frozen)):
            return "share"
        return "cap" if round + 1 - now.began >= self.cap else None

    def _begin_next_phase(self, now: PhaseState, round: int, pool: Tensor) -> PhaseState:
        """The beginning of the next phase, with all clients; after the last phase its threshold stays."""
        phase, nobody = now.phase + 1, torch.zeros_like(now.frozen)
        threshold = quantile(pool, self.levels[phase]) if phase < len(self.levels) else now.threshold
        return replace(now, phase=phase, began=round + 1, threshold=threshold, frozen=nobody)

    def _make_record(
        self, now: PhaseState, before: PhaseState, pool: Tensor, left: str | None
    ) -> dict[str, Any]:
        """The record of a round: its phase, the frozen clients, and the reason for the phase's end."""
        frozen, level = torch.nonzero(now.frozen).flatten().tolist(), self.current_level(now)
        newly = torch.nonzero(now.frozen & ~before.frozen).flatten().tolist()
        over, listed = level is None, self.levels[:LISTED_LEVELS]
        return {
            "phase": "over" if over else f"{now.phase + 1} of {len(self.levels)}",
            "level": level,
            "threshold": None if isnan(now.threshold) else round_off(now.threshold),
            "quantiles": [round_off(quantile(pool, each)) for each in listed] if len(pool) else [],
            "frozen_clients": len(frozen),
            "frozen": frozen[:LISTED_CLIENTS],
            "newly_frozen": newly,
            "left": left,
        }


@dataclass(frozen=True, kw_only=True)
class PhaseSettings:
    """The hyper-parameters of the phases, and the steps of a round that depend on them alone.

    Attributes:
        levels: T_1 ... T_Z, the quantile of difficulty that each phase asks for; [] for no phases.
        order: order of the phases' levels, from the smallest to the largest (`ascending`) or the reverse.
        v: a client has finished a phase if more than this share of its difficulties is at most the threshold;
            the share 1 is out of reach, and phases end by `cap`.
        finished: P, share of the clients that have to finish a phase before the next one begins.
        cap: largest number of rounds of a phase; null divides the run's rounds evenly.
        components: L, the components of each client's mixture.
        draws: N_k, how many numbers the server draws from each mixture.
    """

    levels: tuple[Level, ...] = (0.3, 0.6, 0.9)
    order: Literal["ascending", "descending"] = "ascending"
    v: Share = 0.7
    finished: Annotated[float, Range(above=0, maximum=1)] = 0.8
    cap: Count | None = None
    components: Annotated[int, Range(1, 50)] = 3
    draws: Annotated[int, Range(1, 100_000)] = 100

    def phases(self, ctx: Context) -> Phases:
        """The rules of the phases."""
        levels = sorted(self.levels, reverse=self.order == "descending")
        cap = self.cap or max(1, ctx.rounds // max(1, len(levels)))
        return Phases(tuple(levels), self.v, self.finished, cap)

    def depends_on_num_rounds(self) -> bool:
        """Whether the phases divide the run's rounds."""
        return bool(self.levels) and self.cap is None

    def init_draws(self, clients: int) -> Tensor:
        """No draws yet: NaN, float64 `[clients, draws]`."""
        return torch.full((clients, self.draws), torch.nan, dtype=torch.float64)

    def fit_difficulties(self, difficulties: Tensor) -> Tensor:
        """The mixture of a client's difficulties `[n]`, which it sends: `[L, 3]`, see `fit_mixture`."""
        return fit_mixture(difficulties.cpu().numpy(), self.components)

    def update_draws(
        self, ctx: Context, draws: Tensor, clients: Sequence[int], mixtures: Sequence[Tensor]
    ) -> Tensor:
        """The draws of all clients, with new ones for these clients from their new mixtures."""
        drawn = draws.clone()
        for client, mixture in zip(clients, mixtures, strict=True):
            stream = streams.stream(ctx.seed, "difficulty", ctx.round, client)
            drawn[client] = draw_from_mixture(mixture, self.draws, stream)
        return drawn

    def sample_ready_clients(
        self, ctx: Context, standing: PhaseState, rng: np.random.Generator
    ) -> Sequence[int]:
        """A uniform sample of the clients that are not frozen; all of them if they are few."""
        if not standing.frozen.any():
            return sample_cohort(ctx, rng)
        ready = standing.ready_clients.numpy()
        chosen = rng.choice(len(ready), min(ctx.cohort_size, len(ready)), replace=False)
        return sorted(ready[chosen].tolist())


def round_off(value: float) -> float:
    """Round a number for a record."""
    return round(value, 6)
