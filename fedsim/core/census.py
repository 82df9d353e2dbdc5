"""The census: what the server asks every client about its labels, once, before round 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsim.base.privacy import Mechanism

Real: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]
Ground: TypeAlias = Literal["identity", "sorted"]
"""What moving a unit costs. `identity`: 1 from any class to any other, 0 to itself. `sorted`: the paper's
literal |r_m^i - r_n^j|, the difference between two frequencies, whatever their classes."""


@dataclass(frozen=True, kw_only=True)
class CensusQuestion:
    """The question.

    Attributes:
        ask: `matrix` has every client send its label distribution; `vector` has one client, drawn at random,
            send its own, everybody else receive it and answer with the distance to it.
        ground: of the distances; see `clustering.emd`.
        selection: of the client that everybody is compared with (`vector`): each number draws another time.
        noise: what a client adds to its distribution before anything leaves it or is computed from it; None
            for nothing. With several labels per example the distribution is then that of their first ones.
    """

    ask: Literal["vector", "matrix"] = "vector"
    ground: Ground = "identity"
    selection: int = 0
    noise: Mechanism | None = None


class CensusAnswers(NamedTuple):
    """What the clients said.

    Attributes:
        sizes: how many training examples each has, int64 `[N]`.
        distances: float64 `[N]` to the one that was drawn, or `[N, N]`.
        reference: which client was drawn; None for a matrix.
        shares: float64 `[N, classes]`, everybody's distribution, with its noise where there is any. By
            `vector` no server has it: it is for figures about the outcome, such as mean distances within
            clusters.
    """

    sizes: Whole
    distances: Real
    reference: int | None
    shares: Real
