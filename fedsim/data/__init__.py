"""Data sets and who holds what of them."""

from __future__ import annotations

from fedsim.base.parameters import Parameter, Range, unknown
from fedsim.data.client_tests import CONVENTIONS
from fedsim.data.dataset import Augmentation, Dataset, Examples, Normalise
from fedsim.data.federation import Federation, federate
from fedsim.data.known import Known
from fedsim.data.partition import Partition, SampledPartition
from fedsim.data.partitions import PARTITIONS, PartitionEntry, make_partition, partition_faults, supply_faults
from fedsim.data.partitions.difficulty import difficulty_partition, loss_spread
from fedsim.data.partitions.stock import Supply
from fedsim.data.places import Places
from fedsim.data.registry import (
    DATASETS,
    DatasetEntry,
    Outline,
    dataset_faults,
    foretold,
    load_dataset,
    outline,
    parameters_of,
    whereabouts,
)

__all__ = [
    "CONVENTIONS",
    "DATASETS",
    "PARTITIONS",
    "Augmentation",
    "Dataset",
    "DatasetEntry",
    "Examples",
    "Federation",
    "Known",
    "Normalise",
    "Outline",
    "Parameter",
    "Partition",
    "PartitionEntry",
    "Places",
    "Range",
    "SampledPartition",
    "Supply",
    "dataset_faults",
    "difficulty_partition",
    "federate",
    "foretold",
    "load_dataset",
    "loss_spread",
    "make_partition",
    "outline",
    "parameters_of",
    "partition_faults",
    "supply_faults",
    "unknown",
    "whereabouts",
]
