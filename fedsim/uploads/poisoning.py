"""Poisoning: changed training examples of malicious clients, and test images with a trigger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.base import rng
from fedsim.data.dataset import Dataset, Examples
from fedsim.data.partition import Partition
from fedsim.uploads.attacks import Attack, Backdoor, LabelFlip, draw_attackers


def poison_examples(
    attack: Attack, dataset: Dataset, partition: Partition, seed: int
) -> tuple[Dataset, Examples | None]:
    """Change the attackers' training examples.

    Args:
        attack: what the attackers do.
        dataset: of the federation, with one class for each example.
        partition: the training examples of each client; no two clients share one.
        seed: of the experiment.

    Returns:
        The data set, and with a backdoor the triggered test images: those of all classes but the target,
        with the trigger and the class `target`.
    """
    if not attack.poisons_examples:
        return dataset, None
    attackers = draw_attackers(attack, seed, partition.num_clients)
    held = {int(client): partition.client_positions(int(client)) for client in attackers}
    if isinstance(attack, LabelFlip):
        labels, rows = dataset.train.y.copy(), _join(list(held.values()))
        labels[rows] = dataset.num_classes - 1 - labels[rows]
        return replace(dataset, train=replace(dataset.train, y=labels)), None
    assert isinstance(attack, Backdoor)
    chosen = [_draw_rows(attack, seed, client, rows) for client, rows in held.items()]
    highest = dataset.train.x.max()
    train = _add_trigger(attack, dataset.train, _join(chosen), highest)
    others = dataset.test.select_rows(np.flatnonzero(dataset.test.y != attack.target))
    triggered = _add_trigger(attack, others, np.arange(len(others)), highest)
    return replace(dataset, train=train), triggered


def _join(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _draw_rows(attack: Backdoor, seed: int, client: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw the examples of an attacker that get the trigger."""
    count = round(attack.poisoned * len(rows))
    return rows[rng.stream(seed, "backdoor", client).permutation(len(rows))[:count]]


def _add_trigger(attack: Backdoor, examples: Examples, rows: NDArray[np.int64], highest: Any) -> Examples:
    """Return a copy whose images at these rows have a white square below right, and the target class."""
    x, y = examples.x.copy(), examples.y.copy()
    images = x[rows]
    images[..., -attack.size :, -attack.size :] = highest
    x[rows] = images
    y[rows] = attack.target
    return replace(examples, x=x, y=y)
