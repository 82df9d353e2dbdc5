"""Partition files: `.npz` of `fedsim partition`, and the user's own `.json` or `.csv`."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsim.data.damage import UNREADABLE
from fedsim.data.dataset import Indices
from fedsim.data.partition import Partition
from fedsim.errors import DataError

FORMATS = "a .npz file of `fedsim partition`, or a .json or .csv file of client ids"


class ClientLists(NamedTuple):
    """The contents of a partition file.

    Attributes:
        names: of the clients, in the order of their numbers.
        partition: the positions of each client, in the order of the file; not checked.
        card: the description that `fedsim partition` wrote beside the file; {} for other files.
    """

    names: Sequence[str]
    partition: Partition
    card: Mapping[str, Any]


def partition_digest(partition: Partition) -> str:
    """SHA-256 of the partition's arrays, in hexadecimal."""
    content = hashlib.sha256()
    for array in (partition.indices, partition.offsets):
        content.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return content.hexdigest()


def labels_digest(labels: Indices) -> str:
    """SHA-256 of the classes of all training examples, int64 [n], in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()


def load_partition(path: Path) -> tuple[Partition, dict[str, Any]]:
    """Read a saved partition.

    Args:
        path: as given to `save_partition`.

    Returns:
        The training partition, and the contents of the `.json`.

    Raises:
        DataError: if a file is missing or truncated, or the files do not belong together.
    """
    arrays_file, card_file = path.with_name(path.name + ".npz"), path.with_name(path.name + ".json")
    try:
        card = json.loads(card_file.read_text())
        with arrays_file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            partition = Partition(arrays["indices"], arrays["offsets"], tuple(card["notes"]))
    except (*UNREADABLE, AttributeError, TypeError, DataError) as error:
        raise DataError(f"{path}: not a saved partition ({error})", "make it again") from error
    if partition_digest(partition) != card.get("digest"):
        raise DataError(
            f"{arrays_file}: is not the partition that {card_file.name} describes", "make it again"
        )
    return partition, card


def read_client_lists(file: Path) -> ClientLists:
    """Read the positions of each client's training examples.

    Args:
        file: `.npz` with `.json` beside it, as `save_partition` writes them; `.json` with `{"client":
            [positions]}`, or a list of lists; `.csv` with the columns `example` and `client`.

    Returns:
        The lists. Clients are in the order of their names, or of the numbers if all names are whole numbers.

    Raises:
        DataError: if the file is damaged or has another form; the message names the client and the value.
    """
    readers = {".npz": _read_saved, ".json": _read_json, ".csv": _read_csv}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{file}: is no partition file", f"give {FORMATS}")
    return reader(file)


def _read_saved(file: Path) -> ClientLists:
    partition, card = load_partition(file.with_suffix(""))
    names = card.get("names")
    if not isinstance(names, list) or len(names) != partition.num_clients:
        names = range(partition.num_clients)
    return ClientLists([str(name) for name in names], partition, card)


def _read_json(file: Path) -> ClientLists:
    try:
        content = json.loads(
            file.read_text("utf-8-sig"), object_pairs_hook=lambda pairs: _make_lists(file, pairs)
        )
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: is not a JSON file ({error})", f"give {FORMATS}") from error
    if isinstance(content, Mapping) and "digest" in content:
        raise DataError(f"{file}: describes a partition", f"give {file.stem}.npz, which lies beside it")
    if isinstance(content, list):
        content = dict(enumerate(content))
    if not isinstance(content, Mapping):
        raise DataError(f"{file}: holds neither a list nor names with lists", f"give {FORMATS}")
    for name, positions in content.items():
        if not isinstance(positions, list):
            raise DataError(f"{file}: client {name!r} has {positions!r}, which is no list of positions")
        for value in positions:
            if type(value) is not int:  # true and false are ints, too
                raise _make_position_error(file, name, value)
    return _join_lists({str(name): positions for name, positions in content.items()})


def _make_lists(file: Path, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The lists by client; JSON itself keeps only the last list of a client."""
    lists = dict(pairs)
    if len(lists) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise DataError(f"{file}: client {twice!r} has several lists", "write all its positions in one list")
    return lists


def _read_csv(file: Path) -> ClientLists:
    lists = dict[str, list[int]]()
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            rows = csv.DictReader(opened)
            columns = rows.fieldnames or ()
            if missing := [name for name in ("example", "client") if name not in columns]:
                there = ", ".join(columns) or "none"
                raise DataError(f"{file}: has no column {missing[0]!r}", f"its columns: {there}")
            for row in rows:
                example, client = row["example"] or "", row["client"] or ""
                if not (example.isascii() and example.isdigit()):
                    raise _make_position_error(file, client, example)
                if not client.strip():
                    raise DataError(
                        f"{file}: example {example} has no client", "name its client, or leave its row out"
                    )
                lists.setdefault(client, []).append(int(example))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: is not a CSV file ({error})", f"give {FORMATS}") from error
    return _join_lists(lists)


def _make_position_error(file: Path, client: object, value: object) -> DataError:
    return DataError(
        f"{file}: client {client!r} holds the example {value!r}",
        "give the position of the example in the training data, a whole number from 0",
    )


def _join_lists(lists: Mapping[str, Sequence[int]]) -> ClientLists:
    names = _sort_names(lists)
    sizes = [len(lists[name]) for name in names]
    flat = [position for name in names for position in lists[name]]
    partition = Partition(_to_array(flat), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    return ClientLists(names, partition, {})


def _to_array(positions: Sequence[int]) -> Indices:
    """The positions, int64; numbers that are out of any range stay out of range."""
    most = np.iinfo(np.int64).max
    return np.array([max(-1, min(each, most)) for each in positions], np.int64)


def _sort_names(names: Iterable[str]) -> list[str]:
    """The names in order; whole numbers in the order of the numbers."""
    found = list(names)
    if all(name.isascii() and name.isdigit() for name in found):
        return sorted(found, key=int)
    return sorted(found)
