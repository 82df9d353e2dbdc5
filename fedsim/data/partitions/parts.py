"""Parts: another partition with more parts than clients, of which every client holds one.

"When Do Curricula Work in Federated Learning?" (ICCV 2023), supplement, section 3: "the amount of data".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsim.base.parameters import Count, make_spec_error
from fedsim.data.partition import Partition
from fedsim.data.partitions.base import BASE, check_base, make_base
from fedsim.data.partitions.partition_input import PartitionCounts, PartitionInput


def parts(given: PartitionInput, *, parts_per_client: Count = 2, base: Mapping[str, Any] = BASE) -> Partition:
    """Cut the examples into several parts for each client, by another partition; a client holds one part.

    With N clients the base partition has `parts_per_client` N parts. N of them, drawn at random, are the
    clients'. The examples of the other parts belong to no client. With one part per client it is the base.

    Args:
        given: the examples.
        parts_per_client: number of parts for each client; the more parts, the fewer examples of a client.
        base: kind and parameters of the partition that cuts the parts.

    Raises:
        SpecError: if there are more parts than examples, or the base partition is impossible.

    Example:
        >>> given = PartitionInput(np.repeat([0, 1], 60), num_clients=3, num_classes=2, seed=0)
        >>> parts(given, parts_per_client=4, base={"kind": "iid"}).sizes()
        array([10, 10, 10])
    """
    check_parts(given.to_counts(), parts_per_client=parts_per_client, base=base)
    count = given.num_clients * parts_per_client
    cut = make_base(given, base, count)
    chosen = np.sort(given.generator("parts").choice(count, given.num_clients, replace=False))
    held = [cut.client_positions(part) for part in chosen]
    offsets = np.cumsum([0, *map(len, held)])
    return Partition(np.concatenate(held), offsets, cut.notes)


def check_parts(counts: PartitionCounts, *, parts_per_client: int, base: Mapping[str, Any]) -> None:
    """Raise the errors of `parts` that these counts show.

    Raises:
        SpecError: as `parts`.
    """
    number = counts.num_clients * parts_per_client
    if number > counts.examples:
        message = f"{number:,} parts are more than the {counts.examples:,} examples"
        raise make_spec_error(
            "parts_per_client", parts_per_client, message, "lower it, or have fewer clients"
        )
    check_base(counts._replace(num_clients=number), base)
