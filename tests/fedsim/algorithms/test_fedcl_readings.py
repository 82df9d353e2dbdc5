"""FedCL's other readings: whose models are averaged, the running tau, and the values that a record tells."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedCL
from fedsim.algorithms.generators import fedcl
from fedsim.core import ReducedUpdates
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from tests.fedsim.algorithms.test_fedcl_clients import entropies
from tests.fedsim.federations import federation
from tests.fedsim.methods import FREEZING, QUICK, run

LIGHT = QUICK["fedcl"]


class Listening(FedCL):
    """FedCL whose server notes the models that it received."""

    def aggregate(self, ctx: Any, state: Any, reduced: ReducedUpdates) -> Any:
        RECEIVED.append(dict(zip(reduced.clients, reduced["models"], strict=True)))
        return super().aggregate(ctx, state, reduced)


RECEIVED: list[dict[int, Any]] = []


def test_with_frozen_the_model_is_the_mean_of_the_cohort_and_of_the_frozen_clients() -> None:
    """Recomputed in NumPy over all phases; one client holds nothing and never counts."""
    RECEIVED.clear()
    population = federation([3, 8, 11, 0, 17, 20, 24, 25, 30, 38], cohort_size=6, rounds=14)
    results = run(Listening(**FREEZING, average="frozen"), population)
    last: dict[int, Any] = {}
    frozen: list[int] = []
    reasons = []
    for result, came in zip(results, RECEIVED, strict=True):
        last |= came
        counted = [last[client] for client in sorted({*came, *frozen} - {3})]
        for key, value in result.state.params.items():
            direct = np.mean([model[key].double().numpy() for model in counted], 0)
            np.testing.assert_allclose(value.numpy(), direct, rtol=1e-6, atol=1e-9)
        reasons.append(result.method["left"])
        frozen = [] if result.method["left"] else result.method["frozen"]
        assert float(result.state.sums["mean"]["mass"]) == len(set(frozen) - {3})
    assert set(reasons) > {None}


def test_without_phases_and_with_clients_of_one_size_frozen_is_the_mean_of_the_cohort() -> None:
    population = federation([16] * 6, cohort_size=3, rounds=3)
    ends = [
        run(FedCL(**LIGHT, levels=(), average=average), population)[-1].state.params
        for average in ("frozen", "cohort")
    ]
    for key, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][key], rtol=1e-5, atol=1e-6)


def test_with_all_the_model_moves_by_the_share_of_the_cohort() -> None:
    """Eq. 21: after all have come, w' - w = K/N of the mean change of the cohort's own last models."""
    population = federation([16] * 6, cohort_size=2, rounds=12)
    method = FedCL(**LIGHT, levels=(), average="all")
    pool, seen = SerialPool(method, population), set[int]()
    before: Any = None
    checked = 0
    for result in simulate(method, population, pool):
        now = {k: kept["model"] for k, kept in pool.client_states().items()}
        if len(seen) == 6:
            for key, value in result.state.params.items():
                own = [(now[k][key] - before[1][k][key]).double().numpy() for k in result.cohort]
                moved = (value - before[0][key]).double().numpy()
                np.testing.assert_allclose(moved, 2 / 6 * np.mean(own, 0), atol=1e-6)
                checked += 1
        seen |= set(result.cohort)
        before = (result.state.params, now)
    assert checked


def test_selected_only_is_the_old_name_of_the_mean_of_the_cohort(caplog: pytest.LogCaptureFixture) -> None:
    fedcl.warn_of_selected_only.cache_clear()
    with caplog.at_level(logging.WARNING):
        old = [FedCL(**LIGHT, selected_only=True) for _ in range(2)]
    assert old == [FedCL(**LIGHT, average="cohort")] * 2
    assert ["average: cohort" in record.message for record in caplog.records] == [True]
    assert FedCL(selected_only=False).average == "frozen"


def test_a_running_tau_is_the_exponential_mean_of_the_cohorts_losses() -> None:
    """0.9 of the old value and 0.1 of the mean loss of the cohort's examples, by the trained models."""
    population = federation(cohort_size=4, rounds=4)
    method = FedCL(**LIGHT, tau="running", cap=2, average="all")
    pool, tau = SerialPool(method, population), np.log(10)
    data, net = population.dataset.train, population.nets[0]
    for result in simulate(method, population, pool):
        kept, losses, easy = pool.client_states(), [], []
        for client in result.cohort:
            rows = population.partition.client_positions(client)
            logits = net(kept[client]["model"], torch.from_numpy(np.asarray(data.x[rows]))).double().numpy()
            found = entropies(logits, data.y[rows])
            losses.append(found)
            easy.append(found <= tau - 2 * 0.5 / np.e)
        share = np.mean(np.concatenate(easy))
        assert result.metrics["largest_confidence_share"] == pytest.approx(share, abs=1e-6)
        tau = 0.9 * tau + 0.1 * np.mean(np.concatenate(losses))
        assert result.method["tau"] == pytest.approx(tau, rel=1e-5)
        assert result.state.tau == pytest.approx(tau, rel=1e-5)
    assert tau < np.log(10) - 0.1


def test_a_running_tau_begins_as_the_fixed_one_and_travels() -> None:
    population = federation(cohort_size=4, rounds=1)
    first = [run(FedCL(**LIGHT, cap=2, tau=tau), population)[0].state.params for tau in (None, "running")]
    for key, value in first[0].items():
        torch.testing.assert_close(value, first[1][key], rtol=1e-5, atol=1e-6)  # tau travels as float32
    longer = federation(cohort_size=4, rounds=3)
    fixed, running = (run(FedCL(**LIGHT, cap=2, tau=tau), longer) for tau in (None, "running"))
    assert not torch.equal(fixed[-1].state.params["head.weight"], running[-1].state.params["head.weight"])
    for one, other in zip(fixed, running, strict=True):
        assert other.traffic.down - one.traffic.down == 4 * len(one.cohort)
        assert other.traffic.up - one.traffic.up == 4 * len(one.cohort)


@pytest.mark.parametrize("options", [{"tau": "running"}, {"average": "all"}])
def test_stacked_clients_compute_the_same(options: dict[str, Any]) -> None:
    population = federation(cohort_size=6, rounds=3)
    method = FedCL(**FREEZING, **options)
    alone, stacked = (
        list(simulate(method, population, pool))[-1].state.params
        for pool in (SerialPool(method, population), StackedPool(method, population, 3))
    )
    for key, value in alone.items():
        torch.testing.assert_close(value, stacked[key], rtol=1e-4, atol=1e-5)


def test_a_record_counts_the_rounds_of_its_phase() -> None:
    results = run(FedCL(**FREEZING), federation(cohort_size=6, rounds=14))
    lasted, expected = [result.method["phase_rounds"] for result in results], []
    for result in results:
        over = result.method["phase"] == "over"
        earlier = [r.method["phase"] for r in results[: result.round]]
        expected.append(0 if over else earlier.count(result.method["phase"]))
    assert lasted == expected
