"""Small results: the answers of a survey, and the progress of long work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.base.costs import Traffic

PROGRESS_STEPS = 25
"""Steps of the server's training between two progress reports."""


class Progress(NamedTuple):
    """The progress of the server's training."""

    activity: str
    done: int
    total: int


class Survey(NamedTuple):
    """The answers of surveyed clients, in the order asked, and the bytes that asking cost."""

    losses: NDArray[np.float64]
    traffic: Traffic
