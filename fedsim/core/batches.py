"""Batches: the examples of a client's local steps, and the order in which steps draw them."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fedsim.base.tree import Tree


class Batch(NamedTuple):
    """The examples of one local step.

    Attributes:
        x: inputs `[batch, ...]`, normalised.
        y: labels, such as int64 `[batch]`, or float32 `[batch, labels]` (NaN: unknown); the learning task of
            the data set says more (`Context.learning_task`). Those of a regression have the unit of the data,
            and `ctx.learning_task.scale_targets(batch.y)` is the form in which a model learns them.
        mask: float32 `[batch]`, 1 for an example and 0 for padding; None where every row is an example. Only
            stacks have padding; a loss must leave it out.
        noise: the random numbers of this step (`StepNoise`), or {}.
        label_smoothing: share of each label's weight that a loss spreads evenly over all classes. It is 0 but
            in batches of a client's own examples, which have that of `LocalTraining`.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    noise: Tree = MappingProxyType({})
    label_smoothing: float = 0.0


class Batches(Protocol):
    """The local steps of a client's round: a sequence of batches, each made when it is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, step: int) -> Batch: ...
    def __iter__(self) -> Iterator[Batch]: ...


class RepeatedBatches:
    """A number of local steps that repeat the same batches from the first on.

    Args:
        batches: the batches to repeat.
        steps: number of local steps; without batches there are none.
    """

    def __init__(self, batches: Batches, steps: int) -> None:
        self.batches, self.steps = batches, steps if len(batches) else 0

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Batch:
        return self.batches[step % len(self.batches)]

    def __iter__(self) -> Iterator[Batch]:
        return (self[step] for step in range(self.steps))


class ClientExamples(Protocol):
    """A client's training examples as they are stored: in order, and never augmented."""

    @property
    def difficulty(self) -> np.ndarray[Any, Any] | None:
        """The expert's loss of each example, float32 `[n]`; None without an expert."""

    def __len__(self) -> int: ...

    def batches(self) -> Iterator[Batch]:
        """All examples, normalised, in batches of a few hundred."""


class Pacing(NamedTuple):
    """The examples that each local step may draw: step t draws from the first `limits[t]` of `order`.

    With `sizes`, step t draws `sizes[t]` of these examples, which may be none; otherwise a full batch.

    Attributes:
        order: positions of the client's examples, int64 `[n]`; None for a new random order at every step.
        limits: int64 `[steps]`, between 1 and n.
        sizes: int64 `[steps]`, between 0 and the limit; None for batches of the usual size.
    """

    order: np.ndarray[Any, Any] | None
    limits: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any] | None = None
