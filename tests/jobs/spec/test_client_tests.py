"""`data.tests` and `evaluation.personal` of a spec, on their way to the population."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.base.costs import Cost
from fedsim.base.progress import run_to_end
from fedsim.engine.evaluation.model_selection import list_candidates
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import SpecError
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.resolve import resolve_spec
from jobs.store.records import RoundRecord, RunTotals


def spec(tests: Any, **parts: Any) -> JobSpec:
    data = {"dataset": "digits", "tests": tests, **parts.pop("data", {})}
    small = {"clients": {"total": 8, "fraction": 0.25}, "rounds": 2, "local": {"steps": 2}}
    return parse_spec({"algorithm": "fedavg", "data": data, **small, **parts})


def test_a_share_of_every_client_is_for_testing(tmp_path: Path) -> None:
    """Training and test set of digits, 1,797 in all; half of each client's, rounded down."""
    experiment = resolve_spec(spec({"kind": "merged", "share": 0.5}), Settings(home=tmp_path))
    population = experiment.load_population()
    assert population.tests is not None
    tests, trained = population.tests.sizes(), population.partition.sizes()
    assert tests.sum() + trained.sum() == 1797
    np.testing.assert_array_equal(tests, (tests + trained) // 2)


def test_shorthands_and_defaults(tmp_path: Path) -> None:
    merged = spec("merged")
    assert (merged.data.tests.kind, merged.data.tests.share) == ("merged", 0.25)
    assert parse_spec(merged.model_dump(mode="json")) == merged
    plain = parse_spec({"algorithm": "fedavg"})
    assert parse_spec(plain.model_dump(mode="json")) == plain
    assert resolve_spec(plain, Settings(home=tmp_path)).load_population().tests is None


@pytest.mark.parametrize(
    ("tests", "parts", "words"),
    [
        ("matched", {"data": {"partition": {"kind": "sampled", "examples": 5}}}, "draw from the whole set"),
        ("merged", {"data": {"partition": {"kind": "difficulty"}}}, "an expert knows the training set only"),
        ("merged", {"curriculum": {"data": {"score": "expert_loss"}}}, "an expert knows the training set"),
    ],
)
def test_what_does_not_go_together(tests: str, parts: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec(spec(tests, **parts), Settings(home=tmp_path))
    (fault,) = [fault for fault in caught.value.errors if fault.path == "data.tests.kind"]
    assert fault.value == tests
    assert words in fault.message


def test_a_method_of_one_class_each_is_refused_where_examples_carry_several_labels(tmp_path: Path) -> None:
    x, y = np.zeros((12, 4), np.float32), np.eye(12, 3, dtype=np.float32)
    np.savez(tmp_path / "several.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    settings = Settings(home=tmp_path, data_roots=(tmp_path,))
    data = {"dataset": {"name": "npz", "path": "several.npz"}, "partition": "iid"}
    assert resolve_spec(spec("global", data=data), settings)
    for name in ("fedgen", "feddistill"):
        with pytest.raises(SpecError) as caught:
            resolve_spec(spec("global", data=data, algorithm=name), settings)
        (fault,) = caught.value.errors
        assert fault.path == "algorithm.name"
        assert "one class per example" in fault.message


def test_a_file_that_was_replaced_is_looked_at_again(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, data_roots=(tmp_path,))
    data = {"dataset": {"name": "npz", "path": "mine.npz"}, "partition": "iid"}
    wanted = spec("global", data=data, clients={"total": 20, "fraction": 0.5})
    for examples in (30, 10):
        x, y = np.zeros((examples, 4), np.float32), np.arange(examples) % 2
        np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        if examples == 30:
            assert resolve_spec(wanted, settings)
    with pytest.raises(SpecError, match="more clients than training examples: npz has 10"):
        resolve_spec(wanted, settings)


def test_a_record_says_what_the_round_cost_and_an_older_one_is_still_read(tmp_path: Path) -> None:
    experiment = resolve_spec(spec("matched"), Settings(home=tmp_path))
    population = experiment.load_population()
    pool = SerialPool(experiment.algorithm, population)
    results = list(simulate(experiment.algorithm, population, pool, personal=experiment.personal))
    records = [RoundRecord.model_validate(result.record()) for result in results]
    each = population.nets[0].count_parameters()
    assert [record.cost.updates for record in records if record.cost] == [2 * 2 * each] * 2
    older = {key: value for key, value in results[0].record().items() if key != "cost"}
    del older["bytes"]["personal"], older["seconds"]["personal"]
    known = RoundRecord.model_validate(older)
    assert known.cost is None
    assert RunTotals.of([known, *records]).cost == records[0].cost + records[1].cost  # type: ignore[operator]
    assert RunTotals.of([known]).cost == Cost(updates=0, flops=0)


def test_architectures_are_scored_each_with_its_own(tmp_path: Path) -> None:
    """Two models dealt in turn: pooled over the clients, and each client by the model that it runs."""
    both = spec("matched", model=[{"name": "mlp", "hidden": 8}, "logistic"])
    experiment = resolve_spec(both, Settings(home=tmp_path))
    population, algorithm = experiment.load_population(), experiment.algorithm
    state = make_initial_state(algorithm, population)
    pool = SerialPool(algorithm, population)
    scores = run_to_end(pool.begin_personal_evaluation(population.context(0), state))
    sizes = [sum(value.numel() * 4 for value in net.init(0).values()) for net in population.nets]
    assert scores.bytes_down == sum(sizes[client % 2] for client in scores.clients.tolist())


@pytest.mark.parametrize("algorithm", ["fedper", {"name": "fedbabu", "tuning_epochs": 1}])
def test_a_sample_of_the_clients_has_the_scores_of_all(algorithm: Any, tmp_path: Path) -> None:
    """The same clients after both rounds, with the scores that they have when all are scored."""
    found = {}
    for clients in (None, 3):
        evaluation = {"personal": "always", "personal_clients": clients}
        experiment = resolve_spec(
            spec("matched", algorithm=algorithm, evaluation=evaluation), Settings(home=tmp_path)
        )
        population = experiment.load_population()
        pool = SerialPool(experiment.algorithm, population)
        found[clients] = list(simulate(experiment.algorithm, population, pool, personal="always"))
    assert [each.digest for each in found[None]] == [each.digest for each in found[3]]
    for every, some in zip(found[None], found[3], strict=True):
        assert every.personal is not None
        assert some.personal is not None
        assert some.metrics["personal_clients"] == 3
        assert some.traffic.personal == pytest.approx(every.traffic.personal * 3 / 8)
        rows = {row["client"]: row for row in every.personal.rows()}
        assert some.personal.rows() == [rows[client] for client in some.personal.clients.tolist()]
    first, last = (each.personal.clients.tolist() for each in found[3] if each.personal)
    assert first == last
    assert len(set(first)) == 3


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"personal_clients": 9}, "the federation has 8 clients"),
        ({"personal_clients": 3, "personal": "never"}, "scores no personal model"),
    ],
)
def test_wrong_numbers_of_scored_clients(evaluation: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec(spec("matched", evaluation=evaluation), Settings(home=tmp_path))
    (fault,) = caught.value.errors
    assert fault.path == "evaluation.personal_clients"
    assert words in str(fault)


METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedensemble": {},
    "feddistill": {},
    "fedgen": {"generator_steps": 2},
    "fedcl": {"generator_steps": 2},
}


def test_the_methods_of_one_table_are_scored_on_the_same_examples(tmp_path: Path) -> None:
    """FedGen's convention: half of the training data, all of the test data, each client on its labels."""
    data = {"partition": {"kind": "dirichlet", "beta": 0.3, "share": 0.5, "min_size": 1}}
    shards: list[list[int]] = []
    for name, parameters in METHODS.items():
        algorithm = {"name": name, **parameters}
        experiment = resolve_spec(spec("labels", data=data, algorithm=algorithm), Settings(home=tmp_path))
        population = experiment.load_population()
        train, test = population.dataset.train.y, population.dataset.test.y
        assert (
            abs(population.partition.sizes().sum() - len(train) / 2) <= 5
        )  # half of every class, rounded down
        pool = SerialPool(experiment.algorithm, population)
        result = list(simulate(experiment.algorithm, population, pool, evaluate_every=2))[-1]
        assert result.personal is not None
        assert population.tests is not None
        shards.append(result.personal.tests.tolist())
        for client in range(8):
            held = set(train[population.partition.client_positions(client)].tolist())
            found = test[population.tests.client_positions(client)]
            each = np.bincount(test) // 8
            assert len(found) == sum(each[label] for label in held)
            assert set(found.tolist()) <= held
        tests, correct = result.personal.tests, result.personal.correct
        assert result.metrics["personal_accuracy"] == correct.sum() / tests.sum()
        if name in ("fedavg", "fedgen", "fedcl"):
            x = population.dataset.normalise(torch.from_numpy(population.dataset.test.x.copy()))
            said = population.nets[0](result.state.params, x).argmax(-1).numpy()
            right = [
                int((said[rows] == test[rows]).sum())
                for rows in map(population.tests.client_positions, range(8))
            ]
            assert correct.tolist() == right
    assert shards == [shards[0]] * len(METHODS)


def test_a_list_of_kinds_is_several_views_of_one_run(tmp_path: Path) -> None:
    several = spec(["matched", "global"])
    assert several == spec({"kind": "matched", "also": ["global"]})
    assert parse_spec(several.model_dump(mode="json")) == several
    assert spec(["matched"]) == spec("matched")
    assert spec([{"kind": "merged", "share": 0.5}, "global"]).data.tests.share == 0.5
    population = resolve_spec(several, Settings(home=tmp_path)).load_population()
    assert population.more_tests == {"global": None}
    assert describe_experiment(several) == describe_experiment(spec("matched"))
    assert describe_experiment(spec(["global", "matched"])) == describe_experiment(spec("global"))


@pytest.mark.parametrize(
    ("tests", "path", "words"),
    [
        ([], "data.tests", "such as [matched, global]"),
        ([1], "data.tests", "such as [matched, global]"),
        (["matched", "matched"], "data.tests.also", "name each kind once"),
        (["matched", "merged"], "data.tests.also", "use [merged, global]"),
        (["merged", "matched"], "data.tests.also", "use [merged, global]"),
        (["matched", "mine"], "data.tests.also.0", "one of"),
        ("validation", "data.tests.kind", "such as [matched, validation]"),
    ],
)
def test_a_wrong_list_of_kinds_is_named(tests: Any, path: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(tests)
    assert [fault.path for fault in caught.value.errors] == [path]
    assert words in str(caught.value)


def test_every_kind_of_a_list_is_checked(tmp_path: Path) -> None:
    sampled = {"partition": {"kind": "sampled", "examples": 5}}
    with pytest.raises(SpecError) as caught:
        resolve_spec(spec(["global", "matched", "labels"], data=sampled), Settings(home=tmp_path))
    paths = [fault.path for fault in caught.value.errors if fault.path.startswith("data.tests")]
    assert paths == ["data.tests.also.0", "data.tests.also.1"]


def test_personal_models_are_scored_on_the_validation_set(tmp_path: Path) -> None:
    """FedAvg's personal models are the global model, so their parts of the set together have its score."""

    def run(tests: Any, **evaluation: Any) -> tuple[str, dict[str, float]]:
        experiment = resolve_spec(
            spec(tests, evaluation={"validation": 0.3, "personal": "last", **evaluation}),
            Settings(home=tmp_path),
        )
        population = experiment.load_population()
        pool = SerialPool(experiment.algorithm, population)
        rounds = list(simulate(experiment.algorithm, population, pool, personal="last"))
        return rounds[-1].digest, dict(rounds[-1].metrics)

    for first in ("matched", "labels", "merged", "global"):
        digest, scores = run([first, "validation"])
        assert run(first)[0] == digest
        assert scores["personal_validation_accuracy"] == scores["global_validation_accuracy"]
        # Without test examples the scores on the validation set are the same, and the only ones.
        blind = run([first, "validation"], test=False)
        kept = {
            name: value for name, value in scores.items() if "_validation_" in name or name == "train_loss"
        }
        assert blind == (digest, kept)
        # No single personal model can be kept as the run's.
        assert [each.model for each in list_candidates(scores)] == ["global"]


def test_scores_on_the_validation_set_need_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"data\.tests\.also\.0.*set evaluation\.validation, such as 0\.1"):
        resolve_spec(spec(["matched", "validation"]), Settings(home=tmp_path))


def test_a_run_can_stop_by_a_further_view(tmp_path: Path) -> None:
    rule = {"metric": "personal_global_accuracy_mean", "target": 0.5}
    more = {"stop": rule, "evaluation": {"personal": "always"}}
    assert resolve_spec(spec(["matched", "global"], **more), Settings(home=tmp_path)).stop is not None
    with pytest.raises(SpecError, match="no measure of quality"):
        resolve_spec(spec("matched", **more), Settings(home=tmp_path))
