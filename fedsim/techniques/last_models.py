"""The mean of all clients' last models in the time of those that come: KDIA's teacher.

A client weighs u = e^(-a age) visits^b examples^c, its age being the rounds since it last came. Staying away
only decays it, by e^-a in a round, so the sums of u * model and of u over all clients follow from the clients
that came: what they add now, less what they had been, decayed until now. Sums are float64; what rounding
leaves over decays as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.models.net import Params

MeanKind: TypeAlias = Literal["geometric", "arithmetic", "interval", "count", "volume"]


class Powers(NamedTuple):
    """The powers of the three frequencies in a weight.

    Attributes:
        interval: of e^(-rounds since the client last came).
        visits: of how often it came.
        volume: of how many examples it holds.
    """

    interval: float = 0.0
    visits: float = 0.0
    volume: float = 0.0

    @property
    def decay(self) -> float:
        """What a weight is multiplied by in a round in which its client stays away."""
        return exp(-self.interval)


ALONE: Mapping[str, Powers] = {
    "interval": Powers(interval=1.0),
    "count": Powers(visits=1.0),
    "volume": Powers(volume=1.0),
}

KINDS: Mapping[str, Mapping[str, Powers]] = {
    "geometric": {"geometric": Powers(1 / 3, 1 / 3, 1 / 3)},
    "arithmetic": ALONE,
    **{name: {name: powers} for name, powers in ALONE.items()},
}
"""The teacher is the mean of what these sums give, each normalised by itself."""


def client_weight(powers: Powers, age: Tensor, visits: Tensor, examples: Tensor) -> Tensor:
    """A client's weight, a float64 scalar before normalisation; 0 if it never came or holds nothing.

    Args:
        powers: of the three frequencies.
        age: rounds since it last came, whole.
        visits: how often it came, this time included.
        examples: how many it holds.
    """
    fresh = torch.exp(-powers.interval * age.double())
    weight = fresh * visits.double() ** powers.visits * examples.double() ** powers.volume
    return weight * (visits > 0) * (examples > 0)


def make_client_part(
    powers: Powers, model: Params, age: Tensor, visits: Tensor, examples: Tensor
) -> dict[str, Any]:
    """One client's part of the sums: `model`, weighted, and `mass`, its weight; float64.

    Args:
        powers: of the three frequencies.
        model: what it trained last.
        age: rounds since then.
        visits: how often it had come.
        examples: how many it holds.
    """
    weight = client_weight(powers, age, visits, examples.to(visits.device))
    return {"model": {key: weight * value.double() for key, value in model.items()}, "mass": weight}


def select_powers(kind: MeanKind | Mapping[str, Powers]) -> Mapping[str, Powers]:
    """The sums that a kind of mean is made of, or those that are named themselves."""
    return KINDS[kind] if isinstance(kind, str) else kind


def init_sums(kind: MeanKind | Mapping[str, Powers], model: Params) -> dict[str, Any]:
    """The sums before anybody came: zeros, float64."""
    zeros = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in model.items()}
    nothing = {"model": zeros, "mass": torch.zeros((), dtype=torch.float64)}
    return {name: tree.map(torch.clone, nothing) for name in select_powers(kind)}


def advance_sums(kind: MeanKind | Mapping[str, Powers], sums: Tree, came: Tree) -> dict[str, Any]:
    """The sums a round later.

    Args:
        kind: of the mean.
        sums: before the round.
        came: what changed by it, summed over the cohort.
    """
    return {
        name: tree.map(lambda held, change, d=powers.decay: d * held + change, sums[name], came[name])
        for name, powers in select_powers(kind).items()
    }


def make_teacher(sums: Tree, otherwise: Params) -> Params:
    """The teacher: the mean of all clients' last models, in the number types of `otherwise`.

    Args:
        sums: over all clients.
        otherwise: the answer before anybody came.
    """
    if any(not float(part["mass"]) > 0 for part in sums.values()):
        return otherwise
    means = [tree.map(lambda leaf, m=part["mass"]: leaf / m, part["model"]) for part in sums.values()]
    return tree.cast_like(tree.map(lambda *leaves: torch.stack(leaves).mean(0), *means), otherwise)
