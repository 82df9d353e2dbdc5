"""Fill up clients with too few examples from the largest clients; class totals do not change."""

from __future__ import annotations

import heapq

import numpy as np

from fedsim.data.dataset import Indices


def fill_small_clients(counts: Indices, minimum: int) -> tuple[Indices, tuple[str, ...]]:
    """Move examples from the largest clients to those below the minimum.

    A short client gets classes that it already holds, its most frequent first, from the largest client with
    them. It gets another class only if that is impossible. No donor goes below the minimum.

    Args:
        counts: int64 [N, C], examples of each class per client; not changed.
        minimum: least number of examples of every client; N * minimum may not exceed the number of examples.

    Returns:
        The repaired counts, and a note if examples were moved.
    """
    short = np.flatnonzero(counts.sum(axis=1) < minimum)
    if len(short) == 0:
        return counts, ()
    donors = _Donors(counts.copy(), minimum)
    moved = sum(donors.fill_client(int(client)) for client in short)
    note = f"{len(short)} clients filled up to {minimum} examples by moving {moved} from the largest clients"
    return donors.counts, (note,)


class _Donors:
    """The clients that can give, one heap per class, largest first.

    Sizes in the heaps become outdated as clients give; an entry is corrected when it reaches the top.
    """

    def __init__(self, counts: Indices, minimum: int) -> None:
        self.counts, self.minimum = counts, minimum
        self.sizes = counts.sum(axis=1)
        rich = self.sizes > minimum
        self.heaps = [
            [(-int(self.sizes[i]), int(i)) for i in np.flatnonzero(rich & (column > 0))]
            for column in counts.T
        ]
        for heap in self.heaps:
            heapq.heapify(heap)

    def fill_client(self, client: int) -> int:
        """Fill the client up to the minimum; return the number of moved examples."""
        before = int(self.sizes[client])
        held = self.counts[client]
        for label in np.argsort(-held, kind="stable"):
            if held[label] == 0:
                break
            self._take_examples(client, int(label))
        while self.sizes[client] < self.minimum:
            self._take_examples(client, self._richest_class())
        return int(self.sizes[client]) - before

    def _take_examples(self, client: int, label: int) -> None:
        """Take examples of one class until the client has enough or no donor is left."""
        while self.sizes[client] < self.minimum and (donor := self._largest_donor(label)) is not None:
            amount = min(
                self.minimum - self.sizes[client], self.sizes[donor] - self.minimum, self.counts[donor, label]
            )
            self.counts[donor, label] -= amount
            self.counts[client, label] += amount
            self.sizes[donor] -= amount
            self.sizes[client] += amount

    def _largest_donor(self, label: int) -> int | None:
        """The largest client that can give an example of the class."""
        heap = self.heaps[label]
        while heap:
            size, donor = -heap[0][0], heap[0][1]
            if self.counts[donor, label] == 0 or self.sizes[donor] <= self.minimum:
                heapq.heappop(heap)
            elif self.sizes[donor] != size:
                heapq.heapreplace(heap, (-int(self.sizes[donor]), donor))
            else:
                return donor
        return None

    def _richest_class(self) -> int:
        """The class with the largest donor."""
        largest = [
            (self.sizes[d], -c) for c in range(len(self.heaps)) if (d := self._largest_donor(c)) is not None
        ]
        return int(-max(largest)[1])
