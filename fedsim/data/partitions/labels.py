"""Few classes per client: `#label k` (pathological, label skew) and shards of data sorted by class."""

from __future__ import annotations

import numpy as np

from fedsim.base.parameters import Count, Share, make_spec_error
from fedsim.data.dataset import Indices
from fedsim.data.partition import Partition, deal_examples, partition_from_owners
from fedsim.data.partitions.repair import fill_small_clients
from fedsim.data.partitions.stock import PartitionFigures, PartitionInput, even_sizes


def pathological(stock: PartitionInput, *, classes: Count = 2) -> Partition:
    """P(pi), also known as `#label k`: pi classes for every client, each split evenly among its holders.

    First classes go round, to the clients in random order, so that classes are held about equally often; the
    others are random. A class that nobody drew then takes the place of one that several hold.

    Args:
        stock: the examples.
        classes: pi, the classes per client.

    Raises:
        SpecError: there are fewer classes than that, or too few clients to hold them all.
    """
    check_pathological(stock.to_figures(), classes=classes)
    return _split_among_holders(stock, np.flatnonzero(stock.class_sizes()), classes, "pathological")


def check_pathological(supply: PartitionFigures, *, classes: int) -> None:
    """Refuse what `pathological` cannot do by these figures.

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
    """Every client holds this share of the classes (0.2 of 10 is 2), split as `pathological` does.

    Args:
        stock: the examples.
        share: of the classes that a client holds, at least one.

    Raises:
        SpecError: too few clients to hold all classes.
    """
    check_label_skew(stock.to_figures(), share=share)
    present = np.flatnonzero(stock.class_sizes())
    return _split_among_holders(stock, present, _classes_per_client(len(present), share), "label-skew")


def check_label_skew(supply: PartitionFigures, *, share: float) -> None:
    """Refuse what `label_skew` cannot do by these figures.

    Raises:
        SpecError: as `label_skew`.
    """
    fewest, most = supply.classes
    # Of more classes a client holds more as well: only what is wrong for every number of them is refused.
    if all(_classes_per_client(n, share) * supply.num_clients < n for n in range(fewest, most + 1)):
        message = _leftover_message(supply, _classes_per_client(fewest, share), fewest)
        raise make_spec_error("share", share, message, "raise it, or have more clients")


def _classes_per_client(classes: int, share: float) -> int:
    return max(1, round(share * classes))


def _leftover_message(supply: PartitionFigures, each: int, classes: int) -> str:
    return f"{supply.num_clients} clients of {each} classes leave some of {classes} to nobody"


def shards(stock: PartitionInput, *, shards_per_client: Count = 2) -> Partition:
    """The examples sorted by class, cut into equal shards, and dealt out at random.

    Args:
        stock: the examples.
        shards_per_client: how many each client gets; about as many classes as it will hold at most.

    Raises:
        SpecError: there are more shards than examples.
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
    """Refuse what `shards` cannot do by these figures.

    Raises:
        SpecError: as `shards`.
    """
    number = supply.num_clients * shards_per_client
    if number > supply.examples:
        message = f"{number:,} shards of {supply.examples:,} examples would be empty"
        raise make_spec_error(
            "shards_per_client", shards_per_client, message, "lower it, or have fewer clients"
        )


def _split_among_holders(stock: PartitionInput, present: Indices, classes: int, kind: str) -> Partition:
    generator = stock.generator(kind)
    sizes = stock.class_sizes()
    holds = _holdings(stock.num_clients, len(present), classes, generator)
    counts = np.zeros((stock.num_clients, stock.num_classes), np.int64)
    for column, label in enumerate(present):
        holders = np.flatnonzero(holds[:, column])
        # The odd examples go to random holders, not always to the first ones.
        counts[generator.permutation(holders), label] = even_sizes(int(sizes[label]), len(holders))
    counts, notes = fill_small_clients(counts, 1)
    return partition_from_owners(deal_examples(stock.labels, counts, generator), stock.num_clients, notes)


def _holdings(
    num_clients: int, num_classes: int, classes: int, generator: np.random.Generator
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Which client holds which class, bool [N, C]: `classes` in each row, no column empty."""
    preference = generator.random((num_clients, num_classes))
    # In random order: what else goes by a client's number, such as its architecture, shall not go by class.
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
