"""The presets of real images, texts and speech as small jobs: two rounds of a few clients of each.

So little training of so few clients is not yet seen in the global model's accuracy, but in the clients' own
training loss: below that of a guess among all classes. Measured, and the loss of a guess:

    cifar10-folders 1.893 2.303    tiny-imagenet 5.146 5.298
    reuters         1.807 2.996    spoken-digits 2.024 2.303

The four take about half a minute of one core, once their data are in the cache.
"""

from __future__ import annotations

import math

import pytest

from jobs.settings import Settings
from jobs.spec import load_spec
from jobs.spec.resolve import resolve_spec
from tests.reference.runs import rounds, skipped_without_data

pytestmark = pytest.mark.reference


@pytest.mark.parametrize(
    ("preset", "items", "classes"),
    [
        ("cifar10-folders", ("clients.fraction=0.1",), 10),
        ("tiny-imagenet", ("clients.fraction=0.1",), 200),
        ("reuters", ("clients.fraction=0.1",), 20),
        ("spoken-digits", ("local.epochs=4",), 10),
    ],
)
def test_it_runs_and_its_clients_learn(preset: str, items: tuple[str, ...], classes: int) -> None:
    with skipped_without_data():
        experiment = resolve_spec(load_spec(preset, ["rounds=2", *items]), Settings.from_env())
        first, last = rounds(experiment)
    print(f"    {preset}: {last.metrics['train_loss']:.3f}")
    assert first.digest != last.digest
    assert math.isfinite(last.metrics["global_loss"])
    assert last.metrics["train_loss"] < math.log(classes)
