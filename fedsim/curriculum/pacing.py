"""Pacing: how many of N items are open at a time, from the first easy few to all of them.

Table 5 of "When Do Curricula Work in Federated Learning?" (ICCV 2023), with its errors corrected as in the
work on central curricula that it follows: every family begins at N b and ends at N exactly. As printed,
linear, quadratic and root end above N (the factor is N - b where N (1 - b) is meant), and the exponential
family is N from the start (its fraction is divided by itself).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Family: TypeAlias = Literal["linear", "quadratic", "root", "exponential", "step"]
Floats: TypeAlias = NDArray[np.float64]

FAMILIES: Mapping[Family, Callable[[Floats], Any]] = {
    "linear": lambda x: x,
    "quadratic": np.square,
    "root": np.sqrt,
    "exponential": lambda x: np.expm1(10 * x) / np.expm1(10),
    "step": np.floor,
}
"""{family: f(x)}: share of the items closed at first that is open at x = t / (a T), from 0 to 1."""


def count_open(
    family: Family, a: float, b: float, total: int, done: Floats, least: int = 1
) -> NDArray[np.int64]:
    """The number of open items at each step: g(t) = N b + N (1 - b) f(t / (a T)), rounded down.

    Args:
        family: f.
        a: share of the time after which all items are open; 0 opens all at once.
        b: share of the items that is open at first.
        total: N.
        done: t / T of each step, `[steps]`, from 0.
        least: least number of open items (all of them if there are fewer).

    Returns:
        int64 `[steps]`: never falling while `done` rises, and never above N.

    Example:
        >>> count_open("linear", a=0.8, b=0.2, total=10, done=np.array([0.0, 0.4, 0.8, 1.0]))
        array([ 2,  6, 10, 10])
    """
    # Rounding before each comparison keeps 0.2 N + 0.8 N at N, and t = a T at the end of the pace.
    x = np.ones_like(done) if a == 0 else np.round(np.minimum(done, a) / a, 12)
    share = b + (1 - b) * FAMILIES[family](x)
    counts: NDArray[np.int64] = np.floor(np.round(total * share, 6)).astype(np.int64)
    counts.clip(min(least, total), total, out=counts)
    return counts


@lru_cache(maxsize=16)
def plan_outer_rounds(
    family: Family, a: float, b: float, total: int, size: int, rounds: int
) -> NDArray[np.int64]:
    """The first round of each outer round, in which the mini-batches of all open items take part one by one.

    With T outer rounds, outer round t has g(t / T) open items, in mini-batches of `size`. T is the largest
    number whose mini-batches fit into the rounds; the last outer round lasts until the end.

    Args:
        family: f.
        a: share of the time after which all items are open.
        b: share of the items that is open at first.
        total: N.
        size: items of a mini-batch, and the least number of open items.
        rounds: of the run, each with one mini-batch.

    Returns:
        int64 `[T]`, from 0.

    Example:
        Ten clients in mini-batches of two, 2, 6, 10 and 10 of them open: 1 + 3 + 5 + 5 rounds.

        >>> plan_outer_rounds("linear", 0.5, 0.2, 10, 2, 14)
        array([0, 1, 4, 9])
    """

    def count_batches(outer: int) -> NDArray[np.int64]:
        return -(-count_open(family, a, b, total, np.arange(outer) / outer, size) // size)

    least, most = 1, rounds
    while least < most:
        middle = (least + most + 1) // 2
        fits = int(count_batches(middle).sum()) <= rounds
        least, most = (middle, most) if fits else (least, middle - 1)
    return np.concatenate([[0], np.cumsum(count_batches(least))[:-1]]).astype(np.int64)
