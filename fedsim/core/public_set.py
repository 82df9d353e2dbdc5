"""The public set: labelled examples that the server and every client have, and that nobody holds alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng, tree
from fedsim.core.batches import Batch

AT_ONCE = 250
"""How many examples go through a model at once where nothing is trained: few enough for their activations to
stay in the cache."""

ROWS = "rows"
"""Where the noise of a public batch says which examples of the public set it has, int64 `[batch]`."""


class PublicSet:
    """The public examples on one device, as they are stored; normalised on the batch and never augmented.

    Args:
        x: inputs as they are stored, `[n, ...]`.
        y: their labels, int64 `[n]`, or float32 `[n, labels]` (NaN: unknown).
        normalise: from stored inputs to what models read.
    """

    def __init__(self, x: Tensor, y: Tensor, normalise: Callable[[Tensor], Tensor]) -> None:
        self.x, self.y, self._normalise = x, y, normalise

    def __len__(self) -> int:
        return len(self.y)

    @property
    def several_labels(self) -> bool:
        """Whether an example has several yes-or-no labels in place of one class."""
        return self.y.dim() == 2

    def to_device(self, device: torch.device) -> PublicSet:
        """The same set on this device."""
        return PublicSet(self.x.to(device), self.y.to(device), self._normalise)

    def make_batch(self, rows: Tensor) -> Batch:
        """These examples, int64 `[batch]`, as one batch; its noise has them under `ROWS`."""
        x = tree.to_channels_last(self._normalise(self.x[rows]))
        return Batch(x, self.y[rows], noise={ROWS: rows})

    def iterate_batches(self, rows: Tensor | None = None) -> Iterator[Batch]:
        """These examples, by default all, in order and a few hundred at a time."""
        chosen = torch.arange(len(self), device=self.y.device) if rows is None else rows
        for part in torch.split(chosen, AT_ONCE):
            yield self.make_batch(part)

    def predict_examples(self, predict: Callable[[Tensor], Tensor], rows: Tensor | None = None) -> Tensor:
        """What a model says of these examples, by default of all, without a gradient.

        Args:
            predict: logits `[batch, classes]` of normalised inputs.
            rows: int64 `[n]`.

        Returns:
            Logits `[n, classes]`.
        """
        with torch.no_grad():
            return torch.cat([predict(batch.x) for batch in self.iterate_batches(rows)])

    def choose_rows(self, seed: int, round: int, size: int) -> Tensor:
        """A random part of the set, the same for everybody in a round: int64 `[size]`, in ascending order."""
        stream = rng.stream(seed, "public-part", round)
        picked = stream.choice(len(self), min(size, len(self)), replace=False)
        return torch.from_numpy(np.sort(picked)).to(self.y.device)

    def shuffle_batches(
        self, seed: int, round: int, *, epochs: int, batch_size: int, rows: Tensor | None = None
    ) -> PublicBatches:
        """Steps over the set (or these rows of it), shuffled in each epoch; everybody has the same order.

        Args:
            seed: of the experiment.
            round: for which, counted from 0: the same number gives the same order again.
            epochs: how many passes.
            batch_size: the last batch of an epoch may be smaller.
            rows: int64 `[n]`; by default all.
        """
        stream = rng.stream(seed, "public-shuffle", round)
        held = np.arange(len(self)) if rows is None else rows.cpu().numpy()
        steps: list[NDArray[Any]] = []
        for _ in range(epochs):
            order = held[stream.permutation(len(held))]
            steps += [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        return PublicBatches(self, steps)


class PublicBatches:
    """Steps over the public set, gathered one at a time; see `Batches`.

    Args:
        public: the set.
        rows: the examples of each step.
    """

    def __init__(self, public: PublicSet, rows: list[NDArray[Any]]) -> None:
        self.public, self.rows = public, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, step: int) -> Batch:
        return self.public.make_batch(torch.from_numpy(self.rows[step]).to(self.public.y.device))

    def __iter__(self) -> Iterator[Batch]:
        return (self[step] for step in range(len(self)))
