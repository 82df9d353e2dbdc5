"""The partition kinds, by the name that a spec gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedsim.base.parameters import find_parameter_faults, list_defaults, make_spec_error
from fedsim.data.dataset import Array, Indices
from fedsim.data.partition import Partition
from fedsim.data.partitions.base import BASE, to_base_faults
from fedsim.data.partitions.difficulty import check_difficulty, difficulty
from fedsim.data.partitions.dirichlet import check_dirichlet, dirichlet
from fedsim.data.partitions.dirichlet_clients import dirichlet_clients
from fedsim.data.partitions.file import check_file, file
from fedsim.data.partitions.iid import iid
from fedsim.data.partitions.labels import (
    check_label_skew,
    check_pathological,
    check_shards,
    label_skew,
    pathological,
    shards,
)
from fedsim.data.partitions.natural import check_natural, natural
from fedsim.data.partitions.partition_input import PartitionCounts, PartitionInput
from fedsim.data.partitions.parts import check_parts, parts
from fedsim.data.partitions.quantity import check_quantity, quantity
from fedsim.data.partitions.sampled import check_sampled, sampled
from fedsim.data.places import NO_ROOTS, DataRoots
from fedsim.data.plugin_errors import attribute_plugin_errors
from fedsim.errors import DataError, FieldError, SpecError
from fedsim.learning_tasks.tasks import CLASS_TASKS, LEARNING_TASKS
from fedsim.plugins import Registry


class PartitionEntry(NamedTuple):
    """A registered partition kind.

    Attributes:
        make: the function; its keyword-only arguments are the parameters.
        summary: one line.
        shares_examples: whether clients may share examples: then there may be more clients than examples.
        check_counts: raises an error for parameters that the `PartitionCounts` rule out, before anything
            runs; None if only the examples themselves tell.
        needs_classes: whether it deals examples by their class labels.
    """

    make: Callable[..., Partition]
    summary: str
    shares_examples: bool = False
    check_counts: Callable[..., None] | None = None
    needs_classes: bool = False


_OWN: dict[str, PartitionEntry] = {
    "iid": PartitionEntry(iid, "the same number of random examples for every client"),
    "dirichlet": PartitionEntry(
        dirichlet,
        "each class shared out in proportions drawn from Dir(beta)",
        check_counts=check_dirichlet,
        needs_classes=True,
    ),
    "dirichlet_clients": PartitionEntry(
        dirichlet_clients,
        "equal sizes; each client's class mix drawn from a Dirichlet around the data's",
        needs_classes=True,
    ),
    "pathological": PartitionEntry(
        pathological,
        "P(pi): a few classes for each client, each split evenly",
        check_counts=check_pathological,
        needs_classes=True,
    ),
    "label_skew": PartitionEntry(
        label_skew,
        "a share of the classes for each client, each split evenly",
        check_counts=check_label_skew,
        needs_classes=True,
    ),
    "shards": PartitionEntry(
        shards,
        "sorted by class, cut into shards, a few shards for each client",
        check_counts=check_shards,
        needs_classes=True,
    ),
    "quantity": PartitionEntry(
        quantity, "random examples, in numbers drawn from Dir(beta)", check_counts=check_quantity
    ),
    "difficulty": PartitionEntry(
        difficulty,
        "another partition's class counts, with easy and hard examples sorted to the clients",
        check_counts=check_difficulty,
        needs_classes=True,
    ),
    "parts": PartitionEntry(
        parts,
        "another partition with several parts for each client, of which a client holds one",
        check_counts=check_parts,
        needs_classes=True,
    ),
    "natural": PartitionEntry(
        natural, "by the data set's own groups: speakers, celebrities, patients", check_counts=check_natural
    ),
    "file": PartitionEntry(file, "by a file of yours, or one of `fedsim partition`", check_counts=check_file),
    "sampled": PartitionEntry(
        sampled,
        "every client draws from the whole set; for a million clients",
        shares_examples=True,
        check_counts=check_sampled,
    ),
}


MADE_FROM_A_BASE = ("difficulty", "parts")
"""Kinds that are made from another partition, their base."""


def _is_partition_entry(thing: Any) -> bool:
    return isinstance(thing, PartitionEntry)


PARTITIONS = Registry("partitions", "partition", _OWN, _is_partition_entry, "a fedsim.data.PartitionEntry")


def find_partition_faults(kind: str, given: dict[str, Any]) -> list[FieldError]:
    """Return all errors in a partition's name and parameters, without reading data."""
    if kind not in PARTITIONS:
        return [PARTITIONS.fault("kind", kind)]
    faults = find_parameter_faults(PARTITIONS[kind].make, given)
    if kind in MADE_FROM_A_BASE and not any(fault.path == "base" for fault in faults):
        base = dict(given.get("base", BASE))
        named = base.pop("kind", None)
        if not isinstance(named, str) or named in (*MADE_FROM_A_BASE, "sampled"):
            hint = "such as {kind: dirichlet, beta: 0.2}"
            return [*faults, FieldError("base.kind", named, "has to be another partition kind", hint)]
        faults += to_base_faults(find_partition_faults(named, base))
    return faults


def find_task_fault(kind: str, task: str) -> FieldError | None:
    """Return the error of a partition that does not suit the labels of a learning task; None if it does.

    Args:
        kind: of the partition; an unknown one is no error here.
        task: as `Dataset.task`.
    """
    if kind not in PARTITIONS or _serves_task(kind, task):
        return None
    message = f"needs one class per example, and these have {LEARNING_TASKS[task].asks}"
    others = (other for other in PARTITIONS if _serves_task(other, task))
    return FieldError("kind", kind, message, f"use one of {', '.join(others)}")


def _serves_task(kind: str, task: str) -> bool:
    is_among = CLASS_TASKS if kind != "difficulty" else ("classes",)
    return task in is_among or not PARTITIONS[kind].needs_classes


def find_faults_by_counts(kind: str, given: Mapping[str, Any], counts: PartitionCounts) -> list[FieldError]:
    """Return the errors that the counts of a data set show; paths are argument names.

    There are none while name or parameters have errors; too many clients are checked elsewhere.
    """
    if find_partition_faults(kind, dict(given)) or (check := PARTITIONS[kind].check_counts) is None:
        return []
    defaults = list_defaults(PARTITIONS[kind].make)
    try:
        check(counts, **defaults | dict(given))
    except SpecError as error:
        return error.errors
    return []


def make_partition(
    kind: str,
    *,
    labels: Array,
    num_clients: int,
    num_classes: int,
    seed: int,
    groups: Indices | None = None,
    losses: Array | None = None,
    places: DataRoots = NO_ROOTS,
    **given: Any,
) -> Partition:
    """Partition the training examples among clients.

    Args:
        kind: a name in `PARTITIONS`.
        labels: int64 [n], or float32 [n, L] for several labels per example (then `main_label` is used).
        num_clients: N.
        num_classes: C.
        seed: of the experiment; the same seed gives the same partition.
        groups: the natural client of each example, int64 [n], if the data set has them.
        losses: an expert's loss of each example, float [n]; only the kind `difficulty` needs it.
        places: the data roots; only the kind `file` needs them.
        given: the kind's parameters.

    Raises:
        SpecError: unknown kind, bad parameters, or too many clients for the data; paths are argument names.
        DataError: the partition of a plug-in fails, or does not suit the clients and examples.

    Example:
        >>> labels = np.repeat(np.arange(4), 25)
        >>> partition = make_partition(
        ...     "dirichlet", labels=labels, num_clients=5, num_classes=4, seed=0, beta=0.5, min_size=5
        ... )
        >>> int(partition.sizes().sum()), bool((partition.sizes() >= 5).all())
        (100, True)
        >>> partition = make_partition("iid", labels=labels, num_clients=3, num_classes=4, seed=0)
        >>> partition.sizes()
        array([34, 33, 33])
    """
    if faults := find_partition_faults(kind, given):
        raise SpecError(faults)
    entry = PARTITIONS[kind]
    if num_clients < 1:
        raise make_spec_error("num_clients", num_clients, "has to be a whole number of at least 1")
    if num_clients > len(labels) and not entry.shares_examples:
        message = f"there are only {len(labels):,} training examples for {num_clients:,} clients"
        raise make_spec_error(
            "num_clients", num_clients, message, "have fewer clients, or use the partition 'sampled'"
        )
    single = main_label(labels)
    classes = max(num_classes, int(single.max()) + 1)
    split = PartitionInput(single, num_clients, classes, seed, groups, losses, places)
    with attribute_plugin_errors(PARTITIONS, kind):
        made = entry.make(split, **given)
    _check_partition(kind, made, split)
    return made


def _check_partition(kind: str, made: Any, given: PartitionInput) -> None:
    """Raise DataError unless a partition has the run's clients and the positions of its examples."""
    what = f"the partition {kind!r}"
    if not isinstance(made, Partition):
        hint = "return a fedsim.data.Partition, such as partition_from_owners(owners, num_clients)"
        raise DataError(f"{what} returned a {type(made).__name__}", hint)
    if made.num_clients != given.num_clients:
        message = f"{what} has {made.num_clients:,} clients instead of {given.num_clients:,}"
        raise DataError(message, f"number the clients 0 to {given.num_clients - 1}")
    wrong = made.indices[(made.indices < 0) | (made.indices >= given.total)]
    if len(wrong):
        raise DataError(f"{what} has the position {wrong[0]}", f"the positions are 0 to {given.total - 1}")


def main_label(labels: Array) -> Indices:
    """One class per example, for partitions; of examples with several labels the first label that is 1.

    Args:
        labels: int64 [n], or float32 [n, L] for several labels per example.

    Returns:
        int64 [n]; with several labels from 0 to L, and L for an example without a label.

    Example:
        >>> main_label(np.array([[0, 1, 1], [0, 0, 0]], np.float32))
        array([1, 3])
    """
    if labels.ndim == 1:
        return labels
    carried = labels > 0.5
    first = np.where(carried.any(axis=1), carried.argmax(axis=1), labels.shape[1])
    return np.asarray(first, dtype=np.int64)
