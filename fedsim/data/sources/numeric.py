"""Numbers of the user's own, refused where a model could not be trained on them."""

from __future__ import annotations

import numpy as np

from fedsim.data.dataset import Array
from fedsim.errors import DataError


def to_float32(what: str, x: Array) -> Array:
    """Numbers of any type as float32.

    Args:
        what: holds them, for the message.
        x: of any shape.

    Raises:
        DataError: one is not finite, or too large.
    """
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused
        found = x.astype(np.float32)
    if x.dtype.kind == "f":
        refuse_unless(np.isfinite(found), what, x, "expected finite numbers, within float32")
    return found


def refuse_unless(fine: Array, what: str, x: Array, wanted: str) -> None:
    """Refuse values of which one is not fine, and say which.

    Args:
        fine: bool, of the shape of x.
        what: holds the values, for the message.
        x: the values.
        wanted: what they have to be.

    Raises:
        DataError: naming the first that is not fine.
    """
    if not fine.all():
        first = tuple(int(place) for place in np.unravel_index(fine.argmin(), fine.shape))
        raise DataError(f"{what} holds {x[first]} at position {first}", wanted)
