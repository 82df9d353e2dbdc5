"""The trees of many clients as one tree, and the client task that the loss of a stack sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.core import ClientTask


class StackedTrees(NamedTuple):
    """The trees of many clients as one tree.

    Attributes:
        leaves: the tree. A leaf has the clients as its first dimension, or is one object that all share.
        dims: a tree of the same form: 0 for a leaf with a client dimension, None for a shared leaf.
    """

    leaves: Tree
    dims: Tree

    def first_clients(self, clients: int) -> Tree:
        """Return the stacked tree of the first `clients` clients."""
        return tree.map(lambda leaf, dim: leaf if dim is None else leaf[:clients], self.leaves, self.dims)

    def client_tree(self, number: int) -> Tree:
        """Return the tree of the client at position `number`."""
        return tree.map(lambda leaf, dim: leaf if dim is None else leaf[number], self.leaves, self.dims)


def stack_trees(trees: Sequence[Tree]) -> StackedTrees:
    """Stack the trees of many clients, all of one shape."""
    dims = tree.map(lambda *leaves: None if _are_same(leaves) else 0, *trees)
    return StackedTrees(
        tree.map(lambda *leaves: leaves[0] if _are_same(leaves) else torch.stack(leaves), *trees), dims
    )


def _are_same(leaves: Sequence[Any]) -> bool:
    """Return whether all leaves are the same object."""
    return all(leaf is leaves[0] for leaf in leaves)


def stack_loss_inputs(tasks: Sequence[ClientTask]) -> StackedTrees:
    """Stack the fields of client tasks that a loss may read.

    The clients' numbers and their numbers of examples become tensors: each client of a stack has its own.
    """
    numbers = torch.tensor([[task.client for task in tasks], [task.num_examples for task in tasks]])
    client, num_examples = tree.send_to_device(numbers, tasks[0].device)
    leaves, dims = stack_trees(
        [
            {
                "label_counts": task.label_counts,
                "known_counts": task.known_counts,
                "broadcast": task.broadcast,
                "instruction": task.instruction,
                "client_state": task.client_state,
                "round_noise": task.round_noise,
            }
            for task in tasks
        ]
    )
    own = {"client": client, "num_examples": num_examples}
    return StackedTrees({**own, **leaves}, {**dict.fromkeys(own, 0), **dims})


def make_loss_view(task: ClientTask, shown: Mapping[str, Any]) -> ClientTask:
    """Return the task that a loss sees; forbidden fields are empty rather than those of another client."""
    return task._replace(**shown, batches=(), examples=cast(Any, None), held_out=None, lockstep=None)
