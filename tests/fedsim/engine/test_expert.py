"""The expert, and the partition that it makes possible."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedsim.algorithms import FedAvg
from fedsim.core.run_settings import RunSettings
from fedsim.data.augment import make_augment
from fedsim.engine.experiment import Experiment
from fedsim.engine.expert import _key, train_expert
from fedsim.errors import DataError, SpecError
from fedsim.models import make_net
from fedsim.models.net import Net
from tests.fedsim.federations import gaussian_dataset, loss_spread


def finish(generator: Any) -> tuple[list[str], Any]:
    said = []
    while True:
        try:
            said.append(next(generator))
        except StopIteration as end:
            return said, end.value


def test_the_losses_are_those_of_a_trained_model_and_are_kept(tmp_path: Path) -> None:
    data = gaussian_dataset()
    net = make_net("logistic", input_shape=data.input_shape, num_classes=data.num_classes)
    said, losses = finish(train_expert(data, net, epochs=8, seed=1, cache=tmp_path))
    assert len(said) == 9
    assert losses.shape == (len(data.train),)
    assert losses.mean() < 0.5 * np.log(4)  # far below chance
    again, kept = finish(train_expert(data, net, epochs=8, seed=1, cache=tmp_path))
    assert again == ["reading the expert's losses"]
    assert np.array_equal(kept, losses)
    other, _ = finish(train_expert(data, net, epochs=9, seed=1, cache=tmp_path))
    assert len(other) == 10


def shorter(file: Path) -> None:
    np.save(file, np.load(file)[:-1])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-5]), "is damaged"),
        (lambda file: file.write_bytes(b""), "is damaged"),
        (lambda file: file.write_bytes(b"\x93NUMPY\x01\x00\xff"), "is damaged"),
        (lambda file: np.save(file, np.array([None]), allow_pickle=True), "is damaged"),
        (shorter, "does not hold a loss for each example"),
    ],
)
def test_losses_that_were_kept_and_are_damaged_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any, words: str
) -> None:
    data = gaussian_dataset()
    net = make_net("logistic", input_shape=data.input_shape, num_classes=data.num_classes)
    _, losses = finish(train_expert(data, net, epochs=1, seed=1, cache=tmp_path))
    (file,) = tmp_path.iterdir()
    damage(file)
    said, again = finish(train_expert(data, net, epochs=1, seed=1, cache=tmp_path))
    assert said[:2] == ["reading the expert's losses", "training an expert on all data, 1 epochs"]
    assert np.array_equal(again, losses)
    assert f"{file} {words}" in caplog.text
    assert np.array_equal(np.load(file), losses)


def test_losses_that_cannot_be_kept_are_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = gaussian_dataset()
    net = make_net("logistic", input_shape=data.input_shape, num_classes=data.num_classes)
    (tmp_path / "cache").write_text("no folder")
    _, losses = finish(train_expert(data, net, epochs=1, seed=1, cache=tmp_path / "cache"))
    assert len(losses) == len(data.train)
    assert "the expert's losses cannot be kept" in caplog.text


def test_an_expert_that_diverged_tells_nothing_and_is_not_kept(tmp_path: Path) -> None:
    """Its losses would order examples by chance, and be found again."""
    data = gaussian_dataset()
    huge = replace(data, train=replace(data.train, x=data.train.x * np.float32(1e30)))
    net = make_net("mlp", input_shape=data.input_shape, num_classes=data.num_classes)
    with pytest.raises(DataError, match="the expert has diverged"):
        finish(train_expert(huge, net, epochs=1, seed=1, cache=tmp_path))
    assert not list(tmp_path.iterdir())


def dropping(share: float) -> nn.Sequential:
    return nn.Sequential(OrderedDict(body=nn.Dropout(share), head=nn.Linear(12, 4)))


def test_kept_losses_are_those_of_the_same_model_on_data_read_in_the_same_way() -> None:
    data = gaussian_dataset()
    augmented = replace(data, augment=make_augment(["flip"]))
    nets = [Net(partial(dropping, share=share)) for share in (0.0, 0.5)]
    keys = [_key(read, net, epochs=1, seed=0) for read in (data, augmented) for net in nets]
    assert len(set(keys)) == 4
    # Wherever it is asked for: a net travels as its recipe.
    assert [_key(data, net, epochs=1, seed=0) for net in pickle.loads(pickle.dumps(nets))] == keys[:2]


EXPERIMENT = Experiment(
    algorithm=FedAvg(),
    settings=RunSettings(rounds=1, cohort_size=2),
    num_clients=10,
    dataset=("digits", {}),
    partition=("difficulty", {"f_ord": 1.0, "base": {"kind": "iid"}, "expert_epochs": 3}),
    models=(("logistic", {}),),
)


def test_an_experiment_sorts_easy_and_hard_examples_to_its_clients(tmp_path: Path) -> None:
    ordered = replace(EXPERIMENT, cache=tmp_path).load_population()
    kind = {"f_ord": 0.0, "base": {"kind": "iid"}, "expert_epochs": 3}
    mixed = replace(EXPERIMENT, cache=tmp_path, partition=("difficulty", kind)).load_population()
    base = replace(EXPERIMENT, partition=("iid", {})).load_population()
    losses = np.load(next(tmp_path.glob("*.npy")))
    labels = base.dataset.train.y
    for client in range(10):
        counts = base.partition.count_labels(client, labels, 10)
        assert np.array_equal(ordered.partition.count_labels(client, labels, 10), counts)
        assert np.array_equal(mixed.partition.count_labels(client, labels, 10), counts)
    means = [losses[ordered.partition.client_positions(i)].mean() for i in range(10)]
    assert means[0] < means[5] < means[9]
    spread = loss_spread(ordered.partition, losses).mean()
    assert spread < 0.7 * loss_spread(mixed.partition, losses).mean()


@pytest.mark.parametrize("base", [{"kind": "difficulty"}, {"beta": 0.1}, {"kind": "iid", "beta": 1}])
def test_a_base_that_is_none_is_refused(base: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"base\."):
        replace(EXPERIMENT, partition=("difficulty", {"base": base})).load_population()


def test_the_public_set_is_taken_away_first() -> None:
    population = replace(EXPERIMENT, partition=("iid", {}), public=0.1).load_population()
    assert population.public is not None
    assert len(population.public) == 180  # a tenth of 1,797, rounded in each of training and test set
    assert population.partition.sizes().sum() == len(population.dataset.train) == 1294


def test_data_without_a_test_set_trains_an_expert_and_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(40) % 2)
    own = replace(
        EXPERIMENT, roots=(tmp_path,), dataset=("npz", {"path": "mine.npz", "test_share": 0.0}), num_clients=4
    )
    said, population = finish(own.prepare_population())
    assert len(population.dataset.test) == 0
    assert "training an expert: epoch 3 of 3, on data without a test set" in said
    assert "npz has no test examples" in caplog.text
    assert "no model is scored: give" in caplog.text
    caplog.clear()
    replace(own, validation=0.25).load_population()
    assert "no model is scored but on the validation split: give data.dataset a test_share" in caplog.text
    caplog.clear()
    assert replace(own, tests="merged").load_population().tests is not None
    assert not caplog.text
