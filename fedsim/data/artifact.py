"""A partition as files: the arrays as `.npz`, its description as `.json` beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.base.files import open_aside
from fedsim.base.parameters import make_spec_error
from fedsim.data.dataset import Dataset, Indices
from fedsim.data.federation import Federation
from fedsim.data.partition import SampledPartition
from fedsim.data.partition_file import labels_digest, partition_digest
from fedsim.data.partitions import main_label
from fedsim.data.statistics import class_counts, distance_to_all, summarise_counts

FORMAT = 1


def save_partition(path: Path, federation: Federation, about: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write a partition with its statistics.

    Args:
        path: without an ending; `.npz` and `.json` are added, missing folders are made.
        federation: the partition and its data set.
        about: origin of the partition (kind, parameters, seed, ...), for the `.json`.

    Returns:
        The two files. The `.npz` has `indices` and `offsets`, `counts` [N, C], `sizes` [N] and
        `distance_to_all` [N], and `test_indices` and `test_offsets` if clients have their own test examples.

    Raises:
        SpecError: for a sampled partition, which has no arrays.
    """
    train, tests, dataset = federation.train, federation.tests, federation.dataset
    if isinstance(train, SampledPartition):
        raise make_spec_error(
            "kind", "sampled", "is drawn on demand and has nothing to save", "its seed is enough to repeat it"
        )
    counts = class_counts(train, *dataset.partition_labels())
    arrays = {"indices": train.indices, "offsets": train.offsets, "counts": counts}
    arrays |= {"sizes": train.sizes(), "distance_to_all": distance_to_all(counts)}
    if tests is not None:
        arrays |= {"test_indices": tests.indices, "test_offsets": tests.offsets}
    path.parent.mkdir(parents=True, exist_ok=True)
    files = path.with_name(path.name + ".npz"), path.with_name(path.name + ".json")
    with open_aside(files[0]) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    text = json.dumps(_describe_partition(federation, counts, about), indent=2, ensure_ascii=False) + "\n"
    with open_aside(files[1]) as file:
        file.write(text.encode())
    return files


def _describe_partition(federation: Federation, counts: Indices, about: Mapping[str, Any]) -> dict[str, Any]:
    dataset: Dataset = federation.dataset
    return {
        "format": FORMAT,
        "dataset": dataset.name,
        "training_examples": len(dataset.train),
        "labels_digest": labels_digest(main_label(dataset.partition_labels()[0])),
        "classes": list(dataset.classes),
        "about": dict(about),
        "notes": list(federation.train.notes),
        **({"names": list(federation.train.names)} if federation.train.names else {}),
        "digest": partition_digest(federation.train),
        "statistics": summarise_counts(counts, federation.train.sizes()),
    }
