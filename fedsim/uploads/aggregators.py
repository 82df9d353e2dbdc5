"""Robust aggregators: rules that combine the clients' updates without trusting every client.

A rule sees the updates of the cohort as vectors, one for each client, and gives one vector. Mean, norm
clipping and the geometric median weigh clients as the algorithm does; the other rules count every client
once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedsim.base.parameters import Count, Positive, Range
from fedsim.base.shares import floor_share

MinorityShare = Annotated[float, Range(minimum=0, below=0.5)]
TINY = 1e-12
SMALLEST = torch.finfo(torch.float64).tiny
"""The least sum of the weights of clients, which may all be far below 1, as with a tilt below 0."""


class Combined(NamedTuple):
    """The updates of a cohort, combined.

    Attributes:
        update: float64 `[d]`.
        weights: the share of each client in it, float64 `[n]` with sum 1 (or 0, if nobody counts); None for a
            rule without shares, such as a median.
    """

    update: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Aggregator(ABC):
    """A rule for the updates of a cohort. A subclass defines `combine`.

    Class attributes:
        uses_weights: whether it weighs clients as the algorithm does.
        needs_history: whether it compares the sums of each client's updates of all rounds.
        needs_server_update: whether the server trains on the public set as a client does.
        remedy: what the user can do if there are too few updates.

    Attributes:
        bucket_size: clients whose mean counts as one update, drawn at random in each round; 1: no buckets
            (Karimireddy et al., ICLR 2022).
    """

    uses_weights: ClassVar[bool] = False
    needs_history: ClassVar[bool] = False
    needs_server_update: ClassVar[bool] = False
    remedy: ClassVar[str] = "make the cohort larger (clients.fraction), or use median"

    bucket_size: Annotated[int, Range(1, 1000)] = 1

    @abstractmethod
    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Combine the updates of a cohort.

        Args:
            updates: float64 `[n, d]`, n at least 1.
            weights: of the clients, float64 `[n]`, each above 0.
            beside: what the rule compares the updates with: with `needs_history` the sum of each client's
                updates of all rounds, float64 `[n, d]`; with `needs_server_update` the server's own update,
                float64 `[1, d]`; else the updates.
        """

    def explain_too_few(self, updates: int) -> str:
        """Return why this number of updates is too small; "" if it is large enough."""
        return ""

    def _count_attacked(self, share: float, updates: int) -> int:
        """Return how many updates a share of the clients can change: less than half of them.

        Each attacker may be in a bucket of its own, so that a bucket of s clients has s times the share.
        """
        return min(floor_share(share, self.bucket_size * updates), (updates - 1) // 2)


@dataclass(frozen=True, kw_only=True)
class Mean(Aggregator):
    """The weighted mean, as without a robust rule: no defence."""

    uses_weights: ClassVar[bool] = True

    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Compute the weighted mean."""
        return _take_mean(updates, weights)


@dataclass(frozen=True, kw_only=True)
class Median(Aggregator):
    """The median of each coordinate (Yin et al., ICML 2018, arXiv:1803.01498)."""

    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Take the middle value, or the mean of the two middle values."""
        ordered = updates.sort(dim=0).values
        middle = (len(updates) - 1) / 2
        return Combined((ordered[floor(middle)] + ordered[-floor(middle) - 1]) / 2)


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Aggregator):
    """The mean of each coordinate without its extreme values (Yin et al., ICML 2018, arXiv:1803.01498).

    Attributes:
        trim: share of the clients; as many of the largest values, and of the smallest, are left out. With
            buckets that is `bucket_size` times this share of their means.
    """

    remedy: ClassVar[str] = "make the cohort larger (clients.fraction), give a larger trim, or use median"

    trim: MinorityShare = 0.2

    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Leave the extreme values out."""
        cut = self._count_attacked(self.trim, len(updates))
        ordered = updates.sort(dim=0).values
        return Combined(ordered[cut : len(updates) - cut].mean(0))

    def explain_too_few(self, updates: int) -> str:
        """Return that no value is left out, as in the plain mean; "" if one is, or `trim` is 0."""
        if not self.trim or self._count_attacked(self.trim, updates):
            return ""
        return f"trim {self.trim:g} of {updates} updates leaves none out"


@dataclass(frozen=True, kw_only=True)
class Krum(Aggregator):
    """The one update that is closest to its nearest neighbours (Blanchard et al., NeurIPS 2017).

    With n updates and f attackers, the score of an update is the sum of the squared distances to its n - f
    - 2 nearest neighbours.

    Attributes:
        attackers: the share of attackers that the rule expects in a cohort; f is this share of the clients,
            rounded down, and less than half of the updates.
    """

    attackers: MinorityShare = 0.2

    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Take the mean of the updates with the smallest scores."""
        return self._take_best(updates, 1)

    def _take_best(self, updates: Tensor, count: int) -> Combined:
        nearest = max(1, len(updates) - self._count_attackers(len(updates)) - 2)
        squared = torch.cdist(updates, updates, compute_mode="donot_use_mm_for_euclid_dist").square()
        # The smallest distance of each row is that of an update to itself.
        scores = squared.sort(dim=1).values[:, 1 : nearest + 1].sum(1)
        best = scores.argsort(stable=True)[:count]
        chosen = torch.zeros(len(updates), dtype=updates.dtype).index_fill(0, best, 1.0)
        return _take_mean(updates, chosen)

    def _count_attackers(self, updates: int) -> int:
        return self._count_attacked(self.attackers, updates)

    def explain_too_few(self, updates: int) -> str:
        """Return why there are no n - f - 2 neighbours; "" if there is one at least."""
        attackers = self._count_attackers(updates)
        if updates - attackers - 2 >= 1:
            return ""
        return f"{updates} updates with {attackers} attackers leave none of n - f - 2 neighbours"


@dataclass(frozen=True, kw_only=True)
class MultiKrum(Krum):
    """The mean of the updates with the smallest scores of Krum (Blanchard et al., NeurIPS 2017).

    Attributes:
        selected: number of updates in the mean; by default n - f.
    """

    remedy: ClassVar[str] = (
        "make the cohort larger (clients.fraction), select fewer, expect more attackers, or use median"
    )

    selected: Count | None = None

    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Take the mean of the updates with the smallest scores."""
        return self._take_best(updates, self._count_selected(len(updates)))

    def _count_selected(self, updates: int) -> int:
        return self.selected or updates - self._count_attackers(updates)

    def explain_too_few(self, updates: int) -> str:
        """Return Krum's reason, or that no update is left out; "" if one is, or the rule expects this."""
        if reason := super().explain_too_few(updates):
            return reason
        if self._count_selected(updates) < updates or (self.selected is None and not self.attackers):
            return ""
        if self.selected is None:
            return f"attackers {self.attackers:g} of {updates} updates are none, and none is left out"
        return f"selected {self.selected} of {updates} updates leaves none out"


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Aggregator):
    """RFA: the point with the smallest weighted sum of distances (Pillutla et al., IEEE TSP 2022).

    arXiv:1912.13445. The smoothed Weiszfeld algorithm finds it, starting at the weighted mean.

    Attributes:
        iterations: of the Weiszfeld algorithm.
        smoothing: nu, the smallest distance that counts.
    """

    uses_weights: ClassVar[bool] = True

    iterations: Annotated[int, Range(1, 1000)] = 10
    smoothing: Positive = 1e-6

    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Run the smoothed Weiszfeld algorithm."""
        found = _take_mean(updates, weights)
        for _ in range(self.iterations):
            distances = torch.linalg.vector_norm(updates - found.update, dim=1)
            found = _take_mean(updates, weights / distances.clamp(min=self.smoothing))
        return found


@dataclass(frozen=True, kw_only=True)
class NormClipping(Aggregator):
    """The weighted mean of updates whose norms are bounded (Sun et al., 2019, arXiv:1911.07963).

    Attributes:
        max_norm: the largest Euclidean norm; longer updates are scaled down to it. By default the median of
            the norms of the round.
    """

    uses_weights: ClassVar[bool] = True

    max_norm: Positive | None = None

    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Scale long updates down and take the mean."""
        norms = torch.linalg.vector_norm(updates, dim=1)
        bound = norms.quantile(0.5) if self.max_norm is None else self.max_norm
        factors = (bound / norms.clamp(min=TINY)).clamp(max=1.0)
        return _take_mean(updates * factors[:, None], weights)


@dataclass(frozen=True, kw_only=True)
class FoolsGold(Aggregator):
    """Small weights for clients whose updates over all rounds are alike (Fung et al., RAID 2020).

    arXiv:1808.04866. The similarity is the cosine over all parameters. The update is the mean with
    FoolsGold's weights; if they are all 0, the model stays as it is. The server keeps the sum of each
    client's updates.

    Attributes:
        confidence: kappa, the slope of the weights.
    """

    needs_history: ClassVar[bool] = True

    confidence: Positive = 1.0

    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Weigh the updates by how unlike all others their client's history is."""
        if len(updates) == 1:
            return _take_mean(updates, torch.ones_like(weights))
        units = beside / torch.linalg.vector_norm(beside, dim=1, keepdim=True).clamp(min=TINY)
        alike = (units @ units.T).fill_diagonal_(-torch.inf)
        largest = alike.max(1).values
        # Pardoning: an honest client that resembles an attacker is less alike than two attackers are.
        pardon = (largest[:, None] / largest[None, :].clamp(min=TINY)).clamp(0.0, 1.0)
        alike = torch.where(largest[None, :] > largest[:, None], alike * pardon, alike)
        unlike = (1 - alike.max(1).values).clamp(0.0, 1.0)
        unlike = (unlike / unlike.max().clamp(min=TINY)).clamp(max=0.99)
        logit = self.confidence * (torch.log(unlike / (1 - unlike)) + 0.5)
        return _take_mean(updates, logit.clamp(0.0, 1.0), TINY)


@dataclass(frozen=True, kw_only=True)
class FLTrust(Aggregator):
    """The mean of updates, weighted by their likeness to an update of the server (Cao et al., NDSS 2021).

    arXiv:2012.13995. The server trains the model on the public set, with the settings of local training,
    and gets an update g. The trust score of an update is its cosine with g, or 0 if this is negative; each
    update is scaled to the norm of g. If all scores are 0, the model stays as it is.
    """

    needs_server_update: ClassVar[bool] = True

    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        """Scale the updates to the norm of the server's and weigh them by their trust scores."""
        norm = torch.linalg.vector_norm(beside)
        norms = torch.linalg.vector_norm(updates, dim=1).clamp(min=TINY)
        scores = (updates @ beside[0] / (norms * norm.clamp(min=TINY))).clamp(min=0.0)
        return _take_mean(updates * (norm / norms)[:, None], scores, TINY)


def _take_mean(updates: Tensor, weights: Tensor, least: float = SMALLEST) -> Combined:
    """Return the weighted mean, and the weights as shares; zeros if the weights sum to 0.

    Args:
        updates: float64 `[n, d]`.
        weights: float64 `[n]`, at least 0.
        least: sum below which the shares are smaller than those of the weights.
    """
    shares = weights / weights.sum().clamp(min=least)
    return Combined(shares @ updates, shares)


def put_in_buckets(
    updates: Tensor, weights: Tensor, order: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weighted means of buckets of clients, their weights, and the bucket of each client.

    Args:
        updates: float64 `[n, d]`.
        weights: float64 `[n]`.
        order: a permutation of the clients, int64 `[n]`; the first `size` clients of it are one bucket.
        size: of a bucket; the last one may be smaller.
    """
    buckets = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)) // size)
    count = -(-len(order) // size)
    masses = torch.zeros(count, dtype=weights.dtype).index_add(0, buckets, weights)
    shape = count, updates.shape[1]
    sums = torch.zeros(shape, dtype=updates.dtype).index_add(0, buckets, updates * weights[:, None])
    return sums / masses[:, None], masses, buckets


AGGREGATORS: Mapping[str, type[Aggregator]] = {
    "mean": Mean,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "multi_krum": MultiKrum,
    "geometric_median": GeometricMedian,
    "norm_clipping": NormClipping,
    "foolsgold": FoolsGold,
    "fltrust": FLTrust,
}
"""The rules, by the name that a spec gives them (`aggregation`)."""
