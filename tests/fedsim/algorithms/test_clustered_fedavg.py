"""Clustered FedAvg: FedAvg with one cluster, rounds once more in NumPy, clients of other labels apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import ClusteredFedAvg, FedAvg
from fedsim.techniques.clustering import cluster_features, distance_matrix
from tests.fedsim.federations import federation
from tests.fedsim.linear_models import matrix, run
from tests.fedsim.methods import MOMENTUM
from tests.fedsim.replay import Client, start


def test_one_cluster_is_fedavg_bit_for_bit() -> None:
    population = federation(rounds=3, cohort_size=6)
    plain, _ = run(FedAvg(), population)
    results, _ = run(ClusteredFedAvg(clusters=1), population)
    for one, other in zip(results, plain, strict=True):
        found = one.state.params["0"]
        assert all(torch.equal(value, found[key]) for key, value in other.state.params.items())
        assert (one.traffic.down, one.traffic.up) == (other.traffic.down, other.traffic.up)
        assert one.cost == other.cost


def test_three_rounds_in_numpy() -> None:
    """Clusters by all distances; each is the mean of its clients in the cohort, and stays without any."""
    population = federation(model="logistic", rounds=3, cohort_size=4, local=MOMENTUM)
    results, _ = run(ClusteredFedAvg(clustering="matrix", clusters=3), population)
    held = [population.partition.client_positions(client) for client in range(10)]
    shares = np.array([np.bincount(population.dataset.train.y[at], minlength=4) / len(at) for at in held])
    clusters = cluster_features(distance_matrix(shares), 3, population.settings.seed)
    models = {cluster: start(population) for cluster in range(int(clusters.max()) + 1)}
    size, stayed = 4 * population.nets[0].count_parameters(), False
    for number, result in enumerate(results):
        members: dict[int, list[Any]] = {cluster: [] for cluster in models}
        for client in result.cohort:
            task, cluster = Client(population, number, client), int(clusters[client])
            members[cluster].append((task.sgd(models[cluster]), task.examples))
        for cluster, trained in members.items():
            if trained:
                w, examples = zip(*trained, strict=True)
                models[cluster] = np.average(w, axis=0, weights=examples)
            stayed |= not trained
        for cluster, expected in models.items():
            found = matrix(result.state.params[str(cluster)])
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
        assert result.method["clusters"] == np.bincount(clusters).tolist()
        if number:  # round 1 has the census as well
            assert (result.traffic.down, result.traffic.up) == (4 * size, 4 * size)
    assert len(models) > 1
    assert stayed


@pytest.mark.parametrize("clustering", ["vector", "matrix"])
def test_clients_of_other_labels_get_models_of_their_own(clustering: Any) -> None:
    """The even clients hold the classes 0 and 1, the odd ones 2 and 3."""
    population = federation([16] * 8, rounds=2)
    train, owners = population.dataset.train, np.repeat(np.arange(8), 16)
    y = train.y.copy()
    y[: len(owners)] = y[: len(owners)] % 2 + 2 * (owners % 2)
    population = replace(population, dataset=replace(population.dataset, train=replace(train, y=y)))
    results, _ = run(ClusteredFedAvg(clusters=2, clustering=clustering), population)
    state = results[-1].state
    assert state.clusters.tolist() in ([0, 1] * 4, [1, 0] * 4)
    assert results[-1].method["clusters"] == [4, 4]
    assert max(results[-1].method["mean_emd"]) < 0.5
    algorithm, ctx = ClusteredFedAvg(clusters=2), population.context(1)
    sent = [algorithm.instruct_client(ctx, state, client)["model"] for client in range(4)]
    assert all(torch.equal(sent[0][key], sent[2][key]) for key in sent[0])
    assert not all(torch.equal(sent[0][key], sent[1][key]) for key in sent[0])


def test_a_client_that_diverges_spoils_its_own_cluster_alone() -> None:
    population = federation([16] * 8, rounds=1)
    x = population.dataset.train.x.copy()
    x[population.partition.client_positions(3)] = np.inf
    population = replace(
        population, dataset=replace(population.dataset, train=replace(population.dataset.train, x=x))
    )
    results, _ = run(ClusteredFedAvg(clusters=4, clustering="matrix"), population)
    state = results[-1].state
    spoilt = [
        key
        for key, model in state.params.items()
        if not all(bool(torch.isfinite(leaf).all()) for leaf in model.values())
    ]
    assert spoilt == [str(int(state.clusters[3]))]
    assert len(state.params) > 1


def test_tasks_without_classes_are_refused() -> None:
    """Such data has no label distributions to cluster by."""
    assert ClusteredFedAvg.tasks == {"classes", "labels"}
