"""One client's round: what it may look at, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import pow
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsim.base.precision import Precision
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


class Repeated:
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


class Held(Protocol):
    """A client's own training examples as they are stored: in order, and never augmented."""

    @property
    def difficulty(self) -> np.ndarray[Any, Any] | None:
        """The expert's loss of each, float32 `[n]`; None where no expert was asked for."""

    def __len__(self) -> int: ...

    def batches(self) -> Iterator[Batch]:
        """All of them, normalised, a few hundred at a time."""


class Company(Protocol):
    """The clients that train at once with this one; see `fedsim.stacking.lockstep`."""

    def descend(self, descent: Any) -> Any:
        """The outcome of a local loop (`fedsim.training.local_loop.Descent`), once all have asked for one."""


class Visit(NamedTuple):
    """One client, one round: all that it may look at.

    Attributes:
        batches: the local steps; empty while they are being planned (`Algorithm.schedule`).
        num_examples: how many training examples the client has, without those that it keeps apart.
        label_counts: how many of each class, float32 `[classes]`; with several labels, how often each is yes.
        known_counts: of how many examples it is known whether they are of each class, float32 `[classes]`.
        broadcast: what every client of the cohort received.
        instruction: what this one received besides.
        memory: what it kept since its last visit.
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
    memory: Tree
    held: Held
    apart: Held | None = None
    drawn: Tree = MappingProxyType({})
    company: Company | None = None

    @property
    def device(self) -> torch.device:
        """Where the client trains."""
        return self.label_counts.device


class Report(NamedTuple):
    """What a client's round leaves behind.

    Attributes:
        upload: {payload name: tree}, as declared in `Algorithm.uploads`.
        memory: what the client keeps until its next visit; {} unless the algorithm is `stateful`.
        metrics: scalars, averaged over the cohort weighted by the number of examples.
        model: the client's own model after training, all keys of the net; it goes nowhere, but a wrapper may
            keep it. None if the method does not say.
    """

    upload: Mapping[str, Tree]
    memory: Tree
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


class Effort(NamedTuple):
    """Local steps of one kind, for counting what they cost.

    Attributes:
        steps: how many.
        trainable: keys of the net that each of them moves.
        extra: parameters that each moves besides, which are no keys of the net, such as those of a second
            head; counted as a linear layer whose inputs need no gradient.
        forwards: passes through the whole net that each makes besides without a gradient, as of a teacher.
        examples: how many examples go through all these steps together; None for their share of those of the
            local steps.
        per_example: floating-point operations besides for each of these examples, such as of a feature that
            is generated for it (`fedsim.training.flops`).
        besides: floating-point operations of all these steps together besides.
        moves: how many of the steps move these keys, where the others take a gradient for its own sake; None
            for all of them.
    """

    steps: int
    trainable: Collection[str]
    extra: int = 0
    forwards: int = 0
    examples: int | None = None
    per_example: int = 0
    besides: int = 0
    moves: int | None = None


@dataclass(frozen=True, kw_only=True)
class Local:
    """The local training that every client does, whatever the algorithm.

    Attributes:
        epochs: passes over the client's examples in a round.
        steps: local steps in a round; overrides `epochs`.
        batch_size: examples per step; the last batch of an epoch may be smaller and is never dropped.
        lr, momentum, weight_decay: plain SGD, `v <- momentum v + (g + weight_decay w)`, `w <- w - lr v`,
            started anew in every round.
        lr_alpha, lr_power: step i of a round, from 0, has the rate `lr (1 + lr_alpha i)^-lr_power`; an alpha
            of 0 leaves it constant.
        round_decay: what `lr` is multiplied by from round to round; `in_round` does it.
        precision: the number type in which the steps multiply; parameters are in single precision always.
    """

    epochs: int = 1
    steps: int | None = None
    batch_size: int = 32
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_alpha: float = 0.0
    lr_power: float = 0.75
    round_decay: float = 1.0
    precision: Precision = "float32"

    def in_round(self, round: int) -> Local:
        """The same in a round, counted from 0: with the rate that is left by then."""
        return self if self.round_decay == 1 else replace(self, lr=self.lr * self.round_decay**round)

    def lr_at(self, step: int) -> float:
        """The learning rate of a local step, counted from 0 in every round."""
        return self.lr * pow(1 + self.lr_alpha * step, -self.lr_power)

    def reach(self, steps: int) -> float:
        """How far so many local steps carry a weight whose gradient is 1 throughout.

        With momentum, step i moves by `lr_i (g_i + momentum g_{i-1} + momentum^2 g_{i-2} + ...)`, so for a
        constant gradient g it moves by `lr_i (1 + momentum + ... + momentum^i) g`, and the round by g times

            reach = sum over i of lr_i (1 - momentum^(i+1)) / (1 - momentum).

        The way made divided by the reach is therefore the mean of a round's gradients, each weighted by how
        much of the way is due to it. At a constant rate the reach is `lr a` with FedNova's
        `a = (steps - momentum (1 - momentum^steps) / (1 - momentum)) / (1 - momentum)`; plain SGD has
        `lr steps`.
        """
        carried = total = 0.0
        for step in range(steps):
            carried = 1 + self.momentum * carried
            total += self.lr_at(step) * carried
        return total

    def steps_for(self, num_examples: int) -> int:
        """Local steps of a client with this many examples."""
        if self.steps is not None:
            return self.steps if num_examples else 0
        return self.epochs * -(-num_examples // self.batch_size)
