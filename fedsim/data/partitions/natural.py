"""Natural: clients are the data set's own groups (speakers, celebrities, patients)."""

from __future__ import annotations

import numpy as np

from fedsim.base.parameters import Count, make_spec_error
from fedsim.data.dataset import Indices
from fedsim.data.partition import Partition, partition_from_owners
from fedsim.data.partitions.partition_input import PartitionCounts, PartitionInput, even_sizes


def natural(given: PartitionInput, *, groups_per_client: Count | None = None) -> Partition:
    """Clients made of the data set's own groups.

    With as many clients as groups, each client is one group, in the order of the group numbers. With fewer
    clients, the groups are dealt at random and as evenly as possible; or each client gets `groups_per_client`
    and the others are left out (LEAF's CelebA: 10 celebrities per client).

    Args:
        given: the examples.
        groups_per_client: number of groups of each client; by default all groups are used.

    Raises:
        SpecError: if the data set has no groups, or too few.
    """
    check_natural(given.to_counts(), groups_per_client=groups_per_client)
    groups = np.empty(0, np.int64) if given.groups is None else given.groups  # refused above
    names, group_of = np.unique(groups, return_inverse=True)
    owner_of = _draw_owners(len(names), given, groups_per_client)
    return partition_from_owners(owner_of[group_of], given.num_clients)


def check_natural(counts: PartitionCounts, *, groups_per_client: int | None) -> None:
    """Raise the errors of `natural` that these counts show.

    Raises:
        SpecError: as `natural`.
    """
    if not counts.groups:
        raise make_spec_error(
            "kind",
            "natural",
            "this data set has no natural clients",
            "name the client of each example (client of table, groups of hugging_face, groups in an .npz), "
            "or use another partition",
        )
    clients, each = counts.num_clients, groups_per_client or 1
    if clients * each > counts.groups:
        share = f" of {each} groups each" if each > 1 else ""
        message = (
            f"{clients} clients{share} need {clients * each} groups; the examples to divide have "
            f"{counts.groups}"
        )
        path, value = ("num_clients", clients) if groups_per_client is None else ("groups_per_client", each)
        most = counts.groups // each
        hint = f"have at most {most} client{'s' * (most > 1)}" if most else "lower it"
        # Without merged tests, the number of owners of the whole data set would surprise here.
        hint += "; owners whose rows are all test examples count only with data.tests: merged"
        raise make_spec_error(path, value, message, hint)


def _draw_owners(number: int, given: PartitionInput, per_client: int | None) -> Indices:
    """The client of each group, -1 for groups left out."""
    clients, needed = given.num_clients, given.num_clients * (per_client or 1)
    if needed == number and per_client is None:
        return np.arange(number)
    sizes = even_sizes(number, clients) if per_client is None else np.full(clients, per_client)
    dealt = np.full(number, -1, np.int64)
    order = given.generator("natural").permutation(number)
    dealt[order[: sizes.sum()]] = np.repeat(np.arange(clients), sizes)
    return dealt
