"""Partitions: the training examples of each client.

A partition is two arrays, for every partition kind. Very large federations need none: `SampledPartition`
draws a client's examples on demand. The engine uses only `num_clients`, `mean_size`, `size(i)` and
`client_positions(i)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsim.base import rng
from fedsim.data.dataset import Array, Indices
from fedsim.errors import DataError


@dataclass(frozen=True, eq=False)
class Partition:
    """The clients' positions in the training set, one client after another.

    Attributes:
        indices: int64 [M], client 0's positions in ascending order, then client 1's, ...
        offsets: int64 [N + 1]; client i holds `indices[offsets[i]:offsets[i + 1]]`.
        notes: changes that were necessary, such as "3 clients filled up to 10 examples".
        names: the name of each client, such as a hospital; () without names.

    Raises:
        DataError: if the offsets do not cut the indices into lists.

    Example:
        >>> partition = Partition(np.array([0, 2, 1]), np.array([0, 2, 3]))
        >>> partition.num_clients, partition.size(0)
        (2, 2)
        >>> partition.client_positions(0)
        array([0, 2])
    """

    indices: Indices
    offsets: Indices
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("indices", "offsets"):
            view = np.ascontiguousarray(getattr(self, name), dtype=np.int64).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        cuts, end = self.offsets, len(self.indices)
        if not len(cuts) or (cuts[0], cuts[-1]) != (0, end) or (np.diff(cuts) < 0).any():
            message = f"the offsets of a partition do not cut its {end:,} indices into lists"
            raise DataError(message, f"let them begin with 0, never fall, and end with {end}")

    @property
    def num_clients(self) -> int:
        """The number of clients, N."""
        return len(self.offsets) - 1

    @property
    def mean_size(self) -> float:
        """The mean number of examples of a client."""
        return len(self.indices) / self.num_clients

    def size(self, client: int) -> int:
        """The number of examples of a client."""
        return int(self.offsets[client + 1] - self.offsets[client])

    def client_positions(self, client: int) -> Indices:
        """The client's positions in the training set: a read-only view."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def sizes(self) -> Indices:
        """Every client's number of examples, int64 [N]."""
        return np.diff(self.offsets)

    def count_labels(self, client: int, y: Array, num_classes: int) -> Indices:
        """The number of the client's examples of each class.

        Args:
            client: the client's number.
            y: the training labels, int64 [n], or float32 [n, L] if examples have several labels.
            num_classes: C.

        Returns:
            int64 [C]; with several labels per example, the number of examples with each label.
        """
        held = y[self.client_positions(client)]
        if held.ndim == 2:
            return np.asarray((held > 0.5).sum(axis=0), dtype=np.int64)
        return np.bincount(held, minlength=num_classes).astype(np.int64)


@dataclass(frozen=True, eq=False)
class SampledPartition(Partition):
    """Clients that draw their examples from the whole training set on demand, each with its own seed.

    It needs no memory per client: a federation can have a million clients. Clients may share examples. With
    a preference for classes, a client may also draw one example several times.

    Attributes:
        clients: N.
        examples: number of examples of each client.
        total: number of training examples.
        seed: of the partition.
        by_class: the positions of each class, for a label preference; empty for none.
        beta: concentration of each client's Dirichlet preference for classes; None for none.
    """

    indices: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    offsets: Indices = field(default_factory=lambda: np.zeros(1, np.int64))
    clients: int = 0
    examples: int = 0
    total: int = 0
    seed: int = 0
    by_class: Sequence[Indices] = ()
    beta: float | None = None

    @property
    def num_clients(self) -> int:
        """The number of clients, N."""
        return self.clients

    @property
    def mean_size(self) -> float:
        """The number of examples, the same for every client."""
        return float(self.examples)

    def size(self, client: int) -> int:
        """The number of examples, the same for every client."""
        return self.examples

    def client_positions(self, client: int) -> Indices:
        """The client's positions in the training set, ascending; drawn at each call, always the same."""
        generator = rng.stream(self.seed, "partition-sampled", client)
        if self.beta is None:
            return np.sort(generator.choice(self.total, self.examples, replace=False))
        return np.sort(_draw_preferred(self.by_class, self.examples, self.beta, generator))

    def sizes(self) -> Indices:
        """Every client's number of examples, int64 [N]."""
        return np.full(self.clients, self.examples, np.int64)


def _draw_preferred(
    by_class: Sequence[Indices], count: int, beta: float, generator: np.random.Generator
) -> Indices:
    """Draw `count` positions in a class mix from Dir(beta); too small a class is drawn with repetition."""
    mix = generator.dirichlet(np.full(len(by_class), beta))
    wanted = generator.multinomial(count, mix)
    drawn = [
        generator.choice(held, n, replace=n > len(held))
        for held, n in zip(by_class, wanted, strict=True)
        if n
    ]
    return np.concatenate(drawn)


def partition_from_owners(
    owners: Indices, num_clients: int, notes: tuple[str, ...] = (), names: tuple[str, ...] = ()
) -> Partition:
    """Return the partition in which example j belongs to client `owners[j]`; -1 for no client.

    Each example has one owner: the partition cannot contain an example twice.

    Args:
        owners: int64 [n], each from -1 to N - 1.
        num_clients: N.
        notes: notes of the partition.
        names: the name of each client; () without names.

    Example:
        >>> partition_from_owners(np.array([1, 0, -1, 1]), num_clients=2).client_positions(1)
        array([0, 3])
    """
    held = np.flatnonzero(owners >= 0)
    mine = owners[held]
    order = np.argsort(mine, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(mine, minlength=num_clients))])
    return Partition(held[order], offsets.astype(np.int64), notes, names)


def deal_examples(labels: Indices, counts: Indices, generator: np.random.Generator) -> Indices:
    """Return the owner of each example: client i gets `counts[i, c]` random examples of class c.

    Args:
        labels: int64 [n].
        counts: int64 [N, C]; no column may exceed the number of examples of its class.
        generator: draws the examples.

    Returns:
        int64 [n]; -1 for examples without an owner.

    Example:
        >>> labels = np.array([0, 0, 0, 1, 1])
        >>> owners = deal_examples(labels, np.array([[2, 0], [1, 1]]), np.random.default_rng(0))
        >>> [np.bincount(labels[owners == client], minlength=2).tolist() for client in (0, 1)]
        [[2, 0], [1, 1]]
    """
    owners = np.full(len(labels), -1, np.int64)
    clients = np.arange(len(counts))
    for label, column in enumerate(counts.T):
        chosen = generator.permutation(np.flatnonzero(labels == label))[: column.sum()]
        owners[chosen] = np.repeat(clients, column)
    return owners
