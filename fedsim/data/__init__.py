"""Data sets, and their partitions among clients."""

from __future__ import annotations

from fedsim.base.parameters import Range
from fedsim.data.client_tests import CONVENTIONS
from fedsim.data.dataset import Dataset, Examples, Normalise
from fedsim.data.federation import Federation, make_federation
from fedsim.data.partition import Partition, SampledPartition
from fedsim.data.partitions import (
    PARTITIONS,
    PartitionEntry,
    find_faults_by_counts,
    find_partition_faults,
    make_partition,
)
from fedsim.data.partitions.difficulty import deal_by_difficulty
from fedsim.data.partitions.partition_input import PartitionCounts
from fedsim.data.places import DataRoots
from fedsim.data.registry import (
    DATASETS,
    DatasetEntry,
    awaits_download,
    find_dataset_faults,
    find_published,
    list_locations,
    load_dataset,
    outline_dataset,
    reads_files,
)

__all__ = [
    "CONVENTIONS",
    "DATASETS",
    "PARTITIONS",
    "DataRoots",
    "Dataset",
    "DatasetEntry",
    "Examples",
    "Federation",
    "Normalise",
    "Partition",
    "PartitionCounts",
    "PartitionEntry",
    "Range",
    "SampledPartition",
    "awaits_download",
    "deal_by_difficulty",
    "find_dataset_faults",
    "find_faults_by_counts",
    "find_partition_faults",
    "find_published",
    "list_locations",
    "load_dataset",
    "make_federation",
    "make_partition",
    "outline_dataset",
    "reads_files",
]
