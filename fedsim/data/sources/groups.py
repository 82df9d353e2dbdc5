"""Names of natural clients, as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsim.data.dataset import Array, Indices


def number_groups(names: Sequence[Array | None]) -> tuple[list[Indices | None], tuple[str, ...]]:
    """Turn the names of natural clients into numbers, the same in every part of a data set.

    Args:
        names: for each part, the names [n]; None for a part without names.

    Returns:
        For each part, int64 [n] in the order of the names, or None; and the name of each number.
    """
    given = [np.ravel(part) for part in names if part is not None]
    if not given:
        return [None] * len(names), ()
    found, numbers = np.unique(np.concatenate(given), return_inverse=True)
    pieces = iter(np.split(numbers.astype(np.int64), np.cumsum([len(part) for part in given])[:-1]))
    return [None if part is None else next(pieces) for part in names], tuple(map(str, found))
