"""Clients clustered by the earth mover's distance: planted groups, the picture of Fig. 3, and 10,000 clients.

python -m benchmarks.clusters        # writes docs/figures/clusters.svg, prints one JSON line
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.cluster_figure import Clustering, cluster_map
from benchmarks.machine import here
from fedsim.core.census import Real, Whole
from fedsim.data import load_dataset, make_partition
from fedsim.data.statistics import class_counts
from fedsim.techniques.clustering import (
    cluster_features,
    distance_matrix,
    distances_to,
    label_distributions,
    mean_cluster_distances,
)

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "clusters.svg"
PARTITIONS: dict[str, dict[str, Any]] = {
    "Dir(0.1)": {"kind": "dirichlet", "beta": 0.1, "min_size": 10},
    "P(2)": {"kind": "pathological", "classes": 2},
}
SEEDS = range(20)


def planted(seed: int, clients: int = 30) -> tuple[Real, Whole]:
    """Clients of three groups that hold two, three and two of ten classes, and a tenth of anything."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.arange(clients) % 3)
    shares = np.full((clients, 10), 0.1 / 10)
    for client, group in enumerate(groups):
        classes = [[0, 1], [3, 4, 5], [7, 8]][group]
        shares[client, classes] += 0.9 * rng.dirichlet(np.full(len(classes), 20.0))
    return label_distributions(np.array([rng.multinomial(200, row) for row in shares], float)), groups


def recovery() -> dict[str, dict[str, float]]:
    """The adjusted Rand index of what is found on planted groups, by each way of asking, over the seeds."""
    found: dict[str, list[float]] = {"matrix": [], "vector": []}
    for seed in SEEDS:
        shares, groups = planted(seed)
        reference = int(np.random.default_rng(seed).integers(len(shares)))
        features = {"matrix": distance_matrix(shares), "vector": distances_to(shares, shares[reference])}
        for name, values in features.items():
            found[name].append(float(adjusted_rand_score(groups, cluster_features(values, 3, seed))))
    return {name: {"mean": fmean(each), "least": min(each)} for name, each in found.items()}


def picture(clients: int, seed: int) -> dict[str, list[float]]:
    """Draw the clusters of Fashion-MNIST's clients as Fig. 3 does; {case: mean EMD within each}."""
    labels, rows, means = load_dataset("fashion_mnist", roots=()).train.y, [], {}
    for name, dealing in PARTITIONS.items():
        dealt = make_partition(labels=labels, num_clients=clients, num_classes=10, seed=seed, **dealing)
        shares = label_distributions(class_counts(dealt, labels, 10).astype(float))
        reference = int(np.random.default_rng(seed).integers(clients))
        features = {"vector": distances_to(shares, shares[reference]), "matrix": distance_matrix(shares)}
        for ask, values in features.items():
            found = {number: cluster_features(values, number, seed) for number in (2, 3, 5)}
            title = f"{name}, {ask}, |V| = "
            rows.append([Clustering(f"{title}{n}", shares, clusters) for n, clusters in found.items()])
            for n, clusters in found.items():
                means[f"{title}{n}"] = [round(mean, 2) for mean in mean_cluster_distances(shares, clusters)]
    cluster_map(rows, FIGURE)
    return means


def seconds(clients: int) -> dict[str, float]:
    """How long clustering so many clients by the distances to one of them takes, the figures besides."""
    shares = np.random.default_rng(0).dirichlet(np.full(10, 0.1), clients)
    distances_to(shares[:10], shares[0])  # loads the libraries
    cluster_features(np.arange(4.0), 2, 0)
    begun, worked = perf_counter(), process_time()
    distances = distances_to(shares, shares[0])
    cluster_features(distances, 3, 0)
    return {"wall": perf_counter() - begun, "processor": process_time() - worked}


def main() -> None:
    parser = argparse.ArgumentParser(description="Clusters by the earth mover's distance.")
    parser.add_argument("--clients", type=int, default=10_000, help="of the timed clustering")
    parser.add_argument("--times", type=int, default=3, help="how often it is timed")
    options = parser.parse_args()
    said = {
        "adjusted_rand_index": recovery(),
        "mean_emd": picture(20, 2002),
        "seconds": [seconds(options.clients) for _ in range(options.times)],
        **here(),
    }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
