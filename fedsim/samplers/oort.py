"""Oort: Efficient Federated Learning via Guided Participant Selection.

Lai, Zhu, Madhyastha, Chowdhury, OSDI 2021, arXiv:2010.06081.

Idea: clients whose examples still have a large loss are worth most; some rounds' places are kept for clients
that have never taken part.

Algorithm 1, with the statistical utility alone: the factor for slow clients is 1, also where clients have
`devices`, and clients to explore are drawn uniformly.

- U(i) = n_i sqrt(mean of squared losses of the client's examples), of the round in which i took part last.
- Scores: U, clipped at its 95 % quantile and scaled to [0, 1], plus sqrt(0.1 ln R / L(i)), with the number of
  this round R and that of the client's last round L(i), from 1.
- epsilon K places go to clients without a utility. The others are drawn in proportion to their scores, from
  the clients whose score is at least 95 % of the last place's. epsilon begins at 0.9, and falls by the factor
  0.98 from round to round, down to 0.2.

Deviations: losses are those of the received model before local training, which every client computes once
more; Oort takes the losses that occur during training. The limit on how often a client is chosen is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.base.parameters import Share
from fedsim.core import Context
from fedsim.samplers.sampler import ClientScores, Sampler

CUTOFF = 0.95
CLIP_QUANTILE = 0.95
STALENESS = 0.1


@dataclass(frozen=True, kw_only=True)
class Oort(Sampler):
    """Clients with a high statistical utility, and some that have not taken part yet (OSDI 2021).

    Attributes:
        exploration: epsilon, the share of a cohort's places for clients without a utility, in round 1.
        decay: factor of epsilon from each round to the next.
        least_exploration: the smallest epsilon.
    """

    score: ClassVar[str | None] = "utility"
    exploration: Share = 0.9
    decay: Share = 0.98
    least_exploration: Share = 0.2

    def select(
        self, ctx: Context, clients: NDArray[np.int64], known: ClientScores, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw the clients to exploit by their scores, and the clients to explore uniformly."""
        is_known = known.rounds[clients] >= 0
        old, new = clients[is_known], clients[~is_known]
        epsilon = max(self.exploration * self.decay**ctx.round, self.least_exploration)
        explored = min(len(new), max(round(epsilon * ctx.cohort_size), ctx.cohort_size - len(old)))
        found = [rng.choice(new, explored, replace=False)] if explored else []
        if exploited := ctx.cohort_size - explored:
            scores = score_clients(known.values[old], known.rounds[old], ctx.round)
            found.append(_draw_best(old, scores, exploited, rng))
        return np.concatenate(found)


def score_clients(utilities: NDArray[np.float32], rounds: NDArray[np.int64], now: int) -> NDArray[np.float64]:
    """Return the scores of clients that have taken part, `[n]`.

    Args:
        utilities: of each client's last round, `[n]`; NaN for a client without examples counts 0.
        rounds: the client's last round, from 0, `[n]`.
        now: this round, from 0.
    """
    utility = np.nan_to_num(utilities.astype(np.float64))
    utility = np.minimum(utility, np.quantile(utility, CLIP_QUANTILE))
    spread = utility.max() - utility.min()
    scaled = (utility - utility.min()) / spread if spread else np.ones_like(utility)
    return np.asarray(scaled + np.sqrt(STALENESS * np.log(now + 1) / (rounds + 1)))


def _draw_best(
    clients: NDArray[np.int64], scores: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    last_place = np.sort(scores)[-count]
    best = scores >= CUTOFF * last_place
    weights = scores[best] + 1e-12
    return rng.choice(clients[best], count, replace=False, p=weights / weights.sum())
