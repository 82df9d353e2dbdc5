"""ClientTask and ClientUpdate: what a client gets for one round, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedsim.base.tree import Tree
from fedsim.core.batches import Batches, ClientExamples


class Lockstep(Protocol):
    """The stack in which a client trains; it runs the local loops of all its clients at once."""

    # The loop is a `fedsim.training.local_loop.LocalLoop`, a type of a room above this one.
    def run_loop(self, loop: Any) -> Any:
        """Run a local loop together with the loops of the other clients; return its `TrainedModel`."""


class ClientTask(NamedTuple):
    """The task of one client in one round: all that its code may read.

    Attributes:
        client: the number of the client, from 0.
        batches: the batch of every local step; empty while `BatchPacing.pace_batches` chooses them.
        num_examples: number of training examples of the client, without the held-out ones.
        label_counts: examples of each class, float32 `[classes]`; with several labels, yes-labels of each;
            without class labels, the number of examples as one class.
        known_counts: examples with a known label of each class, float32 `[classes]`.
        broadcast: {payload name: tree} that every client of the cohort receives.
        instruction: {payload name: tree} that only this client receives (`ClientInstructions`).
        client_state: the state that the client kept from its last round.
        examples: its training examples, apart from the local steps.
        held_out: its held-out examples (`HeldOutExamples`); None where the algorithm holds out none.
        round_noise: its random numbers of this round (`RoundNoise`), or {}.
        lockstep: the stack in which the client trains; None where it trains alone.
    """

    client: int
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
        """The device on which the client trains."""
        return self.label_counts.device


class ClientUpdate(NamedTuple):
    """The result of one client's round.

    Attributes:
        upload: {payload name: tree}, with exactly the names of `Algorithm.uploads`. A MEAN or SUM payload has
            the same keys, in the same order, and the same shapes for all clients of an architecture.
        client_state: the state that the client keeps for its next round; {} unless `Algorithm.stateful`.
        metrics: scalars; a record has the mean of each over the clients that report it, weighted by their
            numbers of examples.
        model: the client's trained model, all keys of the net. It is not sent; a curriculum may read it.
            None if the algorithm does not say.
    """

    upload: Mapping[str, Tree]
    client_state: Tree
    metrics: Mapping[str, Any]
    model: Tree | None = None
