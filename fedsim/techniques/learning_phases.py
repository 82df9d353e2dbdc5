"""Phases that all clients go through together: who has learnt enough for one waits until the others have.

FedCL (arXiv:2211.07248), section IV-C and Algorithm 1. In phase z of Z a client is done, and frozen, when
more than a share v of its difficulties is at most the phase's threshold: the quantile T_z of all clients'
difficulties. When enough clients are frozen the next phase begins, with all of them.

The threshold is held from the phase's beginning. Taken anew in every round, as Algorithm 1 is printed, it
falls with the clients' difficulties, of which the share T_z is always below it: phases need not end then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from typing import Any

import torch
from torch import Tensor

from fedsim.techniques.gaussian_mixtures import EACH, pool_draws, quantile

LISTED_CLIENTS = 50
"""Frozen clients that a record lists; those that a round has frozen it names all."""


@dataclass(frozen=True, kw_only=True)
class PhaseState:
    """How far the clients are.

    Attributes:
        phase: which, from 0; as many as there are phases once all are over.
        began: the round of its beginning, from 0.
        threshold: the difficulty that counts as learnt in it; NaN as long as nobody has told any.
        frozen: who is done with it, bool `[N]`.
        said: what happened in the last round, for its record.
    """

    phase: int = 0
    began: int = 0
    threshold: float = nan
    frozen: Tensor
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ready_clients(self) -> Tensor:
        """The clients that may come, int64, in ascending order."""
        return torch.nonzero(~self.frozen).flatten()


@dataclass(frozen=True)
class Phases:
    """The rules of the phases.

    Attributes:
        levels: T_z of each phase, in the order in which they come.
        v: the share of a client's difficulties that has to be exceeded.
        share: P, the share of the clients that have to be done.
        cap: rounds after which a phase ends in any case.
    """

    levels: tuple[float, ...]
    v: float
    share: float
    cap: int

    def current_level(self, standing: PhaseState) -> float | None:
        """The level of the phase at hand; None once all are over."""
        return self.levels[standing.phase] if standing.phase < len(self.levels) else None

    def advance(
        self, standing: PhaseState, round: int, clients: Sequence[int], held: Sequence[int], draws: Tensor
    ) -> PhaseState:
        """Where the clients are after a round.

        Args:
            standing: before it.
            round: which, from 0.
            clients: who came; they alone are looked at, since nothing is new of the others.
            held: how many examples each of these holds.
            draws: difficulties of every client as it told last, float64 `[N, count]`; NaN for who has told
                none.
        """
        pool, level = pool_draws(draws), self.current_level(standing)
        if level is None:
            return replace(standing, said=self._make_record(standing, standing, pool, None))
        threshold = standing.threshold
        if isnan(threshold):
            threshold = quantile(pool, level)
        came = torch.tensor(clients, dtype=torch.int64)
        frozen = standing.frozen.clone()
        frozen[came[self.find_finished_clients(draws[came], threshold, torch.tensor(held))]] = True
        now = replace(standing, threshold=threshold, frozen=frozen)
        left = self._reason_to_end(now, round)
        now = replace(now, said=self._make_record(now, standing, pool, left))
        return now if left is None else self._next(now, round, pool)

    def find_finished_clients(self, draws: Tensor, threshold: float, held: Tensor) -> Tensor:
        """Who has learnt enough, bool `[clients]`.

        So has who holds too little to tell of; not who holds enough and told none: its model has diverged.

        Args:
            draws: difficulties `[clients, count]`.
            threshold: the phase's.
            held: examples `[clients]`.
        """
        below = (draws <= threshold).double().mean(-1)
        return (below > self.v) | (torch.isnan(draws).all(-1) & (held < EACH))

    def _reason_to_end(self, now: PhaseState, round: int) -> str | None:
        """Why the phase is over, if it is."""
        if int(now.frozen.sum()) >= self.share * len(now.frozen) - 1e-9:
            return "share"
        return "cap" if round + 1 - now.began >= self.cap else None

    def _next(self, now: PhaseState, round: int, pool: Tensor) -> PhaseState:
        """The beginning of the next phase, in which everybody may come; the last threshold stays."""
        phase, nobody = now.phase + 1, torch.zeros_like(now.frozen)
        threshold = quantile(pool, self.levels[phase]) if phase < len(self.levels) else now.threshold
        return replace(now, phase=phase, began=round + 1, threshold=threshold, frozen=nobody)

    def _make_record(
        self, now: PhaseState, before: PhaseState, pool: Tensor, left: str | None
    ) -> dict[str, Any]:
        """What a record says of a round: the phase that it was in, who is done, and why the phase ended."""
        frozen, level = torch.nonzero(now.frozen).flatten().tolist(), self.current_level(now)
        newly = torch.nonzero(now.frozen & ~before.frozen).flatten().tolist()
        over = level is None
        return {
            "phase": "over" if over else f"{now.phase + 1} of {len(self.levels)}",
            "level": level,
            "threshold": None if isnan(now.threshold) else round_off(now.threshold),
            "quantiles": [round_off(quantile(pool, each)) for each in self.levels] if len(pool) else [],
            "frozen_clients": len(frozen),
            "frozen": frozen[:LISTED_CLIENTS],
            "newly_frozen": newly,
            "left": left,
        }


def round_off(value: float) -> float:
    """A number as a record has it."""
    return round(value, 6)
