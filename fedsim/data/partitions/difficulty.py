"""The difficulty partition: easy clients and hard clients, with unchanged class counts of every client.

"When Do Curricula Work in Federated Learning?" (ICCV 2023), Algorithm 2. *Deviations*: the printed cumulated
sum is read as exclusive (client 0 begins at item 0), and f_ord = 0 is allowed (the paper's default: the same
counts, random contents).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsim.base import rng
from fedsim.base.parameters import Count, Share, make_spec_error
from fedsim.base.shares import TINY
from fedsim.data.dataset import Array, Indices
from fedsim.data.partition import Partition, partition_from_owners
from fedsim.data.partitions.base import BASE, check_base, make_base
from fedsim.data.partitions.partition_input import PartitionCounts, PartitionInput

EXPERT_EPOCHS = 20
"""Default number of epochs of the expert's training."""


def difficulty(
    given: PartitionInput,
    *,
    f_ord: Share = 0.0,
    base: Mapping[str, Any] = BASE,
    expert_epochs: Count = EXPERT_EPOCHS,
) -> Partition:
    """The difficulty partition (Algorithm 2 of "When Do Curricula Work in Federated Learning?").

    Args:
        given: the examples, with an expert's losses.
        f_ord: share of each client's examples that is dealt in order of difficulty, 0 to 1; at 1 low client
            numbers are easy and high ones hard.
        base: kind and parameters of the partition whose class counts every client keeps.
        expert_epochs: epochs of the expert's training.

    Raises:
        SpecError: if there are no expert losses, or the base partition is impossible with these examples.
    """
    if given.losses is None:
        raise make_spec_error(
            "kind", "difficulty", "needs an expert's losses", "an experiment trains an expert by itself"
        )
    dealt = make_base(given, base, given.num_clients)
    return deal_by_difficulty(dealt, given.labels, given.losses, f_ord, given.seed)


def check_difficulty(counts: PartitionCounts, *, base: Mapping[str, Any], **_: object) -> None:
    """Raise the errors of the base partition that these counts show.

    Raises:
        SpecError: as `difficulty`.
    """
    check_base(counts, base)


def deal_by_difficulty(base: Partition, labels: Indices, losses: Array, f_ord: float, seed: int) -> Partition:
    """Deal the base partition's examples again, by difficulty.

    Of each class, client i takes floor(f_ord * N_ic) items in ascending order of loss, beginning after the
    previous client's items. The rest of the class is shuffled and dealt, and every client ends with N_ic. At
    f_ord = 1 low client numbers are easy and high ones hard; at 0 the contents are random.

    Args:
        base: partition with the counts N_ic.
        labels: int64 [n], the class of every training example.
        losses: [n], an expert's loss of every training example.
        f_ord: share dealt in order, 0 to 1.
        seed: of the experiment.

    Returns:
        A partition of the same examples with exactly the base's count of every class for every client.

    Raises:
        SpecError: if f_ord is not between 0 and 1, if there is not one loss for each example, or if a loss is
            not finite, as from an expert that has diverged.
    """
    if not 0 <= f_ord <= 1:
        raise make_spec_error("f_ord", f_ord, "has to be a number of at least 0 and of at most 1")
    if len(losses) != len(labels):
        raise make_spec_error("losses", len(losses), f"has to be one loss for each of {len(labels)} examples")
    if bad := int((~np.isfinite(losses)).sum()):
        raise make_spec_error(
            "kind",
            "difficulty",
            f"the expert has diverged: its loss is not finite for {bad:,} of {len(losses):,} examples",
            "scale the inputs, to about 0 to 1 or to a deviation of 1, or use another partition",
        )
    generator = rng.stream(seed, "partition-difficulty")
    held = base.indices
    holder = np.repeat(np.arange(base.num_clients), base.sizes())
    owners = np.full(len(labels), -1, np.int64)
    for label in np.unique(labels[held]):
        mine = labels[held] == label
        counts = np.bincount(holder[mine], minlength=base.num_clients)
        ranked = held[mine][np.argsort(losses[held[mine]], kind="stable")]
        owners[ranked] = _assign_by_loss(counts, f_ord, generator)
    return partition_from_owners(owners, base.num_clients, base.notes)


def _assign_by_loss(counts: Indices, f_ord: float, generator: np.random.Generator) -> Indices:
    """The client of each item of one class, items in ascending order of loss; int64 [sum of counts]."""
    ordered = np.floor(f_ord * counts + TINY).astype(np.int64)
    clients = np.arange(len(counts))
    owners = np.repeat(clients, counts)
    starts = np.cumsum(counts) - counts
    rest = np.arange(len(owners)) - starts[owners] >= ordered[owners]
    owners[rest] = generator.permutation(np.repeat(clients, counts - ordered))
    return owners
