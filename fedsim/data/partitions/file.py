"""From a file: each client's examples are the user's own choice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.base.parameters import make_spec_error
from fedsim.data.dataset import Indices
from fedsim.data.partition import Partition, partition_from_owners
from fedsim.data.partition_file import ClientLists, labels_digest, read_client_lists
from fedsim.data.partitions.partition_input import PartitionCounts, PartitionInput
from fedsim.data.places import OWN_FILE_HINT, DataPath
from fedsim.errors import DataError


def file(given: PartitionInput, *, path: DataPath) -> Partition:
    """The clients of a file: `.npz` of `fedsim partition`, `.json` or `.csv`.

    A position counts the training examples as `fedsim partition` does: in the order of the data set, within
    `data.limit`, without the public and the validation set. Examples that are in no list belong to no client.

    Args:
        given: the examples.
        path: the file, relative to a data root.

    Raises:
        SpecError: if the file cannot be read, has another number of clients, or does not fit the examples.
    """
    lists = _read_checked(given.to_counts(), path)
    _require_same_examples(lists.card, path, given)
    owners = np.full(given.total, -1, np.int64)
    owners[lists.partition.indices] = _list_holders(lists)
    notes = lists.partition.notes
    if left := int((owners < 0).sum()):
        notes += (f"{left:,} of {given.total:,} examples are in no list of {path}, and belong to no client",)
    names = tuple(lists.names)
    has_names = names != tuple(map(str, range(len(names))))
    return partition_from_owners(owners, given.num_clients, notes, names if has_names else ())


def check_file(counts: PartitionCounts, *, path: DataPath) -> None:
    """Raise the errors of `file`.

    Raises:
        SpecError: as `file`.
    """
    _read_checked(counts, path)


def _read_checked(counts: PartitionCounts, path: str) -> ClientLists:
    try:
        place = counts.places.resolve_path("partition", path, OWN_FILE_HINT)
        lists = read_client_lists(place)
    except DataError as error:
        raise make_spec_error("path", path, error.message, error.hint) from error
    if message := _find_mismatch(lists, place, counts.examples):
        hint = "positions count the training examples, without the public and the validation set"
        raise make_spec_error("path", path, message, hint)
    if (there := len(lists.names)) != counts.num_clients:
        raise make_spec_error(
            "num_clients", counts.num_clients, f"{place.name} has {there:,} clients", f"make it {there}"
        )
    return lists


def _require_same_examples(card: Mapping[str, Any], path: str, given: PartitionInput) -> None:
    """Raise SpecError if `fedsim partition` counted the positions in other examples than these.

    A validation and a public set are drawn by the seed, so another seed leaves other examples.
    """
    if card.get("labels_digest", made := labels_digest(given.labels)) != made:
        about = card.get("about")
        seed = about.get("seed") if isinstance(about, Mapping) else None
        message = f"was made from other training examples ({card.get('dataset')}, seed {seed})"
        hint = "take the data and the seed of the file; without a validation and a public set, any seed fits"
        raise make_spec_error("path", path, message, hint)


def _find_mismatch(lists: ClientLists, place: Path, examples: int) -> str | None:
    """What does not fit this number of training examples, in words; None if all fits."""
    card, indices = lists.card, lists.partition.indices
    if _has_merged_tests(card):
        return f"{place.name} was made with data.tests: merged, and lacks the test examples of each client"
    if (made_for := card.get("training_examples", examples)) != examples:
        return f"{place.name} was made for {made_for:,} training examples, and here are {examples:,}"
    holders, names = _list_holders(lists), lists.names
    wrong = np.flatnonzero((indices < 0) | (indices >= examples))
    if len(wrong):
        client, example = names[holders[wrong[0]]], indices[wrong[0]]
        return f"{place.name}: client {client!r} holds example {example}, and there are {examples:,}"
    order = np.argsort(indices, kind="stable")
    twice = np.flatnonzero(np.diff(indices[order]) == 0)
    if len(twice):
        one, other = order[twice[0] : twice[0] + 2]
        pair = f"at client {names[holders[one]]!r} and at client {names[holders[other]]!r}"
        return f"{place.name}: example {indices[one]} is there twice, {pair}"
    return None


def _has_merged_tests(card: Mapping[str, Any]) -> bool:
    about = card.get("about")
    tests = about.get("tests") if isinstance(about, Mapping) else None
    return isinstance(tests, Mapping) and tests.get("kind") == "merged"


def _list_holders(lists: ClientLists) -> Indices:
    """The client of each entry of the lists, int64 [M]."""
    return np.repeat(np.arange(lists.partition.num_clients), lists.partition.sizes())
