"""Checks of the user's own numbers, before a model trains on them."""

from __future__ import annotations

import numpy as np

from fedsim.data.dataset import Array
from fedsim.errors import DataError
from fedsim.learning_tasks.regression import measure_deviations


def standardise(x: Array, rows: Array) -> Array:
    """Give every feature mean 0 and deviation 1 over some rows, as float32; a constant becomes 0.

    Args:
        x: [n, features].
        rows: positions of the rows that are measured, such as the training part.
    """
    return np.asarray((x - x[rows].mean(axis=0)) / measure_deviations(x[rows]), np.float32)


def to_float32(what: str, x: Array) -> Array:
    """Convert numbers of any type to float32.

    Args:
        what: name of the array, for the message.
        x: of any shape.

    Raises:
        DataError: if a number is not finite, or too large.
    """
    with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite, and is refused
        found = x.astype(np.float32)
    if x.dtype.kind == "f":
        require_all(np.isfinite(found), what, x, "expected finite numbers, within float32")
    return found


def to_float32_targets(what: str, y: Array) -> Array:
    """Convert the targets of a regression to float32; they are scaled later, so differences must survive.

    Args:
        what: name of the targets, for the message.
        y: [n] or [n, k].

    Raises:
        DataError: as `to_float32`, or if rounding hides the differences between targets.
    """
    found = to_float32(what, y)
    exact = y.reshape(len(y), -1).astype(np.float64)
    for values, rounded in zip(exact.T, found.reshape(exact.shape).T, strict=True):
        if len(y) and 0 < 0.001 * values.std() < (error := np.abs(rounded - values).max()) and np.ptp(values):
            message = f"{what}: float32 rounds values such as {values[0]} by up to {error:.3g}"
            message += f", and their standard deviation is {values.std():.3g}"
            raise DataError(message, "subtract a constant from all of them")
    return found


def require_all(fine: Array, what: str, x: Array, wanted: str) -> None:
    """Raise an error that names the first bad value, if there is one.

    Args:
        fine: whether each value is good, bool, of the shape of x.
        what: name of the array, for the message.
        x: the values.
        wanted: description of good values.

    Raises:
        DataError: for the first bad value.
    """
    if not fine.all():
        first = tuple(int(place) for place in np.unravel_index(fine.argmin(), fine.shape))
        raise DataError(f"{what} holds {x[first]} at position {first}", wanted)
