"""Private steps: DP-SGD (Abadi et al., CCS 2016, arXiv:1607.00133, Algorithm 1) inside a local loop.

A step computes the gradient of each example by itself, scales it down to a norm of at most C, adds the
gradients of the batch, adds Gaussian noise of the standard deviation z C to each number of the sum, and
divides by the expected size of a batch. The optimizer of the local training continues with the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedsim.core import Batch, Batches
from fedsim.errors import FedsimError
from fedsim.models.net import Params

MOST_NUMBERS = 2**26
"""Numbers in the gradients of the examples that are computed at once: 256 MB in single precision."""

SMALLEST_NORM = 1e-12


@dataclass
class PrivateBatches:
    """The batches of a client whose local steps are private; no other code can read them.

    One local loop may run on them: another one would repeat the noise.

    Attributes:
        batches: Poisson samples of the client's examples; a batch may be empty.
        clip: C, the largest norm of an example's gradient.
        noise_multiplier: z; the noise on a sum of gradients has the standard deviation z C.
        expected_size: mean number of examples in a batch, above 0.
        seed: of the noise of this client in this round.
    """

    batches: Batches
    clip: float
    noise_multiplier: float
    expected_size: float
    seed: int
    has_begun: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, step: int) -> NoReturn:
        raise make_hidden_error("the batches of a client")

    def __iter__(self) -> Iterator[Batch]:
        raise make_hidden_error("the batches of a client")

    def begin(self) -> None:
        """Note that the local loop begins.

        Raises:
            FedsimError: it is the second one.
        """
        if self.has_begun:
            raise make_hidden_error("the batches of a client once more")
        self.has_begun = True

    def make_generator(self, device: torch.device) -> torch.Generator:
        """Make the generator of the noise of one local loop."""
        return torch.Generator(device).manual_seed(self.seed)

    def add_noise(self, sums: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        """Return the noisy mean of a step: (sum + z C noise) / expected size, for each weight."""
        std = self.noise_multiplier * self.clip
        return [(each + _draw_noise(each, std, generator)) / self.expected_size for each in sums]


def make_hidden_error(what: str) -> FedsimError:
    """Make the error of an algorithm that reads examples outside of private steps."""
    return FedsimError(
        f"the algorithm reads {what} outside of its private steps, which the budget does not cover",
        "choose another algorithm, or privacy.kind: central or local",
    )


def sum_clipped_gradients(
    loss: Callable[[Params, Batch], Tensor],
    weights: Params,
    batch: Batch,
    clip: float,
    *,
    at_once: int,
    can_vmap: bool = True,
) -> tuple[Tensor, list[Tensor]]:
    """Return the sum of the examples' losses, and for each weight the sum of their clipped gradients.

    Args:
        loss: scalar loss of (weights that train, batch); it is called with batches of one example.
        weights: the weights that train.
        batch: the examples; rows that its mask marks as padding do not count.
        clip: C, the largest norm of an example's gradient over all weights.
        at_once: number of examples whose gradients are in memory at the same time.
        can_vmap: whether `torch.func.vmap` can run the loss; otherwise examples go one by one.
    """

    def differentiate(x: Tensor, y: Tensor) -> tuple[Params, Tensor]:
        example = Batch(x.unsqueeze(0), y.unsqueeze(0), label_smoothing=batch.label_smoothing)
        slopes, value = grad_and_value(loss)(weights, example)
        return slopes, value.detach()

    total = torch.zeros((), device=batch.y.device)
    sums = [torch.zeros_like(weight) for weight in weights.values()]
    for start in range(0, len(batch.y), at_once):
        rows = slice(start, start + at_once)
        slopes, values = (vmap(differentiate) if can_vmap else _map_each(differentiate))(
            batch.x[rows], batch.y[rows]
        )
        each = [slopes[key].flatten(1) for key in weights]
        norms = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(part, dim=1) for part in each]), dim=0
        )
        counts = torch.ones_like(norms) if batch.mask is None else batch.mask[rows]
        # No factor makes an infinite gradient as short as the bound; such an example does not count.
        is_finite = norms.isfinite()
        factors = torch.where(is_finite, (clip / norms.clamp(min=SMALLEST_NORM)).clamp(max=1.0) * counts, 0.0)
        total = total + (values * counts).sum()
        # One weight after the other: a copy of all gradients would double the memory of `at_once` examples.
        sums = [
            old + (factors @ part.where(is_finite[:, None], 0.0)).view_as(old)
            for old, part in zip(sums, each, strict=True)
        ]
    return total, sums


def count_at_once(weights: Sequence[Tensor]) -> int:
    """Return how many examples' gradients by these weights may be in memory; at least 1."""
    return max(1, MOST_NUMBERS // max(1, sum(weight.numel() for weight in weights)))


def _map_each(
    function: Callable[[Tensor, Tensor], tuple[Params, Tensor]],
) -> Callable[[Tensor, Tensor], tuple[Params, Tensor]]:
    """Return the function that `vmap` would return, for functions that it cannot run."""

    def call(x: Tensor, y: Tensor) -> tuple[Params, Tensor]:
        found = [function(*pair) for pair in zip(x, y, strict=True)]
        keys = found[0][0]
        stacked = {key: torch.stack([slopes[key] for slopes, _ in found]) for key in keys}
        return stacked, torch.stack([value for _, value in found])

    return call


def _draw_noise(like: Tensor, std: float, generator: torch.Generator) -> Tensor:
    if std == 0:
        return torch.zeros_like(like)
    return std * torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
