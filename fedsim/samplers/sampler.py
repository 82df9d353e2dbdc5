"""Sampler: how the clients of a round are selected, and what it needs to know of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.core import Context
from fedsim.data.places import DataRoots


class ClientScores(NamedTuple):
    """What the server knows of each client.

    Attributes:
        values: the client's last score, float32 `[N]`; NaN for an unknown one.
        rounds: the round of that score, int64 `[N]`; -1 for never.
    """

    values: NDArray[np.float32]
    rounds: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Sampler(ABC):
    """Selects the clients of a round. A subclass defines `select`.

    Class attributes:
        score: what clients report with their updates: "loss", the mean loss of the received model on their
            examples; "utility", Oort's statistical utility; or None.
        surveys: whether clients are asked for their loss before the round (`list_surveyed`).
        needs_clock: whether it reads the simulated seconds (`Context.clock`).
    """

    score: ClassVar[str | None] = None
    surveys: ClassVar[bool] = False
    needs_clock: ClassVar[bool] = False

    def list_surveyed(self, ctx: Context, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The clients that report their loss before this round, among `clients`."""
        return clients[:0]

    def prepare(self, places: DataRoots, num_clients: int) -> Sampler:
        """Return the sampler with its file read; by default itself.

        Args:
            places: the data roots.
            num_clients: N.

        Raises:
            SpecError: the file is wrong; its path begins with the parameter's name.
            DataNotFound: the file is in no data root.
        """
        return self

    @abstractmethod
    def select(
        self, ctx: Context, clients: NDArray[np.int64], known: ClientScores, rng: np.random.Generator
    ) -> Sequence[int] | NDArray[np.int64]:
        """Select this round's clients: `ctx.cohort_size` of them, or fewer; at least one.

        Args:
            ctx: the round.
            clients: who may be selected, in ascending order; at least `ctx.cohort_size`.
            known: the scores so far.
            rng: the round's stream for cohorts.
        """


@dataclass(frozen=True, kw_only=True)
class Uniform(Sampler):
    """A uniform sample, without replacement."""

    def select(
        self, ctx: Context, clients: NDArray[np.int64], known: ClientScores, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw the cohort as every run without a sampler does."""
        return clients[rng.choice(len(clients), ctx.cohort_size, replace=False)]
