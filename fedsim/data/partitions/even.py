"""IID: all clients draw from the same distribution, and the same number of examples."""

from __future__ import annotations

import numpy as np

from fedsim.data.partition import Partition, partition_from_owners
from fedsim.data.partitions.stock import PartitionInput, even_sizes


def iid(stock: PartitionInput) -> Partition:
    """Shuffle the examples and give every client the same number; sizes differ by at most one.

    Example:
        >>> stock = PartitionInput(np.arange(10), num_clients=3, num_classes=10, seed=0)
        >>> iid(stock).sizes()
        array([4, 3, 3])
    """
    owners = np.repeat(np.arange(stock.num_clients), even_sizes(stock.total, stock.num_clients))
    return partition_from_owners(stock.generator("iid").permutation(owners), stock.num_clients)
