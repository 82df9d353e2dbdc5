"""The public set: labelled examples that the server and every client share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng, tree
from fedsim.core.batches import Batch
from fedsim.data.dataset import AT_ONCE

ROWS = "rows"
"""Key in `Batch.noise` of a public batch: the positions of its examples in the set, int64 `[batch]`."""


class PublicSet:
    """The public examples on one device. Each batch is normalised when it is made, and never augmented.

    Args:
        x: stored inputs, `[n, ...]`.
        y: labels, int64 `[n]`, or float32 `[n, labels]` (NaN: unknown).
        normalise: function from stored inputs to model inputs.
    """

    def __init__(self, x: Tensor, y: Tensor, normalise: Callable[[Tensor], Tensor]) -> None:
        self.x, self.y, self._normalise = x, y, normalise

    def __len__(self) -> int:
        return len(self.y)

    @property
    def several_labels(self) -> bool:
        """Whether an example has several yes-or-no labels instead of one class."""
        return self.y.dim() == 2

    def to_device(self, device: torch.device) -> PublicSet:
        """Return the set on another device."""
        return PublicSet(self.x.to(device), self.y.to(device), self._normalise)

    def make_batch(self, rows: Tensor) -> Batch:
        """Make one batch of the examples at `rows`, int64 `[batch]`; its noise holds `rows` under `ROWS`."""
        x = tree.to_channels_last(self._normalise(self.x[rows]))
        return Batch(x, self.y[rows], noise={ROWS: rows})

    def iterate_batches(self, rows: Tensor | None = None) -> Iterator[Batch]:
        """Yield the examples at `rows`, by default all, in order and `AT_ONCE` at a time."""
        chosen = torch.arange(len(self), device=self.y.device) if rows is None else rows
        for part in torch.split(chosen, AT_ONCE):
            yield self.make_batch(part)

    def predict_examples(self, predict: Callable[[Tensor], Tensor], rows: Tensor | None = None) -> Tensor:
        """Return the predictions of a model for the examples, without a gradient.

        Args:
            predict: the model: from normalised inputs to logits `[batch, classes]`.
            rows: positions of the examples, int64 `[n]`; None for all.

        Returns:
            Logits `[n, classes]`.
        """
        with torch.no_grad():
            return torch.cat([predict(batch.x) for batch in self.iterate_batches(rows)])

    def choose_rows(self, seed: int, round: int, size: int) -> Tensor:
        """Draw `size` random positions, the same for all in a round: int64 `[size]`, in ascending order."""
        stream = rng.stream(seed, "public-part", round)
        picked = stream.choice(len(self), min(size, len(self)), replace=False)
        return torch.from_numpy(np.sort(picked)).to(self.y.device)

    def shuffle_batches(
        self, seed: int, round: int, *, epochs: int, batch_size: int, rows: Tensor | None = None
    ) -> PublicBatches:
        """Make the batches of several epochs over the set, shuffled in each epoch.

        The server and all clients get the same order in a round.

        Args:
            seed: the seed of the experiment.
            round: the round, from 0; each round has its own order.
            epochs: number of passes over the set.
            batch_size: examples per batch; the last batch of an epoch may be smaller.
            rows: positions of the examples, int64 `[n]`; None for all.
        """
        stream = rng.stream(seed, "public-shuffle", round)
        held = np.arange(len(self)) if rows is None else rows.cpu().numpy()
        steps: list[NDArray[Any]] = []
        for _ in range(epochs):
            order = held[stream.permutation(len(held))]
            steps += [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        return PublicBatches(self, steps)


class PublicBatches:
    """Batches of the public set (`Batches`), each gathered on demand.

    Args:
        public: the public set.
        rows: the positions of each step's examples in the set.
    """

    def __init__(self, public: PublicSet, rows: list[NDArray[Any]]) -> None:
        self.public, self.rows = public, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, step: int) -> Batch:
        rows = tree.send_to_device(torch.from_numpy(self.rows[step]), self.public.y.device)
        return self.public.make_batch(rows)

    def __iter__(self) -> Iterator[Batch]:
        return (self[step] for step in range(len(self)))
