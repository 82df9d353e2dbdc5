"""IID: every client draws from the same distribution, and the same number of examples."""

from __future__ import annotations

import numpy as np

from fedsim.data.partition import Partition, partition_from_owners
from fedsim.data.partitions.stock import PartitionInput, even_sizes


def iid(stock: PartitionInput) -> Partition:
    """Shuffles the examples and gives every client the same number, give or take one."""
    owners = np.repeat(np.arange(stock.num_clients), even_sizes(stock.total, stock.num_clients))
    return partition_from_owners(stock.generator("iid").permutation(owners), stock.num_clients)
