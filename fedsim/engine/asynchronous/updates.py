"""Combine updates of clients that began with different versions of the model, into one mean.

The clients of one server step are trained in groups that have the same version, and so the same staleness t.
Group g has the mean M_g of its clients' models (weighted by `Algorithm.weigh_client`), and the share p_g of
all weights. W is the server's model, W_g the version of the group. `Algorithm.aggregate` gets

    FedBuff     W + sum_g p_g s(t_g) (M_g - W_g)
    FedAsync    (1 - alpha s(t)) W + alpha s(t) M

in place of the mean of the clients' models. An algorithm whose server does more with the mean, such as
FedAvgM or FedAdam, does it with this one. Statistics of normalisation layers always move towards M_g: added
changes could make a variance negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from fedsim.base.tree import Tree
from fedsim.clock.asynchronous import Asynchronous
from fedsim.core import Context, ReducedUpdates, Traffic
from fedsim.engine.reduction import NAMED_FAILURES, average_metrics
from fedsim.uploads.model_updates import MODEL

Broadcasts = Mapping[str, Mapping[str, Tree]]
"""{architecture: {payload name: tree}}, the architecture's number as text."""


@dataclass(frozen=True)
class GroupUpdates:
    """The reduced updates of clients that began with the same version.

    Attributes:
        staleness: number of server steps since this version.
        broadcasts: what the clients downloaded.
        reduced: their updates.
    """

    staleness: int
    broadcasts: Broadcasts
    reduced: ReducedUpdates


class _Part(NamedTuple):
    """A group's part in the next model of one architecture.

    Attributes:
        share: of the way that the server goes.
        mean: of the clients' models, float64.
        version: the model with which they began.
    """

    share: float
    mean: Tree
    version: Tree


def combine_updates(
    policy: Asynchronous,
    ctx: Context,
    broadcasts: Broadcasts,
    groups: Sequence[GroupUpdates],
    order: Sequence[int],
) -> ReducedUpdates:
    """Combine the updates of one server step.

    Args:
        policy: the weight of an update by its staleness.
        ctx: the server step.
        broadcasts: the server's present model, as clients would download it.
        groups: all clients; the last one has the newest client states.
        order: the clients in order of arrival.
    """
    joined = _join_clients([group.reduced for group in groups], order)
    first = groups[0]
    if len(groups) == 1 and first.staleness == 0 and policy.share(0) == 1:
        # No arithmetic: the server step is that of a synchronous round to the last bit.
        return replace(joined, payloads=first.reduced.payloads)
    found = dict[str, Tree]()
    for number, each in ctx.architectures.items():
        parts = _list_parts(policy, each, groups)
        if parts:
            found[number] = _move_model(policy, each.net.parameters, broadcasts[number][MODEL], parts)
    return replace(joined, payloads={MODEL: found.get("0", {}) if len(ctx.nets) == 1 else found})


def _list_parts(policy: Asynchronous, ctx: Context, groups: Sequence[GroupUpdates]) -> list[_Part]:
    """Return the parts of the groups that have clients with weight, of one architecture."""
    masses = [
        sum(
            weight
            for client, weight in zip(group.reduced.clients, group.reduced.weights, strict=True)
            if ctx.is_of_architecture(client)
        )
        for group in groups
    ]
    number = str(ctx.architecture)
    return [
        _Part(
            policy.share(group.staleness) * mass / sum(masses),
            group.reduced[MODEL] if len(ctx.nets) == 1 else group.reduced[MODEL][number],
            group.broadcasts[number][MODEL],
        )
        for group, mass in zip(groups, masses, strict=True)
        if mass > 0
    ]


def _move_model(
    policy: Asynchronous, parameters: Collection[str], model: Tree, parts: Sequence[_Part]
) -> dict[str, Any]:
    """Return the model of one architecture after the step, float64."""
    left, moved = 1 - sum(part.share for part in parts), dict[str, Any]()
    for key in parts[0].mean:
        start = model[key].double()
        if policy.adds_changes and key in parameters:
            changes = (part.share * (part.mean[key] - part.version[key].double()) for part in parts)
            moved[key] = sum(changes, start)
        else:
            moved[key] = sum((part.share * part.mean[key] for part in parts), left * start)
    return moved


def _join_clients(parts: Sequence[ReducedUpdates], order: Sequence[int]) -> ReducedUpdates:
    """Return what does not depend on payloads of all parts together, with the clients in this order."""
    facts = {
        client: (weight, examples, sizes)
        for part in parts
        for client, weight, examples, sizes in zip(
            part.clients, part.weights, part.num_examples, part.client_bytes, strict=True
        )
    }
    clients = tuple(client for client in order if client in facts)
    failed = {client for part in parts for client in part.failed}
    metrics, metric_examples = average_metrics([(part.metrics, part.metric_examples) for part in parts])
    return replace(
        parts[-1],
        clients=clients,
        weights=tuple(facts[client][0] for client in clients),
        num_examples=tuple(facts[client][1] for client in clients),
        client_bytes=tuple(facts[client][2] for client in clients),
        metrics=metrics,
        metric_examples=metric_examples,
        traffic=sum((part.traffic for part in parts), Traffic()),
        engine=_join_engines([part.engine for part in parts]),
        failed=tuple(client for client in order if client in failed),
    )


def _join_engines(engines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts about the pool: counts are summed, the rest is that of the last group."""
    joined = {**engines[-1], "restarts": sum(engine["restarts"] for engine in engines)}
    if retries := sum(engine.get("client_retries", 0) for engine in engines):
        joined["client_retries"] = retries
    errors = [pair for engine in engines for pair in engine.get("client_errors", {}).items()]
    if errors:
        joined["client_errors"] = dict(islice(errors, NAMED_FAILURES))
    if stacked := [engine["stacked"] for engine in engines if "stacked" in engine]:
        alone = sum((Counter(each["alone"]) for each in stacked), Counter[str]())
        joined["stacked"] = {"together": sum(each["together"] for each in stacked), "alone": dict(alone)}
    return joined
