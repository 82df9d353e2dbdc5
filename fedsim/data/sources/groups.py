"""Names of natural clients, as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsim.data.dataset import Array, Indices
from fedsim.errors import DataError


def number_groups(
    source: object, names: Sequence[Array | None]
) -> tuple[list[Indices | None], tuple[str, ...]]:
    """Turn the names of natural clients into numbers, the same in every part of a data set.

    Args:
        source: the file or folder, for messages.
        names: for each part, the names [n]; None for a part without names.

    Returns:
        For each part, int64 [n] in the order of the names, or None; and the name of each number.

    Raises:
        DataError: if an example has no name, or if two names differ by spaces alone.
    """
    given = [np.ravel(part) for part in names if part is not None]
    if not given:
        return [None] * len(names), ()
    found, numbers = np.unique(np.concatenate(given), return_inverse=True)
    _check_names(source, found.tolist(), numbers)
    pieces = iter(np.split(numbers.astype(np.int64), np.cumsum([len(part) for part in given])[:-1]))
    return [None if part is None else next(pieces) for part in names], tuple(map(str, found))


def _check_names(source: object, names: Sequence[object], numbers: Indices) -> None:
    seen = dict[str, object]()
    for number, name in enumerate(names):
        short = str(name).strip()
        if not short or name != name:  # NaN is not equal to itself
            message = f"{source}: example {int((numbers == number).argmax())} names no client: {name!r}"
            raise DataError(message, "name the client of each example, or leave the example out")
        if (other := seen.setdefault(short, name)) != name:
            message = f"{source}: the clients {other!r} and {name!r} differ by spaces alone"
            raise DataError(message, "write one client in one way")
