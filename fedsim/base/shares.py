"""Shares of a number, rounded to whole numbers.

Floating point has 0.55 x 100 as 55.00000000000001 and 0.29 x 100 as 28.999999999999996. So a product within
1e-9 of a whole number counts as that number.
"""

from __future__ import annotations

from math import ceil, floor

TINY = 1e-9
"""What a product may lack for a whole number; arrays of shares use it themselves."""


def ceil_share(share: float, number: int) -> int:
    """Return `share` x `number`, rounded up.

    >>> ceil_share(0.55, 100)
    55
    """
    return ceil(share * number - TINY)


def floor_share(share: float, number: int) -> int:
    """Return `share` x `number`, rounded down.

    >>> floor_share(0.29, 100)
    29
    """
    return floor(share * number + TINY)
