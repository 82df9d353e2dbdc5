"""Statistics of a partition: class counts of each client, and each client's distance from the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsim.data.dataset import Array, Indices
from fedsim.data.partition import Partition, SampledPartition


def class_counts(
    partition: Partition, y: Array, num_classes: int, clients: Sequence[int] | None = None
) -> Indices:
    """Return the number of examples of each class, for each client.

    Args:
        partition: of the training set.
        y: the training labels, int64 [n] or float32 [n, L].
        num_classes: C.
        clients: clients of the rows; all clients by default (a sampled partition then draws every client).

    Returns:
        int64 [clients, C].
    """
    rows = range(partition.num_clients) if clients is None else clients
    if clients is None and y.ndim == 1 and not isinstance(partition, SampledPartition):
        holder = np.repeat(np.arange(partition.num_clients), partition.sizes())
        flat = np.bincount(
            holder * num_classes + y[partition.indices], minlength=partition.num_clients * num_classes
        )
        return flat.reshape(-1, num_classes).astype(np.int64)
    return np.stack([partition.count_labels(client, y, num_classes) for client in rows])


def distance_to_all(counts: Indices) -> Array:
    """The earth mover's distance between each client's class distribution and that of all clients together.

    A move from any class to another costs 1: the distance is half the sum of the absolute differences of the
    shares (total variation). It is 0 for the same mix, near 1 for a client of one rare class.

    Args:
        counts: int64 [N, C].

    Returns:
        float64 [N]; 0 for a client without examples.
    """
    whole = counts.sum(axis=0) / max(1, counts.sum())
    sizes = counts.sum(axis=1, keepdims=True)
    shares = np.where(sizes > 0, counts / np.maximum(sizes, 1), whole)
    return np.asarray(0.5 * np.abs(shares - whole).sum(axis=1))


def summarise_counts(counts: Indices, sizes: Indices) -> dict[str, Any]:
    """Summarise class counts.

    Args:
        counts: int64 [n, C], of all clients or of the first n clients.
        sizes: every client's number of examples, int64 [N].

    Returns:
        clients and examples; quartiles of the sizes, of the distances and of the classes per client; the
        examples of each class.
    """
    distances = distance_to_all(counts)
    return {
        "clients": len(sizes),
        "examples": int(sizes.sum()),
        "sizes": _quartiles(sizes),
        "distance_to_all": _quartiles(distances) | {"mean": float(distances.mean())},
        "classes_per_client": _quartiles((counts > 0).sum(axis=1)),
        "class_totals": counts.sum(axis=0).tolist(),
    }


def _quartiles(values: Array) -> dict[str, float]:
    names = ("min", "lower_quartile", "median", "upper_quartile", "max")
    return dict(zip(names, map(float, np.percentile(values, [0, 25, 50, 75, 100])), strict=True))
