"""What a partition function is given: the labels to share out, among how many clients, by which seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsim.base import rng
from fedsim.base.parameters import make_spec_error
from fedsim.data.dataset import Array, Indices


class PartitionFigures(NamedTuple):
    """What can be said of a stock before it is there: a partition may be impossible by these figures alone.

    Attributes:
        examples: how many there are to share out, or the most that there can be.
        num_clients: N.
        classes: how many have examples: at least, and at most.
        owners: how many natural clients there are, or the most that there can be; 0 where there are none.
    """

    examples: int
    num_clients: int
    classes: tuple[int, int]
    owners: int

    def check_min_size(self, minimum: int | None, total: int | None = None) -> None:
        """Refuse a minimum size that so many clients cannot hold.

        Args:
            minimum: what was asked for; None for nothing.
            total: how many examples are shared out; all of them when not given.

        Raises:
            SpecError: naming `min_size`.
        """
        there, needed = self.examples if total is None else total, (minimum or 0) * self.num_clients
        if needed > there:
            message = f"{self.num_clients} clients of at least {minimum} examples need {needed:,}"
            message += f", there are {there:,}"
            raise make_spec_error("min_size", minimum, message, "lower it, or have fewer clients")


@dataclass(frozen=True, eq=False)
class PartitionInput:
    """The examples to share out.

    Attributes:
        labels: the class of every training example, int64 [n].
        num_clients: N.
        num_classes: C.
        seed: of the experiment.
        groups: the natural client of every example, int64 [n], or None.
        losses: an expert's loss of every example, float [n], or None where nobody has trained one.
    """

    labels: Indices
    num_clients: int
    num_classes: int
    seed: int
    groups: Indices | None = None
    losses: Array | None = None

    @property
    def total(self) -> int:
        """How many examples there are."""
        return len(self.labels)

    def generator(self, kind: str) -> np.random.Generator:
        """The one random stream of this partition kind under this seed."""
        return rng.stream(self.seed, f"partition-{kind}")

    def class_sizes(self) -> Indices:
        """How many examples each class has, int64 [C]."""
        return np.bincount(self.labels, minlength=self.num_classes).astype(np.int64)

    def to_figures(self) -> PartitionFigures:
        """The same in figures."""
        present = int(np.count_nonzero(self.class_sizes()))
        owners = 0 if self.groups is None else len(np.unique(self.groups))
        return PartitionFigures(self.total, self.num_clients, (present, present), owners)

    def effective_min_size(self, asked: int | None, total: int) -> int:
        """The minimum size to keep: what was asked for, or 10, or less where the examples are few.

        Args:
            asked: the spec's minimum; None for the default.
            total: how many examples are shared out.

        Raises:
            SpecError: so many clients cannot hold that many each.
        """
        if asked is None:
            return min(10, max(1, total // (2 * self.num_clients)))
        self.to_figures().check_min_size(asked, total)
        return asked


def even_sizes(total: int, parts: int) -> Indices:
    """`total` in `parts` whole numbers that differ by at most one, int64 [parts]."""
    sizes = np.full(parts, total // parts, np.int64)
    sizes[: total % parts] += 1
    return sizes
