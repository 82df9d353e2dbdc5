"""The recall of each class after each round: any figure of the global model, in a Python loop."""

from collections.abc import Iterator

import numpy as np
import torch

from jobs.settings import Settings
from jobs.spec import load_spec
from jobs.spec.resolve import resolve_spec


def measure_recalls(rounds: int) -> Iterator[np.ndarray]:
    """Yield the recall of each class on the test set after each round, float64 [classes].

    Args:
        rounds: number of rounds.
    """
    experiment = resolve_spec(load_spec("demo", [f"rounds={rounds}"]), Settings.from_env())
    population = experiment.load_population()
    (net,), test = population.nets, population.dataset.test
    x, y = population.dataset.normalise(torch.tensor(test.x)), torch.tensor(test.y)
    for result in experiment.simulate(population):
        with torch.inference_mode():
            correct = net(result.state.params, x).argmax(1) == y
        yield np.array(
            [correct[y == label].double().mean() for label in range(population.dataset.num_classes)]
        )


if __name__ == "__main__":
    for number, recalls in enumerate(measure_recalls(rounds=5), start=1):
        worst = int(recalls.argmin())
        print(
            f"round {number}: mean recall {recalls.mean():.3f}, worst class {worst} at {recalls[worst]:.3f}"
        )
