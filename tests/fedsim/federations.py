"""Small federations for tests, made in milliseconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedsim.clients.population import Population
from fedsim.core import LocalTraining, RunSettings
from fedsim.data.dataset import Dataset, Examples
from fedsim.data.federation import make_federation
from fedsim.data.partition import Partition
from fedsim.models import make_net


def gaussian_dataset(examples: int = 240, classes: int = 4, features: int = 12, seed: int = 0) -> Dataset:
    """Gaussian classes with well separated means; the last fifth is the test set."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features)) * 2
    y = rng.integers(classes, size=examples)
    x = (centres[y] + rng.normal(size=(examples, features))).astype(np.float32)
    cut = examples * 4 // 5
    return Dataset(
        name="gaussian",
        train=Examples(x[:cut], y[:cut].astype(np.int64)),
        test=Examples(x[cut:], y[cut:].astype(np.int64)),
        num_classes=classes,
        input_shape=(features,),
        classes=tuple(f"class {c}" for c in range(classes)),
    )


def public_examples(examples: int = 40, classes: int = 4, features: int = 12, seed: int = 0) -> Examples:
    """More examples of the same classes, which nobody holds."""
    centres = np.random.default_rng(seed).normal(size=(classes, features)) * 2
    rng = np.random.default_rng(seed + 1)
    y = rng.integers(classes, size=examples)
    x = centres[y] + rng.normal(size=(examples, features))
    return Examples(x.astype(np.float32), y.astype(np.int64))


def partition(sizes: list[int]) -> Partition:
    """Clients of these sizes, holding consecutive examples."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Partition(np.arange(offsets[-1]), offsets)


def federation(
    sizes: list[int] | None = None,
    *,
    model: str = "mlp",
    rounds: int = 3,
    cohort_size: int | None = None,
    seed: int = 7,
    local: LocalTraining | None = None,
    **model_params: Any,
) -> Population:
    """A federation over Gaussian data; by default ten clients of unequal sizes, some smaller than a batch."""
    sizes = sizes or [3, 8, 11, 16, 17, 20, 24, 25, 30, 38]
    data = gaussian_dataset()
    net = make_net(model, input_shape=data.input_shape, num_classes=data.num_classes, **model_params)
    return Population(
        dataset=data,
        partition=partition(sizes),
        nets=(net,),
        settings=RunSettings(
            seed=seed,
            rounds=rounds,
            cohort_size=cohort_size or len(sizes),
            local=local or LocalTraining(epochs=2, batch_size=8, lr=0.1),
        ),
        public=public_examples(),
    )


def parted(tests: str = "merged", clients: int = 6, **changes: Any) -> Population:
    """Clients with test examples of their own."""
    data = gaussian_dataset(400)
    shared = make_federation(
        data, "dirichlet", num_clients=clients, seed=3, tests=tests, beta=0.5, min_size=4
    )
    net = make_net("mlp", input_shape=data.input_shape, num_classes=data.num_classes, hidden=6)
    population = Population(
        dataset=shared.dataset,
        partition=shared.train,
        tests=shared.tests,
        nets=(net,),
        settings=RunSettings(
            seed=5, rounds=2, cohort_size=clients, local=LocalTraining(epochs=1, batch_size=8, lr=0.1)
        ),
    )
    return with_settings(population, **changes)


def with_settings(population: Population, **changes: Any) -> Population:
    """The same population in a run with other settings."""
    return replace(population, settings=replace(population.settings, **changes))


def loss_spread(partition: Partition, losses: np.ndarray) -> np.ndarray:
    """The standard deviation of the losses of examples within each client; low for similar examples."""
    return np.array([losses[partition.client_positions(i)].std() for i in range(partition.num_clients)])
