"""CFL: FedAvg while nothing splits, a split once more in NumPy, planted clusters that are found."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import CFL, FedAvg
from fedsim.core import LocalTraining
from fedsim.techniques.clustering import bisect_by_similarity
from tests.fedsim.federations import federation
from tests.fedsim.linear_models import matrix, run
from tests.fedsim.replay import Client, start


@pytest.mark.parametrize("cohort", [6, 10])
def test_without_a_split_it_is_fedavg_bit_for_bit(cohort: int) -> None:
    """Of the six clients of a cohort nobody splits, whatever the norms."""
    population = federation(rounds=3, cohort_size=cohort)
    algorithm = CFL(eps_1=0.0) if cohort == 10 else CFL(eps_1=1e9, eps_2=0.0, start_round=0)
    plain, _ = run(FedAvg(), population)
    results, _ = run(algorithm, population)
    for one, other in zip(results, plain, strict=True):
        assert all(
            torch.equal(value, one.state.params["0"][key]) for key, value in other.state.params.items()
        )
        assert (one.traffic.down, one.traffic.up) == (other.traffic.down, other.traffic.up)
        assert one.cost.flops == other.cost.flops
        assert one.method["clusters"] == [10]


def crossed(population: Any, sizes: list[int]) -> Any:
    """Every second client calls each class by the name of the next one."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    train = population.dataset.train
    y = train.y.copy()
    y[: len(owners)] = (y[: len(owners)] + owners % 2) % 4
    return replace(population, dataset=replace(population.dataset, train=replace(train, y=y)))


def test_three_rounds_in_numpy() -> None:
    """A round without splits, one with a split, and one in which both clusters train."""
    local = LocalTraining(epochs=1, batch_size=8, lr=0.2)
    sizes = [16, 24, 40, 8, 12, 20]
    population = crossed(federation(sizes, model="logistic", rounds=3, local=local), sizes)
    results, _ = run(CFL(eps_1=10.0, eps_2=0.1, start_round=1), population)
    w, groups = {0: start(population)}, {0: list(range(6))}
    for number, result in enumerate(results):
        of = {client: group for group, members in groups.items() for client in members}
        trained = {client: Client(population, number, client).sgd(w[of[client]]) for client in range(6)}
        norms = []
        for group, members in list(groups.items()):
            changes = np.array([(trained[client] - w[group]).ravel() for client in members])
            lengths = np.linalg.norm(changes, axis=1)
            weights = [sizes[client] for client in members]
            norms.append((np.linalg.norm(np.average(changes, 0, weights)), lengths.max()))
            if number == 0 or len(members) < 3 or norms[-1][0] >= 10 or norms[-1][1] <= 0.1:
                continue
            cosines, everybody = changes @ changes.T / np.outer(lengths, lengths), set(range(len(members)))
            cuts = [cut for n in range(1, len(members)) for cut in combinations(range(1, len(members)), n)]
            cost = [max(cosines[i, j] for i in cut for j in everybody - set(cut)) for cut in cuts]
            best = cuts[int(np.argmin(cost))]
            new = len(groups)
            groups[new] = [members[i] for i in best]
            groups[group] = [client for client in members if client not in groups[new]]
        w = {
            group: np.average([trained[c] for c in members], 0, [sizes[c] for c in members])
            for group, members in groups.items()
        }
        assert result.method["clusters"] == [len(groups[group]) for group in range(len(groups))]
        assert result.method["mean_update_norms"] == pytest.approx([mean for mean, _ in norms], rel=1e-4)
        assert result.method["largest_update_norms"] == pytest.approx([most for _, most in norms], rel=1e-4)
        for group, expected in w.items():
            found = matrix(result.state.params[str(group)])
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    assert len(groups) > 1


def test_clusters_send_the_bytes_of_fedavg() -> None:
    """A client receives the model of its own cluster alone, and `models` is free."""
    population = federation(rounds=4)
    plain, _ = run(FedAvg(), population)
    results, _ = run(CFL(eps_1=1e9, eps_2=0.0, start_round=1), population)
    assert len(results[1].method["clusters"]) == 2
    for one, other in zip(results, plain, strict=True):
        assert (one.traffic.down, one.traffic.up) == (other.traffic.down, other.traffic.up)
        assert one.traffic.by_payload == {"model": other.traffic.down, "params": other.traffic.up}


def test_planted_clusters_are_found_and_trained_apart() -> None:
    """The common model stands still between the two groups, whose clients still pull."""
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    population = crossed(federation([16] * 10, rounds=12, local=local), [16] * 10)
    algorithm = CFL(eps_1=0.15, eps_2=0.3, start_round=4)
    results, _ = run(algorithm, population)
    clusters = results[-1].state.clusters.tolist()
    assert clusters in ([0, 1] * 5, [1, 0] * 5)
    plain, _ = run(FedAvg(), population)
    assert results[-1].metrics["train_loss"] < 0.5 * plain[-1].metrics["train_loss"]


def test_a_client_without_examples_takes_no_split() -> None:
    """Its update is 0, similar to none: alone it would be the cluster that is cut off."""
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    whole = crossed(federation([16] * 10, rounds=12, local=local), [16] * 10)
    offsets = np.concatenate([[0], whole.partition.offsets])
    population = replace(
        whole,
        partition=replace(whole.partition, offsets=offsets),
        settings=replace(whole.settings, cohort_size=11),
    )
    results, _ = run(CFL(eps_1=0.15, eps_2=0.3, start_round=4), population)
    clusters = results[-1].state.clusters.tolist()
    assert clusters[0] == 0
    assert clusters[1:] in ([0, 1] * 5, [1, 0] * 5)


def test_the_cut_leaves_the_least_similar_clients_on_two_sides() -> None:
    """Two chains of neighbours: complete linkage would cut a chain in the middle."""
    places = np.array([0.0, 1.0, 2.0, 3.0, 10.0, 11.5, 13.0])
    similarities = -np.abs(places[:, None] - places)
    assert bisect_by_similarity(similarities).tolist() == [False] * 4 + [True] * 3
    assert bisect_by_similarity(similarities[::-1, ::-1]).tolist() == [False] * 3 + [True] * 4
