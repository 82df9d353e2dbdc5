"""The samplers that a spec can name in `clients.sampler`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.base import rng as streams
from fedsim.base.parameters import Range
from fedsim.core import Context
from fedsim.samplers.availability import Availability, DayNight, Markov
from fedsim.samplers.online_trace import OnlineTrace
from fedsim.samplers.oort import Oort
from fedsim.samplers.sampler import ClientScores, Sampler, Uniform


@dataclass(frozen=True, kw_only=True)
class RoundRobin(Sampler):
    """Clients in turn, in a random order drawn once: each takes part once in N / K rounds."""

    def select(
        self, ctx: Context, clients: NDArray[np.int64], known: ClientScores, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Take the next K of the order of those that may be selected, from position K x round on."""
        order = streams.stream(ctx.seed, "round robin").permutation(ctx.num_clients)
        order = order[np.isin(order, clients)]
        return np.roll(order, -(ctx.round * ctx.cohort_size) % len(order))[: ctx.cohort_size]


@dataclass(frozen=True, kw_only=True)
class LossWeighted(Sampler):
    """Clients with a large loss more often: in proportion to their last known mean loss.

    A client without a report has the mean of the known losses.
    """

    score: ClassVar[str | None] = "loss"

    def select(
        self, ctx: Context, clients: NDArray[np.int64], known: ClientScores, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw without replacement, with the losses as weights."""
        losses = known.values[clients].astype(np.float64)
        is_known = np.isfinite(losses)
        losses[~is_known] = losses[is_known].mean() if is_known.any() else 1.0
        losses = np.maximum(losses, 1e-12)  # a client without any loss stays possible
        return rng.choice(clients, ctx.cohort_size, replace=False, p=losses / losses.sum())


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(Sampler):
    """Of d candidates drawn at random, the K whose data the global model fits worst.

    Cho, Wang, Joshi: Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022,
    arXiv:2010.01243, section 4. The candidates receive the global model and report its mean loss on their
    examples, before the cohort is chosen. The paper draws candidates in proportion to the size of their data;
    here the server does not know the sizes, and draws uniformly. A candidate that is chosen receives the
    model once more with the broadcast: d + K models go down, where a server that keeps count would send d.

    Attributes:
        candidates: d, the number of candidates, at least the size of a cohort and at most N.
    """

    candidates: Annotated[int, Range(minimum=1)] = 20
    surveys: ClassVar[bool] = True

    def list_surveyed(self, ctx: Context, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The candidates: with d = K, the cohort that a uniform sample draws."""
        rng = streams.stream(ctx.seed, "cohort", ctx.round)
        count = min(max(self.candidates, ctx.cohort_size), len(clients))
        return np.sort(clients[rng.choice(len(clients), count, replace=False)])

    def select(
        self, ctx: Context, clients: NDArray[np.int64], known: ClientScores, rng: np.random.Generator
    ) -> Sequence[int] | NDArray[np.int64]:
        """Take the candidates with the largest losses; those without examples come last."""
        candidates = self.list_surveyed(ctx, clients)
        losses = np.nan_to_num(known.values[candidates], nan=-np.inf)
        return candidates[np.argsort(-losses, kind="stable")[: ctx.cohort_size]]


SAMPLERS: Mapping[str, type[Sampler]] = {
    "uniform": Uniform,
    "round_robin": RoundRobin,
    "availability": Availability,
    "day_night": DayNight,
    "markov": Markov,
    "trace": OnlineTrace,
    "loss_weighted": LossWeighted,
    "power_of_choice": PowerOfChoice,
    "oort": Oort,
}
"""The samplers, by the name that a spec gives them (`clients.sampler`)."""
