"""The model of the best round, in a run with patience: kept by the coordinator and in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.coordinator import CoordinatorProcess
from actors.resources import Placement
from fedsim.algorithms import FedAvg
from fedsim.base import tree
from fedsim.base.digest import digest
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.checkpoints.experiment_run import CheckpointPolicy
from fedsim.core import RunSettings
from fedsim.engine.experiment import Experiment
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.results import RoundResult
from fedsim.engine.simulation import simulate
from fedsim.engine.stopping import StopRule
from tests.fedsim.engine.test_stopping import slow_federation

POPULATION = slow_federation()
BEST, LAST = 8, 10


def make_coordinator(folder: Path) -> CoordinatorProcess:
    experiment = Experiment(
        algorithm=FedAvg(),
        settings=RunSettings(rounds=POPULATION.settings.rounds, cohort_size=2),
        num_clients=10,
        dataset=("", {}),
        partition=("", {}),
        models=(),
        stop=StopRule(metric="global_accuracy", patience=2),
    )
    policy = CheckpointPolicy(str(folder), every=1)
    return CoordinatorProcess(experiment, Placement(1, 1, 0), checkpoint_policy=policy)


def iterate_rounds(coordinator: CoordinatorProcess, folder: Path) -> Iterator[RoundResult]:
    """Its rounds, from the last checkpoint on."""
    checkpoints, pool = Checkpoints(str(folder)), SerialPool(FedAvg(), POPULATION)
    checkpoint = checkpoints.load(lambda: make_initial_state(FedAvg(), POPULATION))
    steps: Any = coordinator._run_rounds(POPULATION, pool, checkpoints, checkpoint)  # type: ignore[arg-type]
    return (step for step in steps if isinstance(step, RoundResult))


def digest_of_model(coordinator: CoordinatorProcess) -> str:
    return digest(tree.from_numpy(coordinator.get_global_model()))


def test_the_model_of_a_run_with_patience_is_that_of_the_best_round(tmp_path: Path) -> None:
    made = make_coordinator(tmp_path)
    *_, last = iterate_rounds(made, tmp_path)
    assert last.end is not None
    assert (last.round, last.end.result_round) == (LAST, BEST)
    whole = simulate(FedAvg(), POPULATION, SerialPool(FedAvg(), POPULATION))
    (best,) = (result for result in whole if result.round == BEST)
    assert digest_of_model(made) == digest(best.state.params)
    assert Checkpoints(str(tmp_path)).read_progress() == (LAST, LAST)
    assert [file.name[: len("best-000009")] for file in tmp_path.glob("best-*")] == ["best-000009"]


@pytest.mark.parametrize("after", [7, 8, 9, 10])
def test_a_run_that_goes_on_keeps_the_model_of_the_best_round(tmp_path: Path, after: int) -> None:
    whole = make_coordinator(tmp_path / "whole")
    list(iterate_rounds(whole, tmp_path / "whole"))
    folder = tmp_path / "parts"
    first = iterate_rounds(make_coordinator(folder), folder)
    while next(first).round < after:
        pass
    next(first, None)  # the checkpoint of a round is written when the next one is asked for
    first.close()  # type: ignore[attr-defined]
    again = make_coordinator(folder)
    assert [result.round for result in iterate_rounds(again, folder)] == list(range(after + 1, LAST + 1))
    assert digest_of_model(again) == digest_of_model(whole)
