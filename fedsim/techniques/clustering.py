"""Clusters of clients, by the earth mover's distance of their labels and k-means, or by similarities.

ACE-pFL (He et al., IEEE Transactions on Networking 2025), Section III-B and Algorithm 2. The optimal
transport is POT's `emd2`, k-means scikit-learn's; both are imported on first use.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.base import rng
from fedsim.core.census import Ground, Real, Whole

STARTS = 10
"""Number of starts of k-means; the best result counts."""

MOST_COMPARED = 60
"""Largest number of clients of a cluster that are compared for its mean distance."""


def label_distributions(counts: Real) -> Real:
    """Label distributions, float64 `[n, classes]`, from counts; uniform for a client without examples."""
    total = counts.sum(-1, keepdims=True)
    even = np.full_like(counts, 1 / counts.shape[-1])
    shares: Real = np.where(total > 0, counts / np.where(total > 0, total, 1), even)
    return shares


def earth_movers_distance(first: Real, second: Real, ground: Ground = "identity") -> float:
    """Return the earth mover's distance E(R_i, R_j) of two distributions over the classes.

    With the ground distance `identity` it is their total variation, half the sum of |R_i - R_j|: 0 for equal
    distributions and 1 for distributions without a common class. With `sorted` the C frequencies of one
    client are assigned to those of the other, each with the weight 1/C: the classes themselves do not matter.

    Args:
        first: float64 `[classes]`, each at least 0 and of sum 1.
        second: the same.
        ground: cost of moving a unit.

    Returns:
        At least 0.
    """
    from ot import emd2  # slow to import, and few runs need it

    classes = len(first)
    if ground == "identity":
        return max(0.0, float(emd2(first, second, 1.0 - np.eye(classes))))
    even = np.full(classes, 1 / classes)
    return max(0.0, float(emd2(even, even, np.abs(first[:, None] - second[None, :]))))


def distances_to(shares: Real, reference: Real, ground: Ground = "identity") -> Real:
    """The distance of each of these distributions, `[n, classes]`, to `reference`: float64 `[n]`, in O(n)."""
    return np.array([earth_movers_distance(share, reference, ground) for share in shares])


def distance_matrix(shares: Real, ground: Ground = "identity") -> Real:
    """The distances between all pairs of distributions: float64 `[n, n]`, symmetric, in O(n^2)."""
    matrix = np.zeros((len(shares), len(shares)))
    for row, share in enumerate(shares):
        matrix[row, :row] = matrix[:row, row] = distances_to(shares[:row], share, ground)
    return matrix


def cluster_features(features: Real, clusters: int, seed: int) -> Whole:
    """Cluster clients by k-means.

    Args:
        features: float64 `[n, d]`, or `[n]`: distances to one client.
        clusters: largest number of clusters; there are fewer if fewer clients differ.
        seed: of the experiment.

    Returns:
        The cluster of each client, int64 `[n]`, numbered from 0 in the order of their first members.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    # Features that differ by rounding alone are the same.
    points = features.reshape(len(features), -1).round(9)
    found = min(clusters, len(np.unique(points, axis=0)))
    state = rng.torch_seed(seed, "clusters") % 2**32
    with threadpool_limits(1):  # sums taken by several threads differ in their last bits
        labels = KMeans(n_clusters=found, n_init=STARTS, random_state=state).fit_predict(points)
    order = {label: number for number, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([order[label] for label in labels.tolist()], np.int64)


def bisect_by_similarity(similarities: Real) -> NDArray[np.bool_]:
    """Cut clients into two groups whose most similar pair of clients is as little similar as possible.

    This is single linkage. CFL (Sattler, Müller, Samek, IEEE TNNLS 2020) cuts clusters so.

    Args:
        similarities: symmetric, float64 `[n, n]`, n at least 2.

    Returns:
        bool `[n]`: the group without the first client.
    """
    from sklearn.cluster import AgglomerativeClustering

    linkage = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="single")
    labels = linkage.fit_predict(similarities.max() - similarities)
    found: NDArray[np.bool_] = labels != labels[0]
    return found


def mean_cluster_distances(
    shares: Real, labels: Sequence[int] | Whole, ground: Ground = "identity"
) -> list[float]:
    """The mean distance between every two clients of each cluster; 0 for a cluster of one.

    Args:
        shares: float64 `[n, classes]`.
        labels: each client's cluster, from 0 on. Of a large cluster only `MOST_COMPARED` clients are
            compared, evenly spaced in their order.
        ground: cost of moving a unit.
    """
    every, means = np.asarray(labels), list[float]()
    for cluster in range(int(every.max()) + 1):
        members = np.flatnonzero(every == cluster)
        if len(members) > MOST_COMPARED:
            members = members[np.linspace(0, len(members) - 1, MOST_COMPARED).round().astype(np.int64)]
        pairs = len(members) * (len(members) - 1)
        means.append(float(distance_matrix(shares[members], ground).sum() / pairs) if pairs else 0.0)
    return means
