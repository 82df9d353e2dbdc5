"""Join the batches of many clients for one step into one batch.

A batch smaller than the largest is padded with its own first example, and the mask marks the padding. An
empty batch, as private steps may draw, is padded with any example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.clients.population import LoadedBatches
from fedsim.core import Batch, Batches
from fedsim.core.batches import RepeatedBatches


def make_joint_batch(batches: Sequence[Batches], step: int) -> tuple[Batch, Batch]:
    """Join the batches of many clients for one step.

    Args:
        batches: the batches of each client.
        step: number of the step, from 0.

    Returns:
        The joint batch, with the clients as the first dimension of each part; and for each part the dimension
        of the clients: 0, or None for a mask that is not needed.
    """
    origins = [_origin(each, step) for each in batches]
    gathered = _gather_joint_batch(origins)
    return gathered or _join_batches([each[number] for each, number in origins])


def _origin(batches: Batches, step: int) -> tuple[Batches, int]:
    """Return the batches under all `RepeatedBatches`, and the number of this step's batch in them."""
    while isinstance(batches, RepeatedBatches):
        inner = batches.batches
        batches, step = inner, step % len(inner)
    return batches, step


def _gather_joint_batch(origins: Sequence[tuple[Batches, int]]) -> tuple[Batch, Batch] | None:
    """Load the joint batch with one call of the loader; None if the batches do not all come from a loader."""
    found = [(each, number) for each, number in origins if type(each) is LoadedBatches]
    loader = found[0][0].loader if len(found) == len(origins) else None
    if loader is None or loader.population.dataset.augment is not None:
        return None
    rows = [each.rows[number] for each, number in found]
    lengths = np.array([len(each) for each in rows])
    most = max(1, int(lengths.max()))
    any_row = next((each[:1] for each in rows if len(each)), np.zeros(1, np.int64))
    index = np.stack(
        [np.concatenate([e, (e[:1] if len(e) else any_row).repeat(most - len(e))]) for e in rows]
    )
    batch = loader.load_batch(index.reshape(-1))
    x, y = (part.view(*index.shape, *part.shape[1:]) for part in (batch.x, batch.y))
    noise, dims = _noise([each.step_noise(number, x) for each, number in found])
    return _add_mask(Batch(x, y, None, noise, batch.label_smoothing), lengths, dims)


def _join_batches(parts: Sequence[Batch]) -> tuple[Batch, Batch]:
    """Pad and stack the batches of all clients."""
    lengths = np.array([len(part.y) for part in parts])
    noise, dims = _noise([part.noise for part in parts])
    most = max(1, int(lengths.max()))
    x = torch.stack([_fill_rows(part.x, most) for part in parts])
    y = torch.stack([_fill_rows(part.y, most) for part in parts])
    return _add_mask(Batch(x, y, None, noise, parts[0].label_smoothing), lengths, dims)


def _add_mask(batch: Batch, lengths: np.ndarray[Any, Any], dims: Any) -> tuple[Batch, Batch]:
    """Return the joint batch and its dims; without a mask if every row is an example."""
    most = max(1, int(lengths.max()))
    if most == lengths.min():
        return batch, Batch(0, 0, None, dims, None)  # type: ignore[arg-type]
    real = np.arange(most) < lengths[:, None]
    mask = tree.send_to_device(torch.from_numpy(real.astype(np.float32)), batch.y.device)
    return batch._replace(mask=mask), Batch(0, 0, 0, dims, None)  # type: ignore[arg-type]


def _noise(parts: Sequence[Tree]) -> tuple[Tree, Tree]:
    """Stack one step's noise of many clients, and return it with the dimension of the clients in each part.

    A part that is itself a batch is padded like a batch. A part whose shape differs between clients, such as
    a client's share of a data set divided by its number of steps, cannot be stacked and is left out.
    """
    leaves, dims = dict[str, Any](), dict[str, Any]()
    for name, first in parts[0].items():
        every = [part[name] for part in parts]
        if isinstance(first, Batch):
            leaves[name], dims[name] = _join_batches(every)
        elif isinstance(first, Mapping):
            leaves[name], dims[name] = _noise(every)
        elif all(each.shape == first.shape for each in every):
            leaves[name], dims[name] = torch.stack(every), 0
    return leaves, dims


def _fill_rows(rows: Tensor, count: int) -> Tensor:
    """Pad rows to `count` with copies of the first row, or with zeros if there is none."""
    missing = count - len(rows)
    if not len(rows):
        return rows.new_zeros(count, *rows.shape[1:])
    return torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])]) if missing else rows
