"""The validation split: taken from the training data first, scored beside the test set, chosen by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsim.algorithms import FedAvg
from fedsim.base.costs import Traffic
from fedsim.data.federation import take_validation
from fedsim.engine.evaluation.model_selection import ChosenModel, choose_better
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.engine.worker import count_shards
from jobs.run.run_result import FinalModel
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import resolve_spec
from jobs.store.records import Engine, RoundRecord, Seconds
from tests.fedsim.federations import federation, gaussian_dataset


def test_the_split_is_a_random_share_that_nobody_else_holds() -> None:
    data = gaussian_dataset()
    left, taken = take_validation(data, 0.25, seed=3)
    assert taken is not None
    assert (len(left.train), len(taken), len(left.test)) == (144, 48, len(data.test))
    both = np.concatenate([left.train.x, taken.x])
    assert np.array_equal(np.unique(both, axis=0), np.unique(data.train.x, axis=0))
    assert take_validation(data, 0.0, seed=3) == (data, None)
    assert not np.array_equal(taken.x, data.train.x[:48])


def test_models_are_scored_on_it_beside_the_test_set() -> None:
    population = federation(rounds=2)
    split = replace(population, validation=population.dataset.test.select_rows(slice(10)))
    assert (count_shards(population), count_shards(split)) == (1, 2)
    plain = list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))
    found = list(simulate(FedAvg(), split, SerialPool(FedAvg(), split)))
    part = replace(population.dataset, test=population.dataset.test.select_rows(slice(10)))
    small = replace(population, dataset=part)
    alone = list(simulate(FedAvg(), small, SerialPool(FedAvg(), small)))
    for one, both, other in zip(plain, found, alone, strict=True):
        assert both.metrics["global_accuracy"] == one.metrics["global_accuracy"]
        assert both.metrics["global_validation_accuracy"] == other.metrics["global_accuracy"]
        assert both.metrics["global_validation_loss"] == pytest.approx(other.metrics["global_loss"])
        assert both.digest == one.digest


def test_a_spec_keeps_a_share_apart() -> None:
    spec: dict[str, Any] = {
        "algorithm": "fedavg",
        "data": {"dataset": "digits", "limit": 200},
        "evaluation": {"validation": 0.1},
        "clients": {"total": 10},
    }
    population = resolve_spec(parse_spec(spec), Settings.from_env()).load_population()
    assert population.validation is not None
    assert len(population.validation) == 20
    assert len(population.dataset.train) == 180


def record(number: int, **metrics: float) -> RoundRecord:
    return RoundRecord(
        round=number,
        digest="",
        cohort=1,
        seconds=Seconds(total=1.0),
        bytes=Traffic(down=0, up=0),
        metrics=metrics,
        engine=Engine(pool="serial"),
    )


def test_the_final_model_is_chosen_by_validation_and_the_best_on_test_is_named_so() -> None:
    final = FinalModel()
    assert final.document() == {}
    final.add(record(1, global_accuracy=0.9))
    assert final.document() == {}
    final.add(record(2, global_accuracy=0.5, global_validation_accuracy=0.6))
    final.add(
        record(
            3,
            global_accuracy=0.8,
            global_validation_accuracy=0.5,
            teacher_accuracy=0.7,
            teacher_validation_accuracy=0.75,
        )
    )
    assert final.document() == {
        "best_by_validation": {
            "round": 3,
            "model": "teacher",
            "accuracy": 0.7,
            "validation_accuracy": 0.75,
        },
        "best_on_test": {"round": 3, "model": "global", "accuracy": 0.8, "validation_accuracy": 0.5},
    }


def test_where_there_is_no_test_set_validation_chooses_all_the_same() -> None:
    whole = federation(rounds=2)
    data = replace(whole.dataset, test=whole.dataset.test.select_rows(slice(0)))
    population, final = replace(whole, dataset=data, validation=whole.public), FinalModel()
    best: ChosenModel | None = None
    for result in simulate(FedAvg(), population, SerialPool(FedAvg(), population)):
        best = choose_better(best, FedAvg(), population, result)
        final.add(RoundRecord.model_validate(result.record()))
    assert best is not None
    found = {
        "round": best.round,
        "model": "global",
        "accuracy": None,
        "validation_accuracy": best.value,
    }
    assert final.document() == {"best_by_validation": found}
