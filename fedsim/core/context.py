"""Context: one round as every client and the server see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fedsim.base.tree import Tree
from fedsim.core.local_training import LocalTraining
from fedsim.core.public_set import PublicSet
from fedsim.errors import DataError
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
        input_shape: of one example, as the nets read it.
        local: the local training.
        nets: the architectures; client k has `nets[k % len(nets)]`.
        model: the index of `net` among them.
        public: the public set on this device; None where the run has none.
        device: where the server trains (`ServerTraining`); clients may train elsewhere.
    """

    round: int
    rounds: int
    seed: int
    num_clients: int
    cohort_size: int
    mean_examples: float
    num_classes: int
    input_shape: tuple[int, ...]
    local: LocalTraining
    nets: tuple[Net, ...]
    model: int = 0
    public: PublicSet | None = None
    device: torch.device = CPU

    @property
    def net(self) -> Net:
        """The architecture of this context."""
        return self.nets[self.model]

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
        return self.net.init(self.seed, self.model)

    def cached_init_params(self, device: torch.device | None = None) -> Params:
        """Return the values of `init_params` for reading only; see `Net.cached_init`."""
        return self.net.cached_init(self.seed, device, self.model)

    def for_client(self, client: int) -> Context:
        """Return this round with the client's architecture."""
        return self.for_model(client % len(self.nets))

    def for_model(self, model: int) -> Context:
        """Return this round with one architecture."""
        return replace(self, model=model) if model != self.model else self

    def select_architecture(self, tree: Tree) -> Tree:
        """Return the part of a tree of this architecture; with several, a tree is keyed by their numbers."""
        found: Tree = tree[str(self.model)] if len(self.nets) > 1 else tree
        return found

    def map_architectures(
        self, change: Callable[[Context, Tree, Tree], Tree], held: Tree, came: Tree
    ) -> Tree:
        """Change the part of every architecture in a tree.

        Args:
            change: returns the new part, from (context of the architecture, part of `held`, part of `came`).
            held: a tree as in `select_architecture`.
            came: another one; an architecture that it lacks stays as it is.
        """
        if len(self.nets) == 1:
            return change(self, held, came) if came else held
        changed = {
            model: change(self.for_model(int(model)), held[model], part) for model, part in came.items()
        }
        return {**held, **changed}
