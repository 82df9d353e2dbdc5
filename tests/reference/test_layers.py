"""Personalised methods on Fashion-MNIST, dealt out by Dirichlet(0.1): runs that a broken method fails.

LeNet-5, the first 2,000 images, 20 clients, ten of them a round, 12 rounds of one epoch, batch 10, lr 0.05,
seed 1; each client's own model on its share of the test set, pooled, and the mean of the two worst clients.
Five epochs of fine-tuning for the last four. Measured, pooled and worst:

    FedAvg 0.346 0.004    FedPer  0.805 0.443    LG-FedAvg 0.816 0.395    FedRep  0.779 0.248
    FedROD 0.788 0.403    FedBABU 0.872 0.422    vanilla   0.819 0.281    anti    0.820 0.284
    by plateau, vanilla: 0.833 0.285

The nine runs take about 40 seconds of one core.
"""

from __future__ import annotations

import pytest

from fedsim.algorithms import ALGORITHMS, FedBABU, LayerSchedule
from fedsim.core import Algorithm
from tests.reference.runs import NEEDS_FASHION_MNIST, personal_metrics

pytestmark = [pytest.mark.reference, NEEDS_FASHION_MNIST]

METHODS: dict[str, Algorithm] = {
    **{name: ALGORITHMS[name]() for name in ("fedavg", "fedper", "lg_fedavg", "fedrep", "fedrod")},
    "fedbabu": FedBABU(tuning_epochs=5),
    "vanilla": LayerSchedule(times="even", tuning_epochs=5),
    "anti": LayerSchedule(order="anti", times="even", tuning_epochs=5),
    "plateau": LayerSchedule(times="plateau", patience=2, tuning_epochs=5),
}


@pytest.fixture(scope="module")
def scores() -> dict[str, dict[str, float]]:
    """The last record's metrics of every method."""
    found = {}
    for name, algorithm in METHODS.items():
        found[name] = personal_metrics(algorithm, clients=20, rounds=12, epochs=1, limit=2000)
        worst = found[name]["personal_accuracy_worst10"]
        print(f"    {name:10} {found[name]['personal_accuracy']:.3f}  {worst:.3f}")
    return found


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fedavg"])
def test_a_personal_model_is_far_above_the_global_one(name: str, scores: dict[str, dict[str, float]]) -> None:
    assert scores[name]["personal_accuracy"] > scores["fedavg"]["personal_accuracy"] + 0.1
