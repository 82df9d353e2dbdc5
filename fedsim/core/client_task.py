"""One client's round: what it may look at, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsim.base.tree import Tree


class Batch(NamedTuple):
    """One local step's examples.

    Attributes:
        x: inputs `[batch, ...]`, normalised.
        y: labels, int64 `[batch]`.
        mask: float32 `[batch]`, 1 for an example and 0 for padding; None where every row is an example. A
            loss leaves padding out, which there is where clients train at once.
        noise: this step's slice of what `Algorithm.noise` drew, {} if it drew nothing.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    noise: Tree = MappingProxyType({})


class Batches(Protocol):
    """A client's local steps of one round: a sequence of batches, made as they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, step: int) -> Batch: ...
    def __iter__(self) -> Iterator[Batch]: ...


class RepeatedBatches:
    """So many local steps out of the same batches, from the first on and over again.

    Args:
        batches: which.
        steps: how many; none where there are no batches.
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
    """A client's own training examples as they are stored: in order, and never augmented."""

    @property
    def difficulty(self) -> np.ndarray[Any, Any] | None:
        """The expert's loss of each, float32 `[n]`; None where no expert was asked for."""

    def __len__(self) -> int: ...

    def batches(self) -> Iterator[Batch]:
        """All of them, normalised, a few hundred at a time."""


class Lockstep(Protocol):
    """The clients that train at once with this one; see `fedsim.stacking.lockstep`."""

    def run_loop(self, descent: Any) -> Any:
        """The outcome of a local loop (`fedsim.training.local_loop.Descent`), once all have asked for one."""


class ClientTask(NamedTuple):
    """One client, one round: all that it may look at.

    Attributes:
        batches: the local steps; empty while they are being planned (`Algorithm.schedule`).
        num_examples: how many training examples the client has, without those that it keeps apart.
        label_counts: how many of each class, float32 `[classes]`; with several labels, how often each is yes.
        known_counts: of how many examples it is known whether they are of each class, float32 `[classes]`.
        broadcast: what every client of the cohort received.
        instruction: what this one received besides.
        client_state: what it kept since its last visit.
        held: its examples, apart from the local steps.
        apart: those that it keeps apart, to choose among its models by (`Algorithm.reserved`); None where
            the method keeps none.
        drawn: the method's own randomness of this round (`Algorithm.draw`), {} if it drew nothing.
        company: the clients that train at once with it; None where it trains alone.
    """

    batches: Batches
    num_examples: int
    label_counts: Tensor
    known_counts: Tensor
    broadcast: Tree
    instruction: Tree
    client_state: Tree
    examples: ClientExamples
    held_out: ClientExamples | None = None
    round_noise: Tree = MappingProxyType({})
    lockstep: Lockstep | None = None

    @property
    def device(self) -> torch.device:
        """Where the client trains."""
        return self.label_counts.device


class ClientUpdate(NamedTuple):
    """What a client's round leaves behind.

    Attributes:
        upload: {payload name: tree}, as declared in `Algorithm.uploads`.
        client_state: what the client keeps until its next visit; {} unless the algorithm is `stateful`.
        metrics: scalars, averaged over the cohort weighted by the number of examples.
        model: the client's own model after training, all keys of the net; it goes nowhere, but a wrapper may
            keep it. None if the method does not say.
    """

    upload: Mapping[str, Tree]
    client_state: Tree
    metrics: Mapping[str, Any]
    model: Tree | None = None


class Pacing(NamedTuple):
    """Which examples each local step may draw: the first `limits[t]` of `order`.

    Attributes:
        order: the client's examples by position, int64 `[n]`, first to be seen first; None for another
            random order at every step.
        limits: int64 `[steps]`, between 1 and n.
    """

    order: np.ndarray[Any, Any] | None
    limits: np.ndarray[Any, Any]
