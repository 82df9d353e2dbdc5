"""What the runs of the reference tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedsim.core import Algorithm, LocalTraining, RunSettings
from fedsim.engine.experiment import Experiment
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import DataNotFound

NEEDS_FASHION_MNIST = pytest.mark.skipif(
    not Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="dataset-fashion-mnist is not installed"
)


@contextmanager
def skipped_without_data() -> Iterator[None]:
    """Skip the test where the block does not find its data set; the reason says where it looked."""
    try:
        yield
    except DataNotFound as missing:
        pytest.skip(str(missing))


def rounds(experiment: Experiment, every: int | None = None) -> Iterator[RoundResult]:
    """A run in this process, scored after every so many rounds, or after the last alone."""
    population = experiment.load_population()
    pool = SerialPool(experiment.algorithm, population)
    return simulate(
        experiment.algorithm, population, pool, evaluate_every=every or experiment.settings.rounds
    )


def last_metrics(experiment: Experiment) -> dict[str, float]:
    """The metrics of the last round."""
    (*_, last) = rounds(experiment)
    return dict(last.metrics)


def personal_metrics(
    algorithm: Algorithm, *, clients: int, rounds: int, epochs: int, limit: int, public: float = 0.0
) -> dict[str, float]:
    """The last metrics of LeNet-5 on Fashion-MNIST, dealt out by Dirichlet(0.1), ten clients a round."""
    return last_metrics(
        Experiment(
            algorithm=algorithm,
            settings=RunSettings(
                seed=1,
                rounds=rounds,
                cohort_size=10,
                local=LocalTraining(epochs=epochs, batch_size=10, lr=0.05),
            ),
            num_clients=clients,
            dataset=("fashion_mnist", {}),
            partition=("dirichlet", {"beta": 0.1, "min_size": 10}),
            models=(("lenet5", {}),),
            tests="matched",
            limit=limit,
            public=public,
        )
    )
