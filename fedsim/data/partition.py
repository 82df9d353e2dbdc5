"""Who holds which training example.

A partition is two arrays, whatever made it. Very large federations need none: `SampledPartition` makes a
client's examples when they are asked for. The engine asks only for `num_clients`, `mean_size`, `size(i)`
and `client(i)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsim.base import rng
from fedsim.data.dataset import Array, Indices


@dataclass(frozen=True, eq=False)
class Partition:
    """Clients' positions in the training set, one behind the other.

    Attributes:
        indices: int64 [M], client 0's positions in ascending order, then client 1's, ...
        offsets: int64 [N + 1]; client i holds `indices[offsets[i]:offsets[i + 1]]`.
        notes: what had to be done to make it, such as "3 clients filled up to 10 examples".
    """

    indices: Indices
    offsets: Indices
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("indices", "offsets"):
            view = np.ascontiguousarray(getattr(self, name), dtype=np.int64).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.offsets) - 1

    @property
    def mean_size(self) -> float:
        """How many examples a client holds on average."""
        return len(self.indices) / self.num_clients

    def size(self, client: int) -> int:
        """How many examples the client holds."""
        return int(self.offsets[client + 1] - self.offsets[client])

    def client_positions(self, client: int) -> Indices:
        """The client's positions in the training set: a read-only view."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def sizes(self) -> Indices:
        """Every client's number of examples, int64 [N]."""
        return np.diff(self.offsets)

    def count_labels(self, client: int, y: Array, num_classes: int) -> Indices:
        """How many examples of each class the client holds.

        Args:
            client: the client's number.
            y: the training labels, int64 [n], or float32 [n, L] where each example has several.
            num_classes: C.

        Returns:
            int64 [C]; with several labels per example, how many carry each.
        """
        held = y[self.client_positions(client)]
        if held.ndim == 2:
            return np.asarray((held > 0.5).sum(axis=0), dtype=np.int64)
        return np.bincount(held, minlength=num_classes).astype(np.int64)


@dataclass(frozen=True, eq=False)
class SampledPartition(Partition):
    """Clients that draw their examples from the whole training set, each by a seed of its own, when asked.

    Costs nothing per client, so a federation may have a million. Clients may share examples; one client holds
    an example at most once per draw of its class.

    Attributes:
        clients: N.
        examples: how many each client holds.
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
        """N."""
        return self.clients

    @property
    def mean_size(self) -> float:
        """The same for every client."""
        return float(self.examples)

    def size(self, client: int) -> int:
        """The same for every client."""
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
    """Draws `count` positions in a class mix of its own; too small a class is drawn with repetition."""
    mix = generator.dirichlet(np.full(len(by_class), beta))
    wanted = generator.multinomial(count, mix)
    drawn = [
        generator.choice(held, n, replace=n > len(held))
        for held, n in zip(by_class, wanted, strict=True)
        if n
    ]
    return np.concatenate(drawn)


def partition_from_owners(owners: Indices, num_clients: int, notes: tuple[str, ...] = ()) -> Partition:
    """The partition in which example j belongs to client `owners[j]`, or to nobody where that is -1.

    Being made from one owner per example, no partition can hold an example twice.

    Args:
        owners: int64 [n], each from -1 to N - 1.
        num_clients: N.
        notes: carried over.
    """
    held = np.flatnonzero(owners >= 0)
    mine = owners[held]
    order = np.argsort(mine, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(mine, minlength=num_clients))])
    return Partition(held[order], offsets.astype(np.int64), notes)


def deal_examples(labels: Indices, counts: Indices, generator: np.random.Generator) -> Indices:
    """Owners such that client i holds `counts[i, c]` random examples of class c.

    Args:
        labels: int64 [n].
        counts: int64 [N, C]; no column may exceed the number of examples of its class.
        generator: decides which.

    Returns:
        int64 [n]; -1 for examples that no count asks for.
    """
    owners = np.full(len(labels), -1, np.int64)
    clients = np.arange(len(counts))
    for label, column in enumerate(counts.T):
        chosen = generator.permutation(np.flatnonzero(labels == label))[: column.sum()]
        owners[chosen] = np.repeat(clients, column)
    return owners
