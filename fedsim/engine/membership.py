"""Membership inference: whether the loss of an example tells that a client trained on it.

Yeom, Giacomelli, Fredrikson, Jha, CSF 2018, arXiv:1709.01604: the attack calls every example a member whose
loss is below a threshold. Members are training examples that clients hold; the others are the test examples.
A record has three figures of each deployed model:

- `NAME_membership_auroc`: the probability that a member has a smaller loss than a test example, with 1/2 for
  equal losses. 0.5 is a guess.
- `NAME_membership_advantage`: the largest difference, over all thresholds, between the share of the members
  and the share of the test examples that the attack calls members. A guess has about 0.87 sqrt(2 / n) with
  n members and n test examples, because the threshold is the best one of these examples.
- `NAME_membership_tpr1`: the share of the members that the attack finds if it calls 1 % of the test examples
  members (Carlini et al., S&P 2022, arXiv:2112.03570). 0.01 is a guess.

The attacker knows the model alone. Stronger attacks train models of their own (shadow models).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng
from fedsim.data.dataset import Examples, Indices
from fedsim.learning_tasks.learning_task import LearningTask
from fedsim.learning_tasks.score import Score

Losses: TypeAlias = NDArray[np.float64]

MEMBERS = "_members"
"""The ending of the scores on members."""

FEW_FALSE_ALARMS = 0.01

_LOSSES = "losses"

_LARGEST = float(np.finfo(np.float64).max)


def draw_members(train: Examples, held: Indices, most: int, seed: int) -> Examples:
    """Draw training examples of the clients.

    Args:
        train: all training examples.
        held: the positions of those that clients hold.
        most: number of examples to draw; all, if clients hold fewer.
        seed: of the run.
    """
    order = rng.stream(seed, "members").permutation(len(held))[:most]
    return train.select_rows(np.sort(held[order]))


def keep_losses(score: Score, task: LearningTask, outputs: Tensor, y: Tensor) -> Score:
    """Return a score of a batch that also holds the loss of each example."""
    losses = task.example_losses(outputs.double(), y).cpu().numpy()
    return score._replace(states={**(score.states or {}), _LOSSES: {"each": (losses,)}})


def measure_membership(scores: Mapping[str, Score]) -> dict[str, float]:
    """Return the figures of every model that was scored on members."""
    found = dict[str, float]()
    for name in scores:
        if MEMBERS in name:
            model, _, number = name.rpartition(MEMBERS)
            members, others = (_read_losses(scores[each]) for each in (name, model + number))
            found |= {
                f"{model}_membership{number}_{figure}": value
                for figure, value in attack_by_loss(members, others).items()
            }
    return found


def attack_by_loss(members: Losses, others: Losses) -> dict[str, float]:
    """Return the AUROC and the advantage of the attack, and what it finds with few false alarms.

    Args:
        members: the loss of each member.
        others: the loss of each other example.

    Example:
        >>> attack_by_loss(np.array([0.1, 0.2, 0.9]), np.array([0.5, 0.7, 1.2]))
        {'auroc': 0.7777777777777778, 'advantage': 0.6666666666666666, 'tpr1': 0.6666666666666666}
    """
    from sklearn.metrics import auc, roc_curve  # slow to import, and rarely needed

    is_member = np.arange(len(members) + len(others)) < len(members)
    losses = np.concatenate([members, others])
    # All points of the curve: by default those on a straight line are left out, and `tpr1` reads one.
    wrong, right, _ = roc_curve(is_member, -losses, drop_intermediate=False)
    return {
        "auroc": float(auc(wrong, right)),
        "advantage": float((right - wrong).max()),
        "tpr1": float(right[wrong <= FEW_FALSE_ALARMS].max()),
    }


def _read_losses(score: Score) -> Losses:
    """Return the losses of all examples; a NaN, of a model that diverged, counts as a large loss."""
    found: Losses = np.concatenate((score.states or {})[_LOSSES]["each"])
    return np.nan_to_num(found, nan=_LARGEST, posinf=_LARGEST)
