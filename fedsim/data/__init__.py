"""Data sets and who holds what of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsim.data.clienttests import CONVENTIONS
from fedsim.data.dataset import Augmentation, Dataset, Examples, Normalise
from fedsim.data.digits import digits
from fedsim.data.federation import Federation, federate
from fedsim.data.mnist import fashion_mnist
from fedsim.data.parameters import Parameter, Range, check, parameters, refuse, unknown
from fedsim.data.partition import Partition, SampledPartition
from fedsim.data.partitions import PARTITIONS, PartitionEntry, make_partition, partition_faults
from fedsim.data.partitions.difficulty import difficulty_partition, loss_spread
from fedsim.data.places import Places
from fedsim.data.synthetic import synthetic
from fedsim.errors import FieldError, SpecError

__all__ = [
    "CONVENTIONS",
    "DATASETS",
    "PARTITIONS",
    "Augmentation",
    "Dataset",
    "DatasetEntry",
    "Examples",
    "Federation",
    "Normalise",
    "Parameter",
    "Partition",
    "PartitionEntry",
    "Range",
    "SampledPartition",
    "dataset_faults",
    "difficulty_partition",
    "federate",
    "load_dataset",
    "loss_spread",
    "make_partition",
    "parameters_of",
    "partition_faults",
    "unknown",
]


class DatasetEntry(NamedTuple):
    """A registered data set.

    Attributes:
        load: the function; its keyword-only arguments are the parameters.
        summary: one line.
        looks: where it looks for its files.
        get: how to come by them.
    """

    load: Callable[..., Dataset]
    summary: str
    looks: str
    get: str


DATASETS: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(
        digits, "1,797 handwritten digits of 8x8, 10 classes", "inside scikit-learn", "nothing to do"
    ),
    "fashion_mnist": DatasetEntry(
        fashion_mnist,
        "70,000 pictures of clothes of 28x28, 10 classes",
        "ROOT/FashionMNIST/raw, ROOT/fashion-mnist, /usr/share/datasets/fashion-mnist",
        "Debian's package dataset-fashion-mnist, or allow downloads",
    ),
    "synthetic": DatasetEntry(
        synthetic, "Gaussian classes of any number, size and overlap", "nowhere: it is drawn", "nothing to do"
    ),
}


def parameters_of(entry: DatasetEntry | PartitionEntry) -> tuple[Parameter, ...]:
    """The parameters of a registered data set or partition: name, type annotation, default."""
    return parameters(entry[0])


def dataset_faults(name: str, given: dict[str, Any]) -> list[FieldError]:
    """What is wrong with a data set's name and parameters, all of it, before any file is read."""
    if name not in DATASETS:
        return [FieldError("name", name, "no such data set", unknown(name, DATASETS))]
    return check(DATASETS[name].load, given)


def load_dataset(
    name: str, *, roots: Sequence[Path], limit: int | None = None, download: bool = False, **given: Any
) -> Dataset:
    """Loads a data set whole.

    Args:
        name: a name in `DATASETS`.
        roots: the folders to look in, in this order.
        limit: keep only the first so many training examples.
        download: whether it may be fetched, into the first root, where upstream allows.
        given: the data set's parameters.

    Raises:
        SpecError: unknown name or bad parameters; paths are argument names.
        DataNotFound: its files are nowhere; says how to get them.
        DataError: a file is truncated, mislabelled or not what it should be.
    """
    if faults := dataset_faults(name, given):
        raise SpecError(faults)
    if limit is not None and limit < 1:
        raise refuse("limit", limit, "has to be a whole number of at least 1")
    dataset = DATASETS[name].load(Places(tuple(roots), download), **given)
    return dataset.limited(limit)
