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
    """What every client of a round has in common.

    Attributes:
        round: counted from 0 while it runs (records count the finished rounds, from 1).
        rounds: how many the run has.
        seed: of the experiment.
        num_clients, cohort_size: N, and how many of them come to a round.
        mean_examples: how many training examples a client holds on average: a scale that all agree on.
        num_classes: C.
        input_shape: of one example, as the nets read it.
        local: the local training.
        nets: the architectures; client k runs `nets[k % len(nets)]`.
        model: which of them `net` is.
        public: the public set, where this code runs; None where there is none (see `require_public_set`).
        device: where the server trains what is its own (`Algorithm.learn`); not where clients train.
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
        """The architecture at hand."""
        return self.nets[self.model]

    def require_public_set(self) -> PublicSet:
        """The public set of the run.

        Raises:
            DataError: the run has none.
        """
        if self.public is None:
            raise DataError(
                "this method exchanges predictions on a public set, and there is none",
                "have one cut off: data.public.fraction: 0.1",
            )
        return self.public

    def init_params(self) -> Params:
        """Fresh parameters and buffers of the architecture at hand."""
        return self.net.init(self.seed, self.model)

    def cached_init_params(self, device: torch.device | None = None) -> Params:
        """The values of `fresh`, for reading only; see `Net.first`."""
        return self.net.cached_init(self.seed, device, self.model)

    def for_client(self, client: int) -> Context:
        """The same round as this client sees it: with its own architecture."""
        return self.for_model(client % len(self.nets))

    def for_model(self, model: int) -> Context:
        """The same round for the clients of one architecture."""
        return replace(self, model=model) if model != self.model else self

    def select_architecture(self, tree: Tree) -> Tree:
        """The part of a tree that belongs to the architecture at hand.

        With one architecture that is the tree itself; with several, trees that hold one entry for each are
        keyed by the architecture's number, as text.
        """
        found: Tree = tree[str(self.model)] if len(self.nets) > 1 else tree
        return found

    def map_architectures(
        self, change: Callable[[Context, Tree, Tree], Tree], held: Tree, came: Tree
    ) -> Tree:
        """A tree changed by what came, architecture by architecture.

        Args:
            change: gives the new part of (the context of one architecture, what is held, what came).
            held: a tree as in `own`.
            came: another, which may lack the architectures that nobody came with, or had examples of; these
                stay as they are.
        """
        if len(self.nets) == 1:
            return change(self, held, came) if came else held
        changed = {
            model: change(self.for_model(int(model)), held[model], part) for model, part in came.items()
        }
        return {**held, **changed}
