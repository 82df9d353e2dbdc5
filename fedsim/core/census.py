"""The label census: before round 1 the server asks every client once for its label distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsim.base.privacy import Mechanism

Real: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]
Ground: TypeAlias = Literal["identity", "sorted"]
"""Cost of moving one unit in the earth mover's distance.

`identity`: 1 from any class to any other, 0 to itself. `sorted`: the paper's literal |r_m^i - r_n^j|, the
difference between two frequencies, whatever their classes.
"""


@dataclass(frozen=True, kw_only=True)
class CensusQuestion:
    """The question of a label census.

    Attributes:
        ask: `matrix`: every client sends its label distribution. `vector`: one random client, the reference,
            sends its label distribution; all others receive it and send their distance to it.
        ground: cost of moving a unit in the distances; see `clustering.earth_movers_distance`.
        selection: number of the draw of the reference client (`vector`); another number is another draw.
        noise: noise that a client adds to its distribution before it sends it or computes with it; None for
            no noise. With noise, an example with several labels counts only once, for its main label.
    """

    ask: Literal["vector", "matrix"] = "vector"
    ground: Ground = "identity"
    selection: int = 0
    noise: Mechanism | None = None


class CensusAnswers(NamedTuple):
    """The answers of all N clients to a label census.

    Attributes:
        sizes: int64 `[N]`, the number of training examples of each client.
        distances: float64 `[N]`, the distances to the reference client (`vector`), or `[N, N]` (`matrix`).
        reference: the number of the reference client; None for `matrix`.
        shares: float64 `[N, classes]`, the label distributions, with noise if the census has any. With
            `vector` a real server does not know them: use them only for figures about the result, such as
            mean distances within clusters.
    """

    sizes: Whole
    distances: Real
    reference: int | None
    shares: Real
