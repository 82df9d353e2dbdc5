"""Few classes per client: `#label k` (pathological, label skew), and shards of data sorted by class."""

from __future__ import annotations

import numpy as np

from fedsim.base.parameters import Count, Share, make_spec_error
from fedsim.data.dataset import Indices
from fedsim.data.partition import Partition, deal_examples, partition_from_owners
from fedsim.data.partitions.repair import fill_small_clients
from fedsim.data.partitions.stock import PartitionFigures, PartitionInput, even_sizes


def pathological(stock: PartitionInput, *, classes: Count = 2) -> Partition:
    """P(pi), also known as `#label k`: pi classes for every client, each divided evenly among its holders.

    First each client, in random order, gets one class in turn, which makes classes about equally frequent;
    its other classes are random. A class without a holder then replaces one that several clients hold.

    Args:
        stock: the examples.
        classes: pi, the classes per client.

    Raises:
        SpecError: if the data has fewer classes, or the clients are too few to hold all classes.

    Example:
        >>> stock = PartitionInput(np.repeat(np.arange(5), 20), num_clients=5, num_classes=5, seed=0)
        >>> partition = pathological(stock, classes=2)
        >>> {int(np.count_nonzero(partition.count_labels(client, stock.labels, 5))) for client in range(5)}
        {2}
    """
    check_pathological(stock.to_figures(), classes=classes)
    return _split_among_holders(stock, np.flatnonzero(stock.class_sizes()), classes, "pathological")


def check_pathological(supply: PartitionFigures, *, classes: int) -> None:
    """Raise the errors of `pathological` that these figures show.

    Raises:
        SpecError: as `pathological`.
    """
    fewest, most = supply.classes
    if classes > most:
        raise make_spec_error("classes", classes, f"there are only {most} classes", "lower it")
    if classes * supply.num_clients < fewest:
        raise make_spec_error(
            "classes", classes, _leftover_message(supply, classes, fewest), "raise it, or have more clients"
        )


def label_skew(stock: PartitionInput, *, share: Share = 0.2) -> Partition:
    """Every client holds this share of the classes (0.2 of 10 is 2), divided as in `pathological`.

    Args:
        stock: the examples.
        share: share of the classes that a client holds, at least one class.

    Raises:
        SpecError: if the clients are too few to hold all classes.
    """
    check_label_skew(stock.to_figures(), share=share)
    present = np.flatnonzero(stock.class_sizes())
    return _split_among_holders(stock, present, _classes_per_client(len(present), share), "label-skew")


def check_label_skew(supply: PartitionFigures, *, share: float) -> None:
    """Raise the errors of `label_skew` that these figures show.

    Raises:
        SpecError: as `label_skew`.
    """
    fewest, most = supply.classes
    # The number of classes is only known as a range: an error is one for every number in it.
    if all(_classes_per_client(n, share) * supply.num_clients < n for n in range(fewest, most + 1)):
        message = _leftover_message(supply, _classes_per_client(fewest, share), fewest)
        raise make_spec_error("share", share, message, "raise it, or have more clients")


def _classes_per_client(classes: int, share: float) -> int:
    return max(1, round(share * classes))


def _leftover_message(supply: PartitionFigures, each: int, classes: int) -> str:
    return f"{supply.num_clients} clients of {each} classes cannot hold all {classes} classes"


def shards(stock: PartitionInput, *, shards_per_client: Count = 2) -> Partition:
    """The examples sorted by class, cut into equal shards, and dealt at random.

    Args:
        stock: the examples.
        shards_per_client: number of shards of each client; it holds about as many classes at most.

    Raises:
        SpecError: if there are more shards than examples.
    """
    check_shards(stock.to_figures(), shards_per_client=shards_per_client)
    number = stock.num_clients * shards_per_client
    generator = stock.generator("shards")
    shuffled = generator.permutation(stock.total)
    by_class = shuffled[np.argsort(stock.labels[shuffled], kind="stable")]
    holder = generator.permutation(np.repeat(np.arange(stock.num_clients), shards_per_client))
    owners = np.empty(stock.total, np.int64)
    owners[by_class] = np.repeat(holder, even_sizes(stock.total, number))
    return partition_from_owners(owners, stock.num_clients)


def check_shards(supply: PartitionFigures, *, shards_per_client: int) -> None:
    """Raise the errors of `shards` that these figures show.

    Raises:
        SpecError: as `shards`.
    """
    number = supply.num_clients * shards_per_client
    if number > supply.examples:
        message = f"{number:,} shards are more than the {supply.examples:,} examples"
        raise make_spec_error(
            "shards_per_client", shards_per_client, message, "lower it, or have fewer clients"
        )


def _split_among_holders(stock: PartitionInput, present: Indices, classes: int, kind: str) -> Partition:
    generator = stock.generator(kind)
    sizes = stock.class_sizes()
    holds = _draw_holdings(stock.num_clients, len(present), classes, generator)
    counts = np.zeros((stock.num_clients, stock.num_classes), np.int64)
    for column, label in enumerate(present):
        holders = np.flatnonzero(holds[:, column])
        # Remaining examples go to random holders, not always to the first ones.
        counts[generator.permutation(holders), label] = even_sizes(int(sizes[label]), len(holders))
    counts, notes = fill_small_clients(counts, 1)
    return partition_from_owners(deal_examples(stock.labels, counts, generator), stock.num_clients, notes)


def _draw_holdings(
    num_clients: int, num_classes: int, classes: int, generator: np.random.Generator
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Whether a client holds a class, bool [N, C]: `classes` in each row, and no empty column."""
    preference = generator.random((num_clients, num_classes))
    # In random order: a client's number also sets its architecture, which must not depend on the class.
    first = generator.permutation(np.arange(num_clients) % num_classes)
    preference[np.arange(num_clients), first] = -1.0
    chosen = np.argsort(preference, axis=1)[:, :classes]
    holds = np.zeros((num_clients, num_classes), np.bool_)
    np.put_along_axis(holds, chosen, True, axis=1)
    for missing in np.flatnonzero(~holds.any(axis=0)):
        crowded = holds & (holds.sum(axis=0) > 1)
        client, label = generator.permutation(np.argwhere(crowded))[0]
        holds[client, label], holds[client, missing] = False, True
    return holds
