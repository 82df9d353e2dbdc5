"""The server's messages to the clients, and the bytes that they cost; every pool uses these functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedsim.base import tree, wire
from fedsim.base.error_attribution import attribute_server_errors
from fedsim.base.tree import Tree
from fedsim.core import Algorithm, Context, Traffic
from fedsim.core.capabilities import (
    ClientInstructions,
    PersonalBroadcast,
    capability,
    count_bytes,
    select_survey_payload,
)


def make_broadcasts(algorithm: Algorithm, ctx: Context, state: Any) -> dict[str, Mapping[str, Tree]]:
    """Return the broadcast to the clients of each architecture: {"0": {payload name: tree}, "1": ...}."""
    return _call_by_architecture(algorithm, "broadcast", algorithm.broadcast, ctx, state)


def make_personal_broadcasts(algorithm: Algorithm, ctx: Context, state: Any) -> dict[str, Mapping[str, Tree]]:
    """Return the broadcast of a personal evaluation, per architecture: {"0": {payload name: tree}, ...}."""
    own = capability(algorithm, PersonalBroadcast)
    if own is None:
        return make_broadcasts(algorithm, ctx, state)
    return _call_by_architecture(algorithm, "broadcast_personal", own.broadcast_personal, ctx, state)


def _call_by_architecture(
    algorithm: Algorithm,
    stage: str,
    hook: Callable[[Context, Any], Mapping[str, Tree]],
    ctx: Context,
    state: Any,
    what: str = "payload",
) -> dict[str, Mapping[str, Tree]]:
    """Return what a hook of the algorithm returns for each architecture: trees of tensors by name."""
    with attribute_server_errors(algorithm, stage):
        return {key: _require_trees(what, hook(each, state)) for key, each in ctx.architectures.items()}


def _require_trees(what: str, returned: Any) -> Mapping[str, Tree]:
    """Return what a hook returned; raise TypeError unless it is a mapping of names to trees of tensors."""
    if not isinstance(returned, Mapping):
        raise TypeError(f"it returned {tree.describe_type(returned)}; return a mapping {{name: {what}}}")
    for name, found in returned.items():
        tree.require_tensors(f"the {what} {name!r}", found)
    return returned


def list_deployed_models(algorithm: Algorithm, ctx: Context, state: Any) -> dict[str, Mapping[str, Tree]]:
    """Return the models to evaluate, per architecture: {"0": {model name: tree}, "1": ...}."""
    if not algorithm.deploys_models:
        return {key: {} for key in ctx.architectures}
    return _call_by_architecture(algorithm, "deploy_models", algorithm.deploy_models, ctx, state, "model")


def select_survey_models(algorithm: Algorithm, ctx: Context, state: Any) -> dict[str, Tree]:
    """Return the model that a client survey measures, per architecture: the first deployed one, if any."""
    found = list_deployed_models(algorithm, ctx, state).items()
    return {number: next(iter(models.values())) for number, models in found if models}


def count_survey_traffic(
    algorithm: Algorithm, ctx: Context, state: Any, models: Mapping[str, Tree], clients: Sequence[int]
) -> Traffic:
    """Return the traffic of a client survey.

    Down: the survey payload, once per client. Up: one number per client.
    """
    if not len(clients):
        return Traffic()
    asked = np.bincount(np.asarray(clients, np.int64) % len(ctx.nets), minlength=len(ctx.nets))
    down = 0
    for number, model in models.items():
        with attribute_server_errors(algorithm, "select_survey_payload"):
            payload = select_survey_payload(algorithm, ctx.for_architecture(int(number)), state, model)
        down += wire.payload_bytes(payload) * int(asked[int(number)])
    return wire.make_traffic({"survey": down}, {"survey": wire.NUMBER_BYTES * len(clients)})


def make_instructions(
    algorithm: Algorithm, ctx: Context, state: Any, cohort: Sequence[int]
) -> dict[int, Tree]:
    """Return each client's instructions, sent with the broadcast; {} if the algorithm has none."""
    instructing = capability(algorithm, ClientInstructions)
    if instructing is None:
        return {}
    with attribute_server_errors(algorithm, "instruct_client"):
        sent = {
            client: instructing.instruct_client(ctx.for_client(client), state, client) for client in cohort
        }
        return {client: _require_trees("payload", found) for client, found in sent.items()}


def make_personal_instructions(
    algorithm: Algorithm, ctx: Context, state: Any, clients: Sequence[int]
) -> dict[int, Tree]:
    """Return each client's instructions for a personal evaluation; a `PersonalBroadcast` may send none."""
    own = capability(algorithm, PersonalBroadcast)
    with attribute_server_errors(algorithm, "instructs_personal"):
        is_silent = own is not None and not own.instructs_personal(ctx)
    return {} if is_silent else make_instructions(algorithm, ctx, state, clients)


class BytesDown(NamedTuple):
    """Bytes from the server to the clients, by payload name; every client's own copy counts.

    Attributes:
        broadcasts: to one client, by architecture.
        instructions: to single clients.
    """

    broadcasts: Sequence[Counter[str]]
    instructions: Mapping[int, Counter[str]]

    def of_client(self, client: int) -> int:
        """Return the bytes to one client."""
        own = self.instructions.get(client)
        broadcast = self.broadcasts[client % len(self.broadcasts)]
        return broadcast.total() + (own.total() if own else 0)

    def sum_payloads(self, clients: Sequence[int]) -> Counter[str]:
        """Return the bytes to these clients together, by payload name."""
        down = Counter[str]()
        for number, sizes in enumerate(self.broadcasts):
            receivers = sum(client % len(self.broadcasts) == number for client in clients)
            for name, size in sizes.items():
                down[name] += size * receivers
        for client in clients:
            down.update(self.instructions.get(client, {}))
        return down


def measure_bytes_down(
    algorithm: Algorithm,
    ctx: Context,
    broadcasts: Mapping[str, Mapping[str, Tree]],
    instructions: Mapping[int, Tree],
) -> BytesDown:
    """Count the bytes of the broadcast to each architecture and of the instructions to single clients."""
    messages = [(ctx.for_architecture(int(model)), message) for model, message in broadcasts.items()]
    with attribute_server_errors(algorithm, "count_bytes"):
        return BytesDown(
            [
                wire.message_bytes(message, partial(count_bytes, algorithm, each))
                for each, message in messages
            ],
            {
                client: wire.message_bytes(message, partial(count_bytes, algorithm, ctx.for_client(client)))
                for client, message in instructions.items()
            },
        )
