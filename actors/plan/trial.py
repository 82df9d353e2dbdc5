"""Trial: one small round of an experiment, timed, and what such rounds say of the traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from fedsim.core import Traffic
from fedsim.training.work import Work


class Trial(NamedTuple):
    """One small round.

    Attributes:
        cohort: who came.
        work: of the worker that had most of it.
        seconds: until the cohort's sums were finished.
        server: seconds of the server's own work.
        up: bytes sent up by payload, over the cohort.
    """

    cohort: tuple[int, ...]
    work: Work
    seconds: float
    server: float
    up: Counter[str]


def without(traffic: Traffic, once: Traffic) -> Traffic:
    """The rest of a round's traffic."""
    rest = Counter(traffic.by_payload)
    rest.subtract(once.by_payload)
    return Traffic(traffic.down - once.down, traffic.up - once.up, dict(+rest), traffic.personal)


def mean_traffic(down: Counter[str], up: Counter[str], rounds: int) -> Traffic:
    """What went down and up in so many rounds, by payload, as one round's traffic."""
    both = {name: round((down[name] + up[name]) / rounds) for name in {**down, **up}}
    return Traffic(round(sum(down.values()) / rounds), round(sum(up.values()) / rounds), both)


def grown(trial: Callable[[int], Trial], enough: float, least: int, most: int) -> int:
    """A size, at most doubled each time, whose trial takes long enough to tell something; or the most."""
    size = least
    while size < most and trial(size).seconds < enough:
        size = min(most, 2 * size)
    return size
