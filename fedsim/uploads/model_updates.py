"""Model updates: what clients send, as changes of what they received.

The update of a client is one tree of float64 changes, {payload name: tree}, over all payloads that it
sends. The change of a MEAN payload is counted from the payload of the same name in the broadcast: for
`params`, it is the trained model minus the global model. A payload that clients do not receive, and a SUM,
is a change itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from fedsim.base import tree
from fedsim.base.tree import Tree
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, Reduction
from fedsim.core.capabilities import SentUpdates, ServerTraining, capability
from fedsim.core.wrapper import Wrapper
from fedsim.models.net import Net

ModelUpdate: TypeAlias = Mapping[str, Tree]
"""{payload name: float64 tree of changes}."""

MODEL = "params"
"""The payload that has a client's model."""


def explain_other_uploads(algorithm: Algorithm | type[Algorithm]) -> str:
    """Return why the uploads of an algorithm are no model updates; "" if they are.

    Its clients have to send a model, and nothing else than payloads that the server reads as a mean or a sum.
    """
    uploads = algorithm.uploads
    if uploads.get(MODEL) is not Reduction.MEAN:
        return "clients do not send a model of which the server takes the mean"
    single = sorted(name for name, kind in uploads.items() if kind is Reduction.GATHER)
    if single:
        return f"the server reads the payload {single[0]} of every single client"
    if free := sorted(algorithm.free_uploads):
        return f"the server reads {free[0]}, which it computes from the clients' models"
    if figures := sorted(algorithm.update_figures):
        return f"clients send {figures[0]}, a figure of their whole update"
    if Reduction.OVERALL_MEAN in uploads.values():
        return "clients of all architectures share one mean"
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    if issubclass(kind, ServerTraining):
        return "the server trains with the clients' payloads"
    if algorithm.resizes_model:
        return "clients send their model in another shape than they received it"
    return ""


def require_model_updates(algorithm: Algorithm) -> None:
    """Raise ValueError unless the uploads of an algorithm, without its wrappers, are model updates."""
    found = unwrap(algorithm)
    if reason := explain_other_uploads(found):
        raise ValueError(f"{type(found).__name__} sends no plain model updates: {reason}")


def find_payload_kinds(algorithm: Algorithm) -> Mapping[str, Reduction]:
    """Return `Algorithm.uploads` without wrappers, such as robust aggregation, which gathers all payloads."""
    return unwrap(algorithm).uploads


def unwrap(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm without the wrappers around it."""
    return unwrap(algorithm.base) if isinstance(algorithm, Wrapper) else algorithm


def explain_statistics(nets: Sequence[Net]) -> str:
    """Return why models send more than noisy parameters; "" if they do not."""
    for net in nets:
        if net.statistics:
            return f"it sends statistics of its examples, such as {min(net.statistics)}"
    return ""


def read_update(uploads: Mapping[str, Reduction], broadcast: Tree, upload: Mapping[str, Tree]) -> ModelUpdate:
    """Return a client's update.

    Args:
        uploads: `Algorithm.uploads` of the algorithm, whose payloads are model updates.
        broadcast: {payload name: tree} that the client received.
        upload: {payload name: tree} that it sends.
    """
    return {
        name: tree.map(lambda sent, start: sent.double() - start, upload[name], start)
        if (start := _select_start(kind, broadcast, name)) is not None
        else tree.map(Tensor.double, upload[name])
        for name, kind in uploads.items()
    }


def write_update(
    uploads: Mapping[str, Reduction],
    broadcast: Tree,
    update: Mapping[str, Tree],
    pattern: Mapping[str, Tree] | None = None,
) -> dict[str, Tree]:
    """Return the payloads of an update: the inverse of `read_update`.

    Args:
        uploads: as in `read_update`.
        broadcast: as in `read_update`.
        update: the update.
        pattern: payloads whose number types the result has; None for float64.
    """
    sent = {
        name: tree.map(torch.add, update[name], start)
        if (start := _select_start(kind, broadcast, name)) is not None
        else update[name]
        for name, kind in uploads.items()
    }
    return sent if pattern is None else {name: tree.cast_like(sent[name], pattern[name]) for name in sent}


def select_parameters(ctx: Context, update: ModelUpdate) -> ModelUpdate:
    """Return an update without the running statistics of the model."""
    return {name: tree.drop(payload, ctx.net.statistics) for name, payload in update.items()}


def select_statistics(ctx: Context, update: ModelUpdate) -> ModelUpdate:
    """Return the running statistics of the model of an update."""
    return {name: tree.select(payload, ctx.net.statistics) for name, payload in update.items()}


def replace_part(update: ModelUpdate, part: ModelUpdate, vector: Tensor) -> ModelUpdate:
    """Return an update with the numbers of a vector in the places of a part of it.

    Args:
        update: the update.
        part: such as its parameters; `tree.flatten` of it has the length of the vector.
        vector: the numbers, `[d]`.
    """
    changed = tree.unflatten(vector, tree.layout(part))
    return {name: {**payload, **changed.get(name, {})} for name, payload in update.items()}


def replace_upload(
    algorithm: Algorithm, ctx: Context, task: ClientTask, update: ClientUpdate, upload: Mapping[str, Tree]
) -> ClientUpdate:
    """Return the update with another upload, and with the client state that belongs to it.

    Args:
        algorithm: that made the update.
        ctx: the round, for this client.
        task: with the algorithm's own client state.
        update: as the algorithm made it.
        upload: what the client sends instead.
    """
    changed = update._replace(upload={**update.upload, **upload})
    mirrored = capability(algorithm, SentUpdates)
    if mirrored is None:
        return changed
    return changed._replace(client_state=mirrored.match_sent_update(ctx, task, changed))


def _select_start(kind: Reduction, broadcast: Tree, name: str) -> Tree | None:
    """Return the payload from which changes count; None for a payload that is a change itself."""
    return broadcast.get(name) if kind is Reduction.MEAN else None
