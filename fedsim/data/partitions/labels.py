"""Few classes per client: `#label k` (pathological, label skew) and shards of data sorted by class."""

from __future__ import annotations

import numpy as np

from fedsim.base.parameters import Count, Share, refuse
from fedsim.data.dataset import Indices
from fedsim.data.partition import Partition, deal, from_owners
from fedsim.data.partitions.repair import fill_up
from fedsim.data.partitions.stock import Stock, Supply, even_sizes


def pathological(stock: Stock, *, classes: Count = 2) -> Partition:
    """P(pi), also known as `#label k`: pi classes for every client, each split evenly among its holders.

    First classes go round, to the clients in random order, so that classes are held about equally often; the
    others are random. A class that nobody drew then takes the place of one that several hold.

    Args:
        stock: the examples.
        classes: pi, the classes per client.

    Raises:
        SpecError: there are fewer classes than that, or too few clients to hold them all.
    """
    pathological_fits(stock.supply(), classes=classes)
    return _split_among_holders(stock, np.flatnonzero(stock.class_sizes()), classes, "pathological")


def pathological_fits(supply: Supply, *, classes: int) -> None:
    """Refuse what `pathological` cannot do by these figures.

    Raises:
        SpecError: as `pathological`.
    """
    fewest, most = supply.classes
    if classes > most:
        raise refuse("classes", classes, f"there are only {most} classes", "lower it")
    if classes * supply.num_clients < fewest:
        raise refuse("classes", classes, _left(supply, classes, fewest), "raise it, or have more clients")


def label_skew(stock: Stock, *, share: Share = 0.2) -> Partition:
    """Every client holds this share of the classes (0.2 of 10 is 2), split as `pathological` does.

    Args:
        stock: the examples.
        share: of the classes that a client holds, at least one.

    Raises:
        SpecError: too few clients to hold all classes.
    """
    label_skew_fits(stock.supply(), share=share)
    present = np.flatnonzero(stock.class_sizes())
    return _split_among_holders(stock, present, _share_of(len(present), share), "label-skew")


def label_skew_fits(supply: Supply, *, share: float) -> None:
    """Refuse what `label_skew` cannot do by these figures.

    Raises:
        SpecError: as `label_skew`.
    """
    fewest, most = supply.classes
    # Of more classes a client holds more as well: only what is wrong for every number of them is refused.
    if all(_share_of(n, share) * supply.num_clients < n for n in range(fewest, most + 1)):
        message = _left(supply, _share_of(fewest, share), fewest)
        raise refuse("share", share, message, "raise it, or have more clients")


def _share_of(classes: int, share: float) -> int:
    return max(1, round(share * classes))


def _left(supply: Supply, each: int, classes: int) -> str:
    return f"{supply.num_clients} clients of {each} classes leave some of {classes} to nobody"


def shards(stock: Stock, *, shards_per_client: Count = 2) -> Partition:
    """The examples sorted by class, cut into equal shards, and dealt out at random.

    Args:
        stock: the examples.
        shards_per_client: how many each client gets; about as many classes as it will hold at most.

    Raises:
        SpecError: there are more shards than examples.
    """
    shards_fit(stock.supply(), shards_per_client=shards_per_client)
    number = stock.num_clients * shards_per_client
    generator = stock.generator("shards")
    shuffled = generator.permutation(stock.total)
    by_class = shuffled[np.argsort(stock.labels[shuffled], kind="stable")]
    holder = generator.permutation(np.repeat(np.arange(stock.num_clients), shards_per_client))
    owners = np.empty(stock.total, np.int64)
    owners[by_class] = np.repeat(holder, even_sizes(stock.total, number))
    return from_owners(owners, stock.num_clients)


def shards_fit(supply: Supply, *, shards_per_client: int) -> None:
    """Refuse what `shards` cannot do by these figures.

    Raises:
        SpecError: as `shards`.
    """
    number = supply.num_clients * shards_per_client
    if number > supply.examples:
        message = f"{number:,} shards of {supply.examples:,} examples would be empty"
        raise refuse("shards_per_client", shards_per_client, message, "lower it, or have fewer clients")


def _split_among_holders(stock: Stock, present: Indices, classes: int, kind: str) -> Partition:
    generator = stock.generator(kind)
    sizes = stock.class_sizes()
    holds = _holdings(stock.num_clients, len(present), classes, generator)
    counts = np.zeros((stock.num_clients, stock.num_classes), np.int64)
    for column, label in enumerate(present):
        holders = np.flatnonzero(holds[:, column])
        # The odd examples go to random holders, not always to the first ones.
        counts[generator.permutation(holders), label] = even_sizes(int(sizes[label]), len(holders))
    counts, notes = fill_up(counts, 1)
    return from_owners(deal(stock.labels, counts, generator), stock.num_clients, notes)


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
