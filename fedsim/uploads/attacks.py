"""Attacks: what malicious clients do, and which clients are malicious.

An attack acts at one of three places. Attacks on examples change the training examples before the run
(`fedsim.uploads.poisoning`). Attacks on updates change what each attacker sends. Colluding attackers know
the updates of others, so that the server's process computes what they send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from statistics import NormalDist
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng
from fedsim.base.parameters import Positive, Range, Share

Factor = Annotated[float, Range(above=0, maximum=1e6)]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What malicious clients do. Each subclass changes examples, updates, or the updates of all attackers.

    Class attributes:
        poisons_examples: whether the attackers' training examples are changed.
        changes_updates: whether the attackers' updates are changed.
        colludes: whether attackers know the updates of others.

    Attributes:
        share: of all clients that are malicious, rounded to whole clients; drawn once from the seed.
    """

    poisons_examples: ClassVar[bool] = False
    changes_updates: ClassVar[bool] = True
    colludes: ClassVar[bool] = False

    share: Share = 0.2

    def change_update(self, update: Tensor, stream: np.random.Generator) -> Tensor:
        """Return what an attacker sends, float64 `[d]`.

        Args:
            update: its honest update, float64 `[d]`: the parameters, without statistics of normalisation
                layers.
            stream: the random stream of this client and round.
        """
        return update

    def forge_update(self, own: Tensor, honest: Tensor) -> Tensor:
        """Return what all colluding attackers of a round send, float64 `[d]`.

        Args:
            own: the updates that the attackers would send if they were honest, float64 `[f, d]`.
            honest: the updates of the other clients, float64 `[n - f, d]`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no colluding attackers")


def draw_attackers(attack: Attack, seed: int, num_clients: int) -> NDArray[np.int64]:
    """Draw the malicious clients of a run, in ascending order; the same for every attack of this share."""
    count = floor(attack.share * num_clients + 0.5)
    return np.sort(rng.stream(seed, "attackers").permutation(num_clients)[:count])


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """Attackers train on wrong labels: class y becomes C - 1 - y (Fang et al., USENIX Security 2020)."""

    poisons_examples: ClassVar[bool] = True
    changes_updates: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Backdoor(Attack):
    """Attackers teach the model that a white square in a corner of an image means one class.

    Gu et al. 2017 (arXiv:1708.06733) have the trigger; Bagdasaryan et al. (AISTATS 2020) the boosted
    update. A record has `global_backdoor_accuracy`: the share of triggered test images of other classes
    that the model takes for the target, which is the attack success rate.

    Attributes:
        target: the class of images with the trigger.
        poisoned: share of an attacker's examples with the trigger and the class `target`.
        size: of the square, in pixels.
        boost: factor of an attacker's update; about the size of a cohort replaces the model.
    """

    poisons_examples: ClassVar[bool] = True

    target: Annotated[int, Range(0, 100_000)] = 0
    poisoned: Share = 0.5
    size: Annotated[int, Range(1, 1000)] = 3
    boost: Factor = 1.0

    def change_update(self, update: Tensor, stream: np.random.Generator) -> Tensor:
        """Multiply the update by `boost`."""
        return update * self.boost


@dataclass(frozen=True, kw_only=True)
class SignFlip(Attack):
    """Attackers send their update with the opposite sign (Li et al., AAAI 2019).

    Attributes:
        scale: factor of the reversed update.
    """

    scale: Factor = 1.0

    def change_update(self, update: Tensor, stream: np.random.Generator) -> Tensor:
        """Reverse the update."""
        return -self.scale * update


@dataclass(frozen=True, kw_only=True)
class Gaussian(Attack):
    """Attackers send noise in place of an update (Blanchard et al., NeurIPS 2017).

    Attributes:
        std: the standard deviation of each coordinate.
    """

    std: Positive = 1.0

    def change_update(self, update: Tensor, stream: np.random.Generator) -> Tensor:
        """Draw noise."""
        return torch.from_numpy(self.std * stream.standard_normal(len(update)))


@dataclass(frozen=True, kw_only=True)
class Scaling(Attack):
    """Attackers multiply their update.

    Attributes:
        scale: the factor.
    """

    scale: Factor = 10.0

    def change_update(self, update: Tensor, stream: np.random.Generator) -> Tensor:
        """Multiply the update."""
        return self.scale * update


@dataclass(frozen=True, kw_only=True)
class FreeRider(Attack):
    """Attackers send the received model back, perhaps with noise (Fraboni et al., AISTATS 2021).

    Attributes:
        std: the standard deviation of the noise on each coordinate; 0 for no disguise.
    """

    std: Annotated[float, Range(minimum=0)] = 0.0

    def change_update(self, update: Tensor, stream: np.random.Generator) -> Tensor:
        """Send no change but the noise."""
        return torch.from_numpy(self.std * stream.standard_normal(len(update)))


@dataclass(frozen=True, kw_only=True)
class ALittleIsEnough(Attack):
    """Attackers send a mean moved by a few standard deviations (Baruch et al., NeurIPS 2019).

    With the mean m and the standard deviation s of the attackers' honest updates in each coordinate, every
    attacker sends m - z s.

    Attributes:
        z: number of standard deviations; by default the largest one by which, in the paper's Algorithm 3,
            enough honest clients are farther from the mean.
    """

    colludes: ClassVar[bool] = True

    z: Positive | None = None

    def forge_update(self, own: Tensor, honest: Tensor) -> Tensor:
        """Move the mean of the attackers' updates."""
        spread = own.std(0, correction=0)
        return own.mean(0) - self._choose_z(len(own), len(honest)) * spread

    def _choose_z(self, attackers: int, honest: int) -> float:
        if self.z is not None:
            return self.z
        clients = attackers + honest
        # Algorithm 3: s = n/2 + 1 - f supporters among the honest make a majority with the attackers.
        supporters = clients // 2 + 1 - attackers
        share = min(max((honest - supporters) / max(honest, 1), 0.5), 1 - 1e-6)
        return NormalDist().inv_cdf(share)


@dataclass(frozen=True, kw_only=True)
class InnerProductManipulation(Attack):
    """Attackers send the honest mean with the opposite sign (Xie et al., UAI 2019, arXiv:1903.03936).

    Attributes:
        epsilon: the factor of the reversed mean.
    """

    colludes: ClassVar[bool] = True

    epsilon: Factor = 0.1

    def forge_update(self, own: Tensor, honest: Tensor) -> Tensor:
        """Reverse the mean of the honest updates; of the attackers' own, if there are no honest clients."""
        return -self.epsilon * (honest if len(honest) else own).mean(0)


ATTACKS: Mapping[str, type[Attack]] = {
    "label_flip": LabelFlip,
    "sign_flip": SignFlip,
    "gaussian": Gaussian,
    "scaling": Scaling,
    "free_rider": FreeRider,
    "alie": ALittleIsEnough,
    "ipm": InnerProductManipulation,
    "backdoor": Backdoor,
}
"""The attacks, by the name that a spec gives them (`attack`)."""
