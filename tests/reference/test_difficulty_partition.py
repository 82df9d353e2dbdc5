"""The shape of Fig. 4 of "When Do Curricula Work in Federated Learning?", on Fashion-MNIST.

The paper's figures, on CIFAR-10, for the standard deviation of the score within a client, whose scale it
does not state, at f_ord = 0 and 1: IID 0.52 and 0.01, Dir(0.2) 0.51 and 0.14, Dir(0.05) 0.50 and 0.13.
Measured here, for that of the loss, with LeNet-5 trained for five epochs as the expert and 100 clients: IID
0.61 and 0.21, Dir(0.2) 0.58 and 0.17, Dir(0.05) 0.51 and 0.19.
"""

import numpy as np
import pytest

from fedsim.data import Dataset, deal_by_difficulty, load_dataset, make_partition
from fedsim.engine.expert import train_expert
from fedsim.models import make_net
from tests.fedsim.federations import loss_spread
from tests.reference.runs import NEEDS_FASHION_MNIST

pytestmark = [pytest.mark.weekly, NEEDS_FASHION_MNIST]


@pytest.fixture(scope="module")
def fashion() -> Dataset:
    return load_dataset("fashion_mnist", roots=[])


@pytest.fixture(scope="module")
def losses(fashion: Dataset) -> np.ndarray:
    net = make_net("lenet5", input_shape=fashion.input_shape, num_classes=10)
    training = train_expert(fashion, net, epochs=5, seed=202207)
    while True:
        try:
            print(next(training))
        except StopIteration as end:
            return np.asarray(end.value)


@pytest.mark.parametrize(
    ("kind", "given"), [("iid", {}), ("dirichlet", {"beta": 0.2}), ("dirichlet", {"beta": 0.05})]
)
def test_order_lowers_the_spread_within_clients(fashion: Dataset, losses: np.ndarray, kind: str, given: dict):
    labels = fashion.train.y
    base = make_partition(kind, labels=labels, num_clients=100, num_classes=10, seed=202207, **given)
    spread = {}
    for f_ord in (0.0, 0.5, 1.0):
        after = deal_by_difficulty(base, labels, losses, f_ord, 202207)
        spread[f_ord] = float(loss_spread(after, losses).mean())
        for client in range(100):
            assert np.array_equal(
                after.count_labels(client, labels, 10), base.count_labels(client, labels, 10)
            )
    print(f"{kind} {given}: " + ", ".join(f"f_ord {f}: {s:.2f}" for f, s in spread.items()))
    assert spread[0.0] > 0.4
    assert spread[1.0] < 0.5 * spread[0.0]
    assert spread[1.0] < spread[0.5]
