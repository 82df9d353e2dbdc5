"""The gradients of a local step: computed, clipped, corrected."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def compute_gradients(
    value: Tensor,
    weights: Sequence[Tensor],
    correction: Sequence[Tensor] | None,
    clip_norm: float | None,
    *,
    stacked: bool = False,
) -> list[Tensor | None]:
    """Return the gradients of a loss, clipped and then corrected; None for a weight that the loss ignores.

    `run_sgd` and its stacked twin in `fedsim.stacking.stacked` use it, and then `make_update`. Clipping goes
    before the correction, so that SCAFFOLD's controls stay means of the clients' own (clipped) gradients.

    Args:
        value: the loss, or the sum of the losses of stacked clients.
        weights: the weights that train.
        correction: added to the gradients; None for nothing.
        clip_norm: the largest norm of a client's gradient; None for no limit.
        stacked: whether the first dimension of every weight is the client.
    """
    if not weights:
        return []
    gradients: list[Tensor | None] = [*torch.autograd.grad(value, weights, allow_unused=True)]
    if clip_norm is not None:
        with torch.no_grad():
            gradients = clip_gradients(gradients, clip_norm, stacked=stacked)
    return add_correction(gradients, correction)


def add_correction(
    gradients: Sequence[Tensor | None], correction: Sequence[Tensor] | None
) -> list[Tensor | None]:
    """Return gradients plus a correction; None stays None, and a correction of None changes nothing."""
    corrected = list(gradients)
    used = {number: gradient for number, gradient in enumerate(gradients) if gradient is not None}
    if correction is None or not used:
        return corrected
    with torch.no_grad():
        sums = torch._foreach_add(list(used.values()), [correction[number] for number in used])
    for number, total in zip(used, sums, strict=True):
        corrected[number] = total
    return corrected


def clip_gradients(
    gradients: Sequence[Tensor | None], max_norm: float, *, stacked: bool
) -> list[Tensor | None]:
    """Scale gradients down to a norm of at most `max_norm`, over all weights, as torch's `clip_grad_norm_`.

    Args:
        gradients: of all weights; None for a weight without one.
        max_norm: the largest norm.
        stacked: whether the first dimension of every gradient is the client; each client has its own norm.
    """
    used = [each for each in gradients if each is not None]
    if not used:
        return list(gradients)
    clients = len(used[0]) if stacked else 1
    norms = torch.stack([torch.linalg.vector_norm(each.reshape(clients, -1), dim=1) for each in used])
    factors: Tensor = (max_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1)

    def scale(gradient: Tensor) -> Tensor:
        # One factor for each client, or a scalar.
        shape = (clients, *(1,) * (gradient.dim() - 1)) if stacked else ()
        return gradient * factors.view(shape)

    return [None if each is None else scale(each) for each in gradients]
