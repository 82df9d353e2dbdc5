"""The partitions: how training examples are shared out among clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedsim.base.parameters import find_parameter_faults, list_parameters, make_spec_error
from fedsim.data.dataset import Array, Indices
from fedsim.data.partition import Partition
from fedsim.data.partitions.difficulty import BASE, check_difficulty, difficulty, to_base_faults
from fedsim.data.partitions.dirichlet import check_dirichlet, dirichlet
from fedsim.data.partitions.even import iid
from fedsim.data.partitions.labels import (
    check_label_skew,
    check_pathological,
    check_shards,
    label_skew,
    pathological,
    shards,
)
from fedsim.data.partitions.natural import check_natural, natural
from fedsim.data.partitions.preference import dirichlet_clients
from fedsim.data.partitions.quantity import check_quantity, quantity
from fedsim.data.partitions.sampled import check_sampled, sampled
from fedsim.data.partitions.stock import PartitionFigures, PartitionInput
from fedsim.errors import FieldError, SpecError
from fedsim.plugins import Registry


class PartitionEntry(NamedTuple):
    """A registered partition.

    Attributes:
        make: the function; its keyword-only arguments are the parameters.
        summary: one line.
        shares: whether clients may hold the same example, so that there may be more clients than examples.
        fits: given a `Supply` and every parameter, refuses what is impossible by those figures alone, so that
            a spec is refused before anything runs; None where only the examples themselves tell.
    """

    make: Callable[..., Partition]
    summary: str
    shares_examples: bool = False
    check_figures: Callable[..., None] | None = None


_OWN: dict[str, PartitionEntry] = {
    "iid": PartitionEntry(iid, "the same number of random examples for everybody"),
    "dirichlet": PartitionEntry(
        dirichlet, "each class shared out in proportions drawn from Dir(beta)", check_figures=check_dirichlet
    ),
    "dirichlet_clients": PartitionEntry(
        dirichlet_clients, "equal sizes; each client's class mix drawn from a Dirichlet around the data's"
    ),
    "pathological": PartitionEntry(
        pathological,
        "P(pi): a few classes for each client, each split evenly",
        check_figures=check_pathological,
    ),
    "label_skew": PartitionEntry(
        label_skew,
        "a share of the classes for each client, each split evenly",
        check_figures=check_label_skew,
    ),
    "shards": PartitionEntry(
        shards, "sorted by class, cut into shards, a few shards for each client", check_figures=check_shards
    ),
    "quantity": PartitionEntry(
        quantity, "random examples, in numbers drawn from Dir(beta)", check_figures=check_quantity
    ),
    "difficulty": PartitionEntry(
        difficulty,
        "another partition's class counts, with easy and hard examples sorted to the clients",
        check_figures=check_difficulty,
    ),
    "natural": PartitionEntry(
        natural, "by the data set's own groups: speakers, celebrities, patients", check_figures=check_natural
    ),
    "sampled": PartitionEntry(
        sampled,
        "everybody draws from the whole set; for a million clients",
        shares_examples=True,
        check_figures=check_sampled,
    ),
}


def _is_partition_entry(thing: Any) -> bool:
    return isinstance(thing, PartitionEntry)


PARTITIONS = Registry("partitions", "partition", _OWN, _is_partition_entry, "a fedsim.data.PartitionEntry")


def find_partition_faults(kind: str, given: dict[str, Any]) -> list[FieldError]:
    """What is wrong with a partition's name and parameters, all of it, before any data is read."""
    if kind not in PARTITIONS:
        return [PARTITIONS.fault("kind", kind)]
    faults = find_parameter_faults(PARTITIONS[kind].make, given)
    if kind == "difficulty" and not any(fault.path == "base" for fault in faults):
        base = dict(given.get("base", BASE))
        named = base.pop("kind", None)
        if not isinstance(named, str) or named in ("difficulty", "sampled"):
            hint = "such as {kind: dirichlet, beta: 0.2}"
            return [*faults, FieldError("base.kind", named, "has to be the kind of another partition", hint)]
        faults += to_base_faults(find_partition_faults(named, base))
    return faults


def find_figure_faults(kind: str, given: Mapping[str, Any], supply: PartitionFigures) -> list[FieldError]:
    """Why such a supply cannot be shared out so, as far as its figures tell; paths are argument names.

    Nothing is said while name or parameters are wrong, nor of there being more clients than examples.
    """
    if find_partition_faults(kind, dict(given)) or (fits := PARTITIONS[kind].check_figures) is None:
        return []
    defaults = {each.name: each.default for each in list_parameters(PARTITIONS[kind].make)}
    try:
        fits(supply, **defaults | dict(given))
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
    **given: Any,
) -> Partition:
    """Shares out the training examples.

    Args:
        kind: a name in `PARTITIONS`.
        labels: int64 [n], or float32 [n, L] where each example has several labels (then by `main_label`).
        num_clients: N.
        num_classes: C.
        seed: of the experiment; the same seed gives the same partition.
        groups: the natural client of each example, int64 [n], where the data set has such.
        losses: an expert's loss of each example, float [n]; only the kind `difficulty` needs it.
        given: the kind's parameters.

    Raises:
        SpecError: unknown kind, bad parameters, or more clients than the data can serve; paths are argument
            names.
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
    single = main_label(labels) if labels.ndim == 2 else labels
    classes = max(num_classes, int(single.max()) + 1)
    return entry.make(PartitionInput(single, num_clients, classes, seed, groups, losses), **given)


def main_label(labels: Array) -> Indices:
    """One class per example for sharing out examples of several labels: the first that it carries.

    Args:
        labels: float32 [n, L].

    Returns:
        int64 [n], from 0 to L; L stands for no label at all.
    """
    carried = labels > 0.5
    first = np.where(carried.any(axis=1), carried.argmax(axis=1), labels.shape[1])
    return np.asarray(first, dtype=np.int64)
