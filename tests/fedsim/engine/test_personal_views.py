"""Several views of one run: scores by several test conventions, and after each of a client's stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import AcePFL, FedAvg
from fedsim.clients.population import Population
from fedsim.core import Algorithm, LocalTraining, RunSettings
from fedsim.core.personal_scores import scores_from_rows
from fedsim.data.federation import make_federation
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import SpecError
from fedsim.models import make_net
from tests.fedsim.federations import gaussian_dataset, public_examples
from tests.fedsim.methods import Tuned


def viewed(tests: str, *more: str, rounds: int = 2) -> Population:
    """Six clients of a few classes each."""
    data = gaussian_dataset(400)
    shared = make_federation(
        data, "dirichlet", num_clients=6, seed=3, tests=tests, more_tests=more, beta=0.2, min_size=4
    )
    net = make_net("mlp", input_shape=data.input_shape, num_classes=data.num_classes, hidden=6)
    local = LocalTraining(epochs=1, batch_size=8, lr=0.1)
    return Population(
        dataset=shared.dataset,
        partition=shared.train,
        tests=shared.tests,
        more_tests=shared.more_tests,
        public=public_examples(),
        nets=(net,),
        settings=RunSettings(seed=5, rounds=rounds, cohort_size=6, local=local),
    )


def run(algorithm: Algorithm, population: Population) -> list[RoundResult]:
    pool = SerialPool(algorithm, population)
    return list(simulate(algorithm, population, pool, personal="always"))


@pytest.mark.parametrize("algorithm", [FedAvg(), Tuned()], ids=["one-stage", "tuned"])
@pytest.mark.parametrize(("first", "second"), [("matched", "global"), ("global", "labels")])
def test_one_run_with_two_conventions_is_two_runs(algorithm: Algorithm, first: str, second: str) -> None:
    """Each view has the scores of a run with its convention alone, in its own names."""
    both = run(algorithm, viewed(first, second))
    apart = [run(algorithm, viewed(name)) for name in (first, second)]
    for result, one, other in zip(both, *apart, strict=True):
        assert result.digest == one.digest == other.digest
        expected = dict(one.metrics)
        for name, value in other.metrics.items():
            if name.startswith("personal_") and name != "personal_untested":
                expected[name.replace("personal_", f"personal_{second}_", 1)] = value
        assert result.metrics == expected
        assert result.traffic == one.traffic


def test_merged_tests_can_be_seen_by_each_client_and_by_all() -> None:
    population = viewed("merged", "global")
    last = run(FedAvg(), population)[-1]
    assert last.personal is not None
    assert last.personal.tests.sum() == len(population.dataset.test)
    assert set(last.personal.more["global"].tests.tolist()) == {len(population.dataset.test)}
    assert last.metrics["personal_global_accuracy"] == last.metrics["global_accuracy"]
    with pytest.raises(SpecError, match="take it as the first convention"):
        viewed("global", "merged")


def test_a_client_without_tests_of_one_convention_has_the_others() -> None:
    population = viewed("matched", "global")
    assert population.tests is not None
    sizes = population.tests.sizes().copy()
    sizes[[1, 2]] = [0, sizes[1] + sizes[2]]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    population = replace(population, tests=replace(population.tests, offsets=offsets))
    scores = run(FedAvg(), population)[-1].personal
    assert scores is not None
    assert scores.clients.tolist() == [0, 2, 3, 4, 5]
    assert scores.more["global"].clients.tolist() == list(range(6))
    assert scores.metrics()["personal_untested"] == 1
    rows = scores.rows()
    assert [row["client"] for row in rows] == scores.list_evaluated() == list(range(6))
    assert [row["tests_global"] for row in rows] == [len(population.dataset.test)] * 6
    assert (rows[1]["tests"], rows[1]["correct"]) == (0, 0)
    assert scores_from_rows(rows).accuracies().tolist() == scores.accuracies().tolist()


def test_stacked_clients_have_the_same_views() -> None:
    population = viewed("matched", "global")
    alone = run(FedAvg(), population)
    pool = StackedPool(FedAvg(), population, 3)
    for one, other in zip(alone, simulate(FedAvg(), population, pool, personal="always"), strict=True):
        assert other.metrics == pytest.approx(one.metrics, rel=1e-4, abs=1e-5)


def test_ace_is_scored_after_its_own_examples_and_after_the_public_set() -> None:
    """`_before` is the model that the client's state holds after SGD on its own examples, in plain torch."""
    population, method = viewed("matched", rounds=2), AcePFL()
    pool = SerialPool(method, population)
    test = population.dataset.test
    for result in simulate(method, population, pool, personal="always"):
        right, total = 0, 0
        for client, kept in pool.client_states().items():
            rows = population.test_positions(client)
            with torch.no_grad():
                logits = population.nets[0](kept["model"], torch.tensor(test.x[rows]))
            right += int((logits.argmax(-1).numpy() == test.y[rows]).sum())
            total += len(rows)
        assert result.metrics["personal_accuracy_before"] == pytest.approx(right / total)
        after: Any = result.metrics["personal_loss"]
        assert after != result.metrics["personal_loss_before"]
