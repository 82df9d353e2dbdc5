"""A report about a spec's partition, made without training a model on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.data import Federation, SampledPartition
from fedsim.data.artifact import save_partition
from fedsim.data.dataset import Array, Indices
from fedsim.data.partition_file import partition_digest
from fedsim.data.statistics import class_counts, distance_to_all, summarise_counts
from jobs.run.preparation import prepare_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.sweep import make_label

MAX_CLIENTS_MEASURED = 2_000
"""Clients of a sampled partition that are drawn for its figures; it may have a million clients."""


@dataclass(frozen=True, eq=False)
class PartitionReport:
    """A partition and its figures.

    Attributes:
        federation: the data of each client.
        about: the source: data set, partition, clients, seed, limit, public and validation share.
        sizes: examples of each client, int64 [N].
        counts: the client x class map, int64 [n, C]; n is N, or at most `MAX_CLIENTS_MEASURED` for a sampled
            partition.
        distances: from each client's class distribution to that of all n clients, float64 [n].
        notes: remarks of the partition, and clients that the figures leave out.
    """

    federation: Federation
    about: dict[str, Any]
    sizes: Indices
    counts: Indices
    distances: Array
    notes: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes, by number."""
        return self.federation.dataset.partition_classes

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of each client; () without names."""
        return self.federation.train.names

    @property
    def is_sampled(self) -> bool:
        """Whether clients sample their examples on demand, so that there is nothing to save."""
        return isinstance(self.federation.train, SampledPartition)

    def title(self) -> str:
        """Return one line such as "digits, dirichlet beta=0.5, 50 clients, seed 0"."""
        data, partition = self.about["dataset"]["name"], make_label(self.about["partition"])
        return f"{data}, {partition}, {len(self.sizes):,} clients, seed {self.about['seed']}"

    def document(self) -> dict[str, Any]:
        """Return the report as plain data."""
        public, train = self.federation.public, self.federation.train
        return {
            "about": self.about,
            "digest": None if self.is_sampled else partition_digest(train),
            "notes": list(self.notes),
            "names": list(self.names),
            "surveyed_clients": len(self.counts),
            "public_examples": 0 if public is None else len(public),
            "classes": list(self.classes),
            "statistics": summarise_counts(self.counts, self.sizes),
        }

    def save(self, folder: Path) -> list[Path]:
        """Write `partition.npz` and `partition.json`; write nothing for a sampled partition.

        Returns:
            The files.
        """
        return [] if self.is_sampled else [*save_partition(folder / "partition", self.federation, self.about)]


def make_partition_report(
    spec: JobSpec, settings: Settings, on_status: Callable[[str], None]
) -> PartitionReport:
    """Make the partition that the jobs of this spec use.

    Args:
        spec: its `seed`, `clients`, `data` and `evaluation.validation` matter; `model` matters if an expert
            is trained.
        settings: the data roots.
        on_status: receives the current step.

    Raises:
        SpecError, DataNotFound, DataError: as `resolve_spec`.
    """
    _, population = prepare_experiment(spec, settings, on_status)
    federation = Federation(population.dataset, population.partition, population.tests, population.public)
    return measure_federation(federation, _describe_source(spec))


def measure_federation(federation: Federation, about: dict[str, Any]) -> PartitionReport:
    """Compute the figures of a federation.

    Args:
        federation: the data of each client.
        about: its source, for the report.
    """
    train, data = federation.train, federation.dataset
    notes, number = train.notes, train.num_clients
    some = None
    if isinstance(train, SampledPartition) and number > MAX_CLIENTS_MEASURED:
        some = range(MAX_CLIENTS_MEASURED)
        notes = (
            *notes,
            f"classes and distances are those of the first {MAX_CLIENTS_MEASURED:,} of {number:,} clients",
        )
    counts = class_counts(train, *data.partition_labels(), some)
    return PartitionReport(federation, about, train.sizes(), counts, distance_to_all(counts), notes)


def _describe_source(spec: JobSpec) -> dict[str, Any]:
    data = spec.data
    return {
        "dataset": data.dataset.model_dump(mode="json"),
        "partition": data.partition.model_dump(mode="json"),
        "clients": spec.clients.total,
        "seed": spec.seed,
        "limit": data.limit,
        "public": data.public.fraction,
        "validation": spec.evaluation.validation,
        "tests": data.tests.model_dump(mode="json"),
    }
