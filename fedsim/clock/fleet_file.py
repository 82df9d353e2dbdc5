"""The CSV file of a fleet: a header with fields of a device, then one line for each client."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from math import isfinite, nan

import numpy as np
from numpy.typing import NDArray

from fedsim.base.parameters import make_spec_error, suggest_name
from fedsim.data.places import OWN_FILE_HINT, DataRoots

SPEEDS = ("gflops", "down_mbps", "up_mbps", "memory_gb")
"""Columns in which a cell may be empty, for an infinite value; other values are above 0."""


def read_fleet_file(
    places: DataRoots, path: str, num_clients: int, fields: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    """Read the devices of a file.

    Args:
        places: the data roots.
        path: relative to a data root.
        num_clients: N, the number of lines after the header.
        fields: the possible columns.

    Returns:
        {column: float64 `[N]`}, NaN for an empty cell.

    Raises:
        SpecError: with path `path`, if the file does not have this form.
        DataNotFound: the file is in no data root.
    """
    place = places.resolve_path("fleet", path, OWN_FILE_HINT)
    try:
        with place.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            _check_header(path, header, fields)
            columns = {name: np.full(num_clients, nan) for name in header}
            count = 0
            for count, row in enumerate(filter(None, rows), start=1):
                if count <= num_clients:
                    _read_row(path, count, header, row, columns)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise make_spec_error("path", path, f"cannot be read: {error}", "give a CSV file") from None
    if count != num_clients:
        hint = f"the file needs {num_clients:,} lines after the header, or set clients.total: {count}"
        raise make_spec_error("path", path, f"has {count:,} clients, and the run {num_clients:,}", hint)
    return columns


def _check_header(path: str, header: Sequence[str], fields: Sequence[str]) -> None:
    unknown = next((name for name in header if name not in fields), None)
    if unknown is not None or not header:
        hint = suggest_name(unknown or "", fields)
        raise make_spec_error("path", path, f"has the unknown column {unknown or ''!r}", hint)
    if len(set(header)) < len(header):
        raise make_spec_error("path", path, "has a column twice", "name each column once")


def _read_row(
    path: str,
    number: int,
    header: Sequence[str],
    row: Sequence[str],
    columns: dict[str, NDArray[np.float64]],
) -> None:
    """Write the cells of a client's line into the columns."""
    if len(row) != len(header):
        message = f"has {len(row)} cells in the line of client {number - 1}, and {len(header)} columns"
        raise make_spec_error("path", path, message, "give each line one cell for each column")
    for name, text in zip(header, row, strict=True):
        cell = text.strip()
        if not cell and name in SPEEDS:
            continue
        try:
            value = float(cell)
        except ValueError:
            value = nan
        if not isfinite(value) or value < 0 or (name in SPEEDS and value == 0):
            wanted = "a number above 0, or empty" if name in SPEEDS else "a number of at least 0"
            message = f"has {cell[:40]!r} as {name} of client {number - 1}"
            raise make_spec_error("path", path, message, f"give {wanted}")
        columns[name][number - 1] = value
