"""In which rounds clients' own models are scored, what is sent for it, and what the record says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from fedsim.algorithms import KDIA, FedGKD, Scaffold
from fedsim.algorithms.fedavg import FedAvg
from fedsim.clients.population import Population
from fedsim.core import Context, LocalTraining
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from tests.fedsim.federations import parted
from tests.fedsim.methods import Tuned


@pytest.mark.parametrize(
    "algorithm", [KDIA(lambda_gen=0.0), FedGKD(), Scaffold()], ids=lambda a: type(a).__name__
)
def test_what_is_only_for_training_is_not_handed_over(algorithm: FedAvg) -> None:
    """Also to clients that never came."""
    population = parted(cohort_size=3, rounds=3)
    plain, found = (
        list(simulate(each, population, SerialPool(each, population), personal="last"))[-1]
        for each in (FedAvg(), algorithm)
    )
    assert found.traffic.personal == plain.traffic.personal > 0
    assert found.metrics["personal_clients"] == 6


def test_a_round_is_scored_when_it_is_due() -> None:
    """By itself: never with the global convention, at the end where clients tune, else whenever it is due."""

    def rounds(algorithm: FedAvg, population: Population, **options: Any) -> list[int]:
        results = list(simulate(algorithm, population, SerialPool(algorithm, population), **options))
        scored = [result.round for result in results if "personal_accuracy" in result.metrics]
        assert scored == [result.round for result in results if result.personal is not None]
        assert scored == [result.round for result in results if result.traffic.personal]
        return scored

    own, same = parted(rounds=3), parted("global", rounds=3)
    assert rounds(FedAvg(), same) == []
    assert rounds(Tuned(), own) == [3]
    assert rounds(Tuned(), own, personal="always") == [1, 2, 3]
    assert rounds(FedAvg(), own, evaluate_every=2) == [2, 3]
    assert rounds(FedAvg(), own, personal="last") == [3]
    assert rounds(FedAvg(), own, personal="never") == []
    assert rounds(FedAvg(), same, personal="last") == [3]


def test_the_record_tells_what_tuning_cost() -> None:
    """Two epochs of every client, all parameters; the round's own cost has nothing of it."""
    population = parted(cohort_size=2)
    (*_, last) = simulate(Tuned(), population, SerialPool(Tuned(), population))
    steps = sum(2 * -(-size // 8) for size in population.partition.sizes())
    record = last.record()
    assert record["cost"]["tuning_updates"] == steps * population.nets[0].count_parameters()
    assert record["cost"]["updates"] == population.nets[0].count_parameters() * sum(
        population.count_steps(client) for client in last.cohort
    )
    assert record["bytes"]["personal"] == 6 * record["bytes"]["down"] // 2
    assert record["metrics"]["personal_clients"] == 6
    assert record["seconds"]["personal"] > 0


@dataclass(frozen=True, kw_only=True)
class TunedArchitecture(Tuned):
    """`Tuned`, of one architecture alone."""

    tuned: int

    def plan_tuning(self, ctx: Context) -> LocalTraining | None:  # type: ignore[override]
        """None for the other architectures."""
        return super().plan_tuning(ctx) if ctx.architecture == self.tuned else None


@pytest.mark.parametrize("tuned", [0, 1])
def test_clients_that_do_not_tune_have_the_same_scores_before(tuned: int) -> None:
    """Whichever architecture tunes: every client has a row, also if the first client has no model before."""
    population, shape = parted(), {"input_shape": (12,), "num_classes": 4}
    nets = (make_net("mlp", hidden=6, **shape), make_net("mlp", hidden=8, **shape))
    population, algorithm = replace(population, nets=nets), TunedArchitecture(tuned=tuned)
    (*_, last) = simulate(algorithm, population, SerialPool(algorithm, population), personal="last")
    assert last.personal is not None
    rows = last.personal.rows()
    assert [row["client"] for row in rows] == list(range(6))
    untuned = [row for row in rows if row["client"] % 2 != tuned]
    assert all(row["loss_before"] == row["loss"] for row in untuned)
    assert any(row["loss_before"] != row["loss"] for row in rows)
    assert "personal_accuracy_before" in last.metrics
