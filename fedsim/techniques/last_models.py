"""The weighted mean of all clients' last models, at the cost of the cohort: KDIA's teacher.

A client weighs u = e^(-a age) visits^b examples^c; its age is the number of rounds since it last took part.
In a round without the client its weight only decays, by e^-a. The sums of u * model and of u over all clients
therefore follow from the cohort: the cohort's new terms, minus its old terms, which have decayed until now.
Sums are float64; their rounding errors decay as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        interval: power of e^(-rounds since the client last took part).
        visits: power of the number of rounds in which it took part.
        volume: power of its number of examples.
    """

    interval: float = 0.0
    visits: float = 0.0
    volume: float = 0.0

    @property
    def decay(self) -> float:
        """Factor of a client's weight in a round without it."""
        return exp(-self.interval)


SINGLE_POWERS: Mapping[str, Powers] = {
    "interval": Powers(interval=1.0),
    "count": Powers(visits=1.0),
    "volume": Powers(volume=1.0),
}

POWERS_BY_KIND: Mapping[str, Mapping[str, Powers]] = {
    "geometric": {"geometric": Powers(1 / 3, 1 / 3, 1 / 3)},
    "arithmetic": SINGLE_POWERS,
    **{name: {name: powers} for name, powers in SINGLE_POWERS.items()},
}
"""The sums of each kind of mean; the teacher is the mean of the means that they give."""

EQUAL_POWERS: Mapping[str, Powers] = {"mean": Powers()}
"""Weights of 1 for every client that took part and holds examples: FedCL's mean."""


def client_weight(powers: Powers, age: Tensor, visits: Tensor, examples: Tensor) -> Tensor:
    """A client's weight, a float64 scalar before normalisation; 0 if it never took part or has no examples.

    Args:
        powers: of the three frequencies.
        age: rounds since it last took part, whole.
        visits: number of rounds in which it took part, with this one.
        examples: its number of examples.
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
        model: the model that it trained last.
        age: rounds since then.
        visits: number of rounds in which it took part.
        examples: its number of examples.
    """
    weight = client_weight(powers, age, visits, examples.to(visits.device))
    return {"model": {key: weight * value.double() for key, value in model.items()}, "mass": weight}


def make_client_change(
    kind: MeanKind | Mapping[str, Powers],
    examples: Tensor,
    now: tuple[Params, Tensor],
    before: tuple[Params, Tensor, Tensor],
) -> dict[str, Any]:
    """The change of one client's part of the sums in a round in which it takes part.

    Args:
        kind: kind of mean.
        examples: its number of examples.
        now: the model that it has trained, and the number of its rounds, with this one.
        before: the model that it trained before, the rounds since then, and the number of its rounds then.
    """
    (model, visits), (old, age, old_visits) = now, before
    return {
        name: tree.sub(
            make_client_part(powers, model, 0 * age, visits, examples),
            make_client_part(powers, old, age, old_visits, examples),
        )
        for name, powers in select_powers(kind).items()
    }


def make_new_part(kind: MeanKind | Mapping[str, Powers], model: Params, examples: Tensor) -> dict[str, Any]:
    """The part of the sums of a client that takes part for the first time."""
    once = torch.ones((), dtype=torch.int64, device=examples.device)
    powers_by_name = select_powers(kind).items()
    return {
        name: make_client_part(powers, model, 0 * once, once, examples) for name, powers in powers_by_name
    }


def advance_client(
    kind: MeanKind, kept: Tree, model: Params, round: int, examples: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The change of one client's part of the sums after its training, and what the client keeps of it.

    Args:
        kind: kind of mean.
        kept: the model that it trained last, in which round, and in how many rounds it took part: `model`,
            `last` and `visits`; {} in its first round.
        model: the model that it has trained.
        round: the number of this round.
        examples: its number of examples.

    Returns:
        The change, and the new `kept`.
    """
    now = torch.tensor(round, device=next(iter(model.values())).device)
    state = {"model": dict(model), "last": now, "visits": torch.ones_like(now)}
    if not kept:
        return make_new_part(kind, model, torch.tensor(examples, device=now.device)), state
    visits = kept["visits"] + 1
    before = (kept["model"], now - kept["last"], kept["visits"])
    change = make_client_change(kind, torch.tensor(examples), (model, visits), before)
    return change, {**state, "visits": visits}


def add_new_models(
    kind: MeanKind | Mapping[str, Powers], sums: Tree, models: Iterable[tuple[Params, int]]
) -> Tree:
    """The sums with the parts of further models, each of a client with so many examples."""
    for model, examples in models:
        sums = tree.add(sums, make_new_part(kind, model, torch.tensor(examples)))
    return sums


def select_powers(kind: MeanKind | Mapping[str, Powers]) -> Mapping[str, Powers]:
    """The sums of a kind of mean, or the given sums themselves."""
    return POWERS_BY_KIND[kind] if isinstance(kind, str) else kind


def init_sums(kind: MeanKind | Mapping[str, Powers], model: Params) -> dict[str, Any]:
    """The sums before round 1: zeros, float64."""
    zeros = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in model.items()}
    nothing = {"model": zeros, "mass": torch.zeros((), dtype=torch.float64)}
    return {name: tree.map(torch.clone, nothing) for name in select_powers(kind)}


def advance_sums(kind: MeanKind | Mapping[str, Powers], sums: Tree, came: Tree) -> dict[str, Any]:
    """The sums after a round.

    Args:
        kind: kind of mean.
        sums: before the round.
        came: the cohort's changes, summed.
    """
    return {
        name: tree.map(lambda held, change, d=powers.decay: d * held + change, sums[name], came[name])
        for name, powers in select_powers(kind).items()
    }


def make_teacher(sums: Tree, otherwise: Params) -> Params:
    """The teacher: the mean of all clients' last models, in the dtypes of `otherwise`.

    Args:
        sums: over all clients.
        otherwise: the result before round 1.
    """
    if any(not float(part["mass"]) > 0 for part in sums.values()):
        return otherwise
    means = [tree.map(lambda leaf, m=part["mass"]: leaf / m, part["model"]) for part in sums.values()]
    return tree.cast_like(tree.map(lambda *leaves: torch.stack(leaves).mean(0), *means), otherwise)
