"""Small presets whose data has to be fetched by hand, on samples in the formats of that data."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from jobs.settings import Settings
from jobs.spec import load_spec
from jobs.spec.resolve import resolve_spec
from tests.fedsim.data.samples import TEN, write_batch, write_folders, write_idx, write_wav

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
FEW = ("rounds=1", "clients.total=4", "clients.fraction=0.5", "data.partition.min_size=2")
GENERATOR = ("local.epochs=1", "algorithm.generator_epochs=1", "algorithm.generator_batches=2")


def write_cifar100(root: Path) -> None:
    folder = root / "cifar-100-python"
    for part, number in (("train", 200), ("test", 100)):
        write_batch(folder / part, [label % 100 for label in range(number)], b"fine_labels")
    names = {b"fine_label_names": [b"f%d" % label for label in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))


def write_cinic10(root: Path) -> None:
    write_folders(root / "CINIC-10", TEN, train=10, test=2, size=32)


def write_mnist(root: Path) -> None:
    for prefix, number in (("train", 200), ("t10k", 50)):
        images = np.arange(number * 784).reshape(-1, 28, 28) % 251
        write_idx(root / "MNIST" / "raw" / f"{prefix}-images-idx3-ubyte", images)
        write_idx(root / "MNIST" / "raw" / f"{prefix}-labels-idx1-ubyte", np.arange(number) % 10)


def write_speech(root: Path) -> None:
    folder = root / "speech_commands_v0.02"
    for number, word in enumerate(WORDS):
        for speaker in range(16):
            file = folder / word / f"{speaker:08x}_nohash_0.wav"
            write_wav(file, 200.0 * (number + 1), seconds=0.1, rate=16_000)
    tested = [f"{word}/{speaker:08x}_nohash_0.wav\n" for word in WORDS for speaker in range(4)]
    (folder / "testing_list.txt").write_text("".join(tested))
    (folder / "validation_list.txt").write_text("")


@pytest.mark.parametrize(
    ("name", "write", "items", "metric"),
    [
        ("kdia-cifar100-small", write_cifar100, GENERATOR, "teacher_accuracy"),
        ("kdia-cinic10-small", write_cinic10, GENERATOR, "teacher_accuracy"),
        ("layers-cifar100-small", write_cifar100, ("algorithm.tuning_epochs=1",), "personal_accuracy"),
        ("curriculum-cifar100-small", write_cifar100, ("local.epochs=1",), "global_accuracy"),
        ("fedcl-mnist-small", write_mnist, ("local.steps=2",), "personal_accuracy"),
        ("ace-speech-small", write_speech, ("clients.fraction=1.0",), "personal_accuracy_mean"),
    ],
)
def test_it_runs(
    name: str, write: Callable[[Path], None], items: tuple[str, ...], metric: str, tmp_path: Path
) -> None:
    write(tmp_path)
    settings = Settings(home=tmp_path / "home", data_roots=(tmp_path,))
    experiment = resolve_spec(load_spec(name, [*FEW, *items]), settings)
    population = experiment.load_population()
    (result,) = simulate(experiment.algorithm, population, SerialPool(experiment.algorithm, population))
    assert 0 <= result.metrics[metric] <= 1
    assert np.isfinite(result.metrics["train_loss"])
