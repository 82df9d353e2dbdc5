"""Experiment: everything that a run needs, as names and numbers; small enough to send anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .core import Algorithm, Local
from .data import load_dataset, make_partition
from .models import make_net
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
        model: its name and parameters, as `make_net` takes them.
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
    model: tuple[str, Mapping[str, Any]]
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
        partition = make_partition(
            kind,
            labels=data.train.y,
            num_clients=self.num_clients,
            num_classes=data.num_classes,
            seed=self.seed,
            groups=data.train.groups,
            **dealing,
        )
        model, sizes = self.model
        net = make_net(
            model,
            input_shape=data.input_shape,
            num_classes=data.num_classes,
            vocabulary=data.vocabulary,
            **sizes,
        )
        return Population(
            dataset=data,
            partition=partition,
            nets=(net,),
            local=self.local,
            seed=self.seed,
            cohort_size=self.cohort_size,
            rounds=self.rounds,
        )
