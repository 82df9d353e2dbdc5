"""Context: one round as every client and the server see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

import torch

from fedsim.base.tree import Tree
from fedsim.core.local_training import LocalTraining
from fedsim.core.public_set import PublicSet
from fedsim.errors import DataError
from fedsim.learning_tasks.learning_task import LearningTask
from fedsim.models.net import Net, Params

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Context:
    """The facts of a round that all its clients and the server share.

    Attributes:
        round: counted from 0 while it runs (records count finished rounds, from 1).
        rounds: number of rounds of the run.
        seed: of the experiment.
        num_clients, cohort_size: N, and the number of clients in a round.
        mean_examples: mean number of training examples of a client: a scale on which all agree.
        num_classes: C.
        learning_task: the loss and the labels of the data set.
        input_shape: of one example, as the nets read it.
        local: the local training.
        nets: the architectures; client k has `nets[k % len(nets)]`.
        architecture: the index of `net` among them.
        public: the public set on this device; None where the run has none.
        frozen: keys that no local step of this round changes.
        device: where the server trains (`ServerTraining`); clients may train elsewhere.
        clock: simulated seconds at the start of the round, on the server of a run with devices; else 0.
        limits: {client: its epochs, or its steps with `local.steps`}, for clients that do less than `local`
            says, because of a deadline.
        unlimited_local: the local training of clients without a limit, where `local` is that of one with a
            limit; else None.
    """

    round: int
    rounds: int
    seed: int
    num_clients: int
    cohort_size: int
    mean_examples: float
    num_classes: int
    learning_task: LearningTask
    input_shape: tuple[int, ...]
    local: LocalTraining
    nets: tuple[Net, ...]
    architecture: int = 0
    public: PublicSet | None = None
    frozen: frozenset[str] = frozenset()
    device: torch.device = CPU
    clock: float = 0.0
    limits: Mapping[int, int] = field(default_factory=dict)
    unlimited_local: LocalTraining | None = None

    @property
    def net(self) -> Net:
        """The architecture of this context."""
        return self.nets[self.architecture]

    @property
    def usual_local(self) -> LocalTraining:
        """The local training of a client without a limit: the same for all clients and the server."""
        return self.unlimited_local or self.local

    @property
    def usual_steps(self) -> int:
        """The local steps of a client of average size without a limit, at least 1."""
        return self.usual_local.steps_for(max(1, ceil(self.mean_examples)))

    def require_public_set(self) -> PublicSet:
        """Return the public set.

        Raises:
            DataError: the run has none.
        """
        if self.public is None:
            raise DataError(
                "this algorithm exchanges predictions on a public set, and the run has none",
                "have one cut off the data: data.public.fraction: 0.1",
            )
        return self.public

    def init_params(self) -> Params:
        """Return new first parameters and buffers of the architecture, made from the seed."""
        return self.net.init(self.seed, self.architecture)

    def cached_init_params(self, device: torch.device | None = None) -> Params:
        """Return the values of `init_params` for reading only; see `Net.cached_init`."""
        return self.net.cached_init(self.seed, device, self.architecture)

    def for_client(self, client: int) -> Context:
        """Return this round with the client's architecture, and its own amount of work if it has a limit."""
        ctx = self.for_architecture(client % len(self.nets))
        return ctx.limit_work(self.limits[client]) if client in self.limits else ctx

    def limit_work(self, amount: int) -> Context:
        """Return this round with so many epochs, or so many steps with `local.steps`."""
        return replace(self, local=self.local.limit_work(amount), limits={}, unlimited_local=self.local)

    def is_of_architecture(self, client: int) -> bool:
        """Return whether the client has this architecture."""
        return client % len(self.nets) == self.architecture

    def for_architecture(self, architecture: int) -> Context:
        """Return this round with one architecture."""
        return replace(self, architecture=architecture) if architecture != self.architecture else self

    @property
    def num_architecture_clients(self) -> int:
        """Number of clients with this architecture, also outside the cohort; N with one architecture."""
        return len(range(self.architecture, self.num_clients, len(self.nets)))

    @property
    def architectures(self) -> dict[str, Context]:
        """This round with each architecture: {"0": context, "1": ...}."""
        return {str(number): self.for_architecture(number) for number in range(len(self.nets))}

    def select_architecture(self, tree: Tree) -> Tree:
        """Return the part of a tree that belongs to this architecture.

        With one architecture it is the whole tree. With several, the tree is {"0": part, "1": part, ...}.
        """
        found: Tree = tree[str(self.architecture)] if len(self.nets) > 1 else tree
        return found

    def map_architectures(self, change: Callable[[Context, Tree], Tree], tree: Tree) -> Tree:
        """Return a tree of the same form, with `change` of the part of every architecture.

        Args:
            change: returns the new part, from the context of the architecture and the part of `tree`.
            tree: as in `select_architecture`.
        """
        if len(self.nets) == 1:
            return change(self, tree)
        return {key: change(self.for_architecture(int(key)), part) for key, part in tree.items()}

    def update_architectures(
        self, change: Callable[[Context, Tree, Tree], Tree], old: Tree, new: Tree
    ) -> Tree:
        """Return `old` with `change` of the part of every architecture that `new` has.

        Args:
            change: returns the new part, from the context of the architecture, the part of `old` and the
                part of `new`.
            old: a tree as in `select_architecture`.
            new: such a tree too, as `ReducedUpdates` has it; {} or without the architectures of which no
                client came.
        """
        if len(self.nets) == 1:
            return change(self, old, new) if new else old
        changed = {key: change(self.for_architecture(int(key)), old[key], part) for key, part in new.items()}
        return {**old, **changed}
