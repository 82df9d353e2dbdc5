"""The model that validation chose: kept by the coordinator and in checkpoints, as good as its record says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.coordinator import CoordinatorProcess
from actors.resources import Placement
from fedsim.algorithms import KDIA, FedAvg
from fedsim.base import tree
from fedsim.base.digest import digest
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.checkpoints.experiment_run import CheckpointPolicy
from fedsim.clients.population import Population
from fedsim.core import LocalTraining, RunSettings
from fedsim.data.dataset import Examples
from fedsim.engine.evaluation.model_selection import ChosenModel, choose_better
from fedsim.engine.experiment import Experiment
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.results import RoundResult
from fedsim.engine.simulation import simulate
from jobs.run.run_result import FinalModel
from jobs.store.records import RoundRecord
from tests.fedsim.federations import federation, public_examples
from tests.fedsim.methods import QUICK

METHOD = KDIA(**QUICK["kdia"])


def split() -> Population:
    """A federation whose classes overlap, with a validation split that nobody holds: round 3 is its best."""
    rng = np.random.default_rng(2)
    population = federation(
        cohort_size=3, rounds=7, seed=2, local=LocalTraining(epochs=2, batch_size=8, lr=0.05)
    )
    train, test, validation = (
        Examples((part.x + 4 * rng.normal(size=part.x.shape)).astype(np.float32), part.y)
        for part in (population.dataset.train, population.dataset.test, public_examples())
    )
    dataset = replace(population.dataset, train=train, test=test)
    return replace(population, dataset=dataset, validation=validation, public=None)


def process(folder: Path, population: Population) -> CoordinatorProcess:
    experiment = Experiment(
        algorithm=METHOD,
        settings=RunSettings(rounds=population.settings.rounds, cohort_size=3),
        num_clients=10,
        dataset=("", {}),
        partition=("", {}),
        models=(),
    )
    return CoordinatorProcess(
        experiment, Placement(1, 1, 0), checkpoint_policy=CheckpointPolicy(str(folder), every=1)
    )


def rounds_of(made: CoordinatorProcess, population: Population, kept: Checkpoints) -> Any:
    """Its rounds, from the last checkpoint on."""
    checkpoint = kept.load(lambda: make_initial_state(METHOD, population))
    pool: Any = SerialPool(METHOD, population)
    return (r for r in made._run_rounds(population, pool, kept, checkpoint) if isinstance(r, RoundResult))


def test_a_checkpoint_has_the_seconds_of_the_first_time(tmp_path: Path) -> None:
    """A round that runs again after a loss keeps its record, by which `stop.max_seconds` counts."""
    population, kept = split(), Checkpoints(str(tmp_path))
    made = process(tmp_path, population)
    made.known_seconds = {2: 7.5}
    results = list(rounds_of(made, population, kept))
    checkpoint = kept.load(lambda: make_initial_state(METHOD, population))
    assert checkpoint is not None
    seconds = [record["seconds"]["total"] for record in checkpoint.records]
    assert seconds[1] == 7.5
    assert seconds[0] == pytest.approx(results[0].seconds["total"], abs=1e-5)


def accuracy(chosen: ChosenModel, population: Population) -> float:
    test = population.dataset.test
    params = {key: torch.from_numpy(value) for key, value in chosen.params.items()}
    x = population.dataset.normalise(tree.wrap_array(test.x))
    said = population.nets[0](params, x).argmax(-1).numpy()
    return float((said == test.y).mean())


def test_the_chosen_model_does_on_the_test_set_what_the_result_says(tmp_path: Path) -> None:
    population, final = split(), FinalModel()
    made, kept = process(tmp_path, population), Checkpoints(str(tmp_path))
    for result in rounds_of(made, population, kept):
        final.add(RoundRecord.model_validate(result.record()))
    said, chosen = final.document()["best_by_validation"], made.get_chosen_model()
    assert chosen is not None
    assert (chosen.round, chosen.model) == (said["round"], said["model"])
    assert (chosen.round, chosen.model) == (3, "teacher")
    assert chosen.value == said["validation_accuracy"]
    assert accuracy(chosen, population) == pytest.approx(said["accuracy"])


@pytest.mark.parametrize("after", [2, 5])
def test_a_run_that_goes_on_in_the_middle_has_chosen_the_same(tmp_path: Path, after: int) -> None:
    """Before the best round, and after it: then it comes out of the checkpoint."""
    population = split()
    whole = process(tmp_path / "whole", population)
    list(rounds_of(whole, population, Checkpoints(str(tmp_path / "whole"))))
    kept = Checkpoints(str(tmp_path / "parts"))
    first = rounds_of(process(tmp_path / "parts", population), population, kept)
    assert [next(first).round for _ in range(after + 1)][-1] == after + 1  # the checkpoint before is written
    first.close()
    again = process(tmp_path / "parts", population)
    found = [r.round for r in rounds_of(again, population, Checkpoints(str(tmp_path / "parts")))]
    assert found == list(range(after + 1, 8))
    chosen, chosen_again = whole.get_chosen_model(), again.get_chosen_model()
    assert chosen is not None
    assert chosen_again is not None
    assert chosen.round == chosen_again.round == 3
    assert digest(tree.from_numpy(chosen_again.params)) == digest(tree.from_numpy(chosen.params))


def test_only_a_better_model_is_written_anew_and_what_no_checkpoint_needs_goes(tmp_path: Path) -> None:
    population = split()
    made = process(tmp_path, population)
    list(rounds_of(made, population, Checkpoints(str(tmp_path))))
    chosen = made.get_chosen_model()
    assert chosen is not None
    (file,) = tmp_path.glob("chosen-*")
    assert file.name.startswith(f"chosen-{chosen.round:06d}-")


def test_several_architectures_are_chosen_together_and_without_validation_nothing_is() -> None:
    population = federation(rounds=1)
    (plain,) = simulate(FedAvg(), population, SerialPool(FedAvg(), population))
    assert choose_better(None, FedAvg(), population, plain) is None
    nets = (population.nets[0], federation(hidden=5).nets[0])
    two = replace(population, nets=nets, validation=population.public)
    (result,) = simulate(FedAvg(), two, SerialPool(FedAvg(), two))
    best = choose_better(None, FedAvg(), two, result)
    assert best is not None
    assert {number: part.keys() for number, part in best.params.items()} == {
        "0": set(nets[0].keys),
        "1": set(nets[1].keys),
    }
    assert choose_better(best, FedAvg(), two, replace(result, round=2)) is best
