"""Sampled: clients draw from the whole training set, each by its own seed, and nothing is kept per client."""

from __future__ import annotations

import numpy as np

from fedsim.base.parameters import Count, Positive, make_spec_error
from fedsim.data.partition import SampledPartition
from fedsim.data.partitions.stock import PartitionFigures, PartitionInput


def sampled(stock: PartitionInput, *, size: Count = 100, beta: Positive | None = None) -> SampledPartition:
    """Every client draws `size` examples of the whole set; clients may share examples.

    Args:
        stock: the examples.
        size: examples per client.
        beta: concentration of each client's own preference for classes, drawn from Dir(beta); none when not
            given.

    Raises:
        SpecError: a client would hold more than there is.
    """
    check_sampled(stock.to_figures(), size=size)
    by_class = () if beta is None else _positions(stock)
    return SampledPartition(
        clients=stock.num_clients,
        examples=size,
        total=stock.total,
        seed=stock.seed,
        by_class=by_class,
        beta=beta,
    )


def check_sampled(supply: PartitionFigures, *, size: int, **_: object) -> None:
    """Refuse what `sampled` cannot do by these figures.

    Raises:
        SpecError: as `sampled`.
    """
    if size > supply.examples:
        raise make_spec_error(
            "size", size, f"there are only {supply.examples:,} training examples", "lower it"
        )


def _positions(stock: PartitionInput) -> tuple[np.ndarray, ...]:
    """Where the examples of each class are, for the classes that have any."""
    found = (np.flatnonzero(stock.labels == label) for label in range(stock.num_classes))
    return tuple(positions for positions in found if len(positions))
