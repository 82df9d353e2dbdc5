"""Experiment: everything that a run needs, as names and numbers; small enough to send anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .core import Algorithm, Local
from .data import Dataset, federate, load_dataset
from .models import make_net
from .net import Net
from .population import Population


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run's description, resolved: the algorithm as an object, everything else by name.

    Attributes:
        algorithm: the method.
        local: the local training.
        seed, rounds: of the run.
        num_clients, cohort_size: N and K.
        dataset: its name and parameters, as `load_dataset` takes them.
        partition: its kind and parameters, as `make_partition` takes them.
        models: names and parameters, as `make_net` takes them, dealt to the clients in turn.
        public: the share of the data that is taken away first, as a labelled public set.
        roots: the folders to look for data in.
        limit: use only the first so many training examples.
        download: whether data may be fetched.
        evaluate_every: score the deployed models after every so many rounds, and after the last.
    """

    algorithm: Algorithm
    local: Local = field(default_factory=Local)
    seed: int = 0
    rounds: int
    num_clients: int
    cohort_size: int
    dataset: tuple[str, Mapping[str, Any]]
    partition: tuple[str, Mapping[str, Any]]
    models: tuple[tuple[str, Mapping[str, Any]], ...]
    public: float = 0.0
    roots: tuple[Path, ...] = ()
    limit: int | None = None
    download: bool = False
    evaluate_every: int = 1

    def population(self) -> Population:
        """Load the data, deal it out and build the model.

        Raises:
            DataNotFound, DataError: if the data is missing or not what it should be.
            SpecError: if the partition or the model does not suit the data.
        """
        name, params = self.dataset
        data = load_dataset(name, roots=self.roots, limit=self.limit, download=self.download, **params)
        kind, dealing = self.partition
        shared = federate(
            data, kind, num_clients=self.num_clients, seed=self.seed, public=self.public, **dealing
        )
        return Population(
            dataset=shared.dataset,
            partition=shared.train,
            public=shared.public,
            nets=tuple(_net(name, sizes, data) for name, sizes in self.models),
            local=self.local,
            seed=self.seed,
            cohort_size=self.cohort_size,
            rounds=self.rounds,
        )


def _net(name: str, params: Mapping[str, Any], data: Dataset) -> Net:
    shape, classes = data.input_shape, data.num_classes
    return make_net(name, input_shape=shape, num_classes=classes, vocabulary=data.vocabulary, **params)
