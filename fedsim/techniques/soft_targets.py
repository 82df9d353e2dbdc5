"""Soft targets: softened predictions of a teacher, and the loss of a student that learns from them.

Every algorithm that distils uses this module. The conventions are the same for all:

- A soft prediction is a probability: softmax over the classes, or the sigmoid of each yes-or-no label.
- The loss is KL(teacher || student) in nats: the mean over the examples, and for examples with several
  yes-or-no labels first the mean over the labels. It has no factor T^2: algorithms multiply by it.

`soft_target_loss` takes the teacher as probabilities, which may be 0 (predictions of which only the largest
entries were sent). `kl_divergence` takes the teacher as logits, and its gradient reaches the teacher too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.training.losses import masked_mean

LEAST_PROBABILITY = 1e-6
"""The least probability of a soft prediction that needs a logarithm or a positive sum."""


def soften_logits(logits: Tensor, temperature: float, several_labels: bool = False) -> Tensor:
    """Return soft predictions: probabilities of the classes, or of each label.

    Args:
        logits: `[batch, classes]`.
        temperature: logits are divided by it; above 0.
        several_labels: whether an example has several yes-or-no labels.

    Example:
        >>> soften_logits(torch.tensor([[0.0, 0.0]]), temperature=2.0)
        tensor([[0.5000, 0.5000]])
    """
    scaled = logits / temperature
    return scaled.sigmoid() if several_labels else scaled.softmax(-1)


def soft_target_loss(
    teacher: Tensor,
    logits: Tensor,
    temperature: float,
    several_labels: bool = False,
) -> Tensor:
    """Return KL(teacher || student) in nats, a scalar: the teacher as probabilities.

    Args:
        teacher: the teacher's soft predictions `[batch, classes]`, see `soften_logits`.
        logits: the student's logits `[batch, classes]`.
        temperature: the student's logits are divided by it; above 0.
        several_labels: whether an example has several yes-or-no labels.

    Example:
        >>> teacher = soften_logits(torch.tensor([[1.0, 3.0]]), temperature=2.0)
        >>> soft_target_loss(teacher, torch.tensor([[1.0, 3.0]]), temperature=2.0).abs() < 1e-6
        tensor(True)
    """
    scaled = logits / temperature
    if several_labels:
        each = F.binary_cross_entropy_with_logits(scaled, teacher, reduction="none")
        each = each + torch.xlogy(teacher, teacher) + torch.xlogy(1 - teacher, 1 - teacher)
        return each.mean(-1).mean()
    each = torch.xlogy(teacher, teacher) - teacher * F.log_softmax(scaled, -1)
    return each.sum(-1).mean()


def compare_soft_predictions(
    first: Tensor, second: Tensor, temperature: float, several_labels: bool = False
) -> Tensor:
    """Return KL(first || second) of two soft predictions of one temperature, a scalar.

    A probability below `LEAST_PROBABILITY` in `second` counts as that, for the result would be infinite.
    """
    if several_labels:
        logits = torch.logit(second, eps=LEAST_PROBABILITY)
    else:
        logits = second.clamp(min=LEAST_PROBABILITY).log()
    return soft_target_loss(first, temperature * logits, temperature, several_labels)


def kl_divergence(
    first: Tensor,
    second: Tensor,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    several_labels: bool = False,
) -> Tensor:
    """Return KL(first || second) in nats, a scalar: both as logits. A student is the second.

    Args:
        first: logits `[batch, classes]`.
        second: logits `[batch, classes]`.
        mask: `[batch]`, 1 for an example and 0 for padding; None if every row is an example.
        temperature: both logits are divided by it; above 0.
        several_labels: whether an example has several yes-or-no labels.
    """
    return masked_mean(kl_by_example(first, second, temperature, several_labels), mask)


def kl_by_example(
    first: Tensor, second: Tensor, temperature: float = 1.0, several_labels: bool = False
) -> Tensor:
    """Return KL(first || second) of each example, `[batch]`; see `kl_divergence`."""
    p, q = first / temperature, second / temperature
    if several_labels:
        each = p.sigmoid() * (F.logsigmoid(p) - F.logsigmoid(q))
        each = each + (-p).sigmoid() * (F.logsigmoid(-p) - F.logsigmoid(-q))
        return each.mean(-1)
    p, q = F.log_softmax(p, -1), F.log_softmax(q, -1)
    return (p.exp() * (p - q)).sum(-1)
