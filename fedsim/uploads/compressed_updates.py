"""CompressedUpdates: any algorithm whose clients send model updates, with fewer bytes up.

Wire:
    down    the base algorithm's
    up      the base algorithm's payloads; each change is compressed
    keeps   base      the base algorithm's client state
            residual  with error feedback: what was left out so far, float32
    server  the base algorithm's

Each payload is compressed by itself, as one vector. Statistics of normalisation layers travel whole. What
is left out belongs to keys: a key that does not travel in a round keeps its residual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedsim.base import rng, tree
from fedsim.base.tree import Tree
from fedsim.base.wire import payload_bytes
from fedsim.core import ClientTask, ClientUpdate, Context
from fedsim.core.capabilities import PayloadAccounting, count_bytes
from fedsim.core.wrapper import Wrapper
from fedsim.uploads.compressors import Compressed, Compressor
from fedsim.uploads.model_updates import (
    find_payload_kinds,
    read_update,
    replace_upload,
    require_model_updates,
    write_update,
)

BASE = "base"
RESIDUAL = "residual"


class CompressedPayload(dict[str, Any]):
    """A payload as the server reads it, with the bytes that it took on the network.

    Args:
        payload: the tree.
        bytes: of its compressed form.
    """

    def __init__(self, payload: Tree, bytes: int) -> None:
        super().__init__(payload)
        self.bytes = bytes


@dataclass(frozen=True, kw_only=True)
class CompressedUpdates(Wrapper):
    """Any algorithm whose uploads are model updates, with compression of what clients send.

    Attributes:
        base: the algorithm; robust aggregation, attacks and privacy may be around it already.
        compressor: compresses each payload.

    Raises:
        ValueError: if the uploads of the base algorithm are no model updates.
    """

    own: ClassVar[frozenset[type]] = frozenset({PayloadAccounting})

    compressor: Compressor

    def __post_init__(self) -> None:
        super().__post_init__()
        require_model_updates(self.base)
        if self.compressor.keeps_residual:
            object.__setattr__(self, "stateful", True)

    def base_value(self, value: Any) -> Any:
        """A task with the base algorithm's own client state."""
        if isinstance(value, ClientTask) and self.compressor.keeps_residual:
            return value._replace(client_state=value.client_state.get(BASE, {}))
        return value

    def init_client_state(self, ctx: Context, broadcast: Tree) -> Tree:
        """The base algorithm's client state, and nothing left out."""
        state: Tree = super().init_client_state(ctx, broadcast)
        return {BASE: state, RESIDUAL: {}} if self.compressor.keeps_residual else state

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """The bytes of a compressed payload, or the base algorithm's count for the others."""
        if isinstance(payload, CompressedPayload):
            return payload.bytes
        return count_bytes(self.base, ctx, name, payload)

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training; what it sends is compressed."""
        update: ClientUpdate = super().train_client(ctx, task)
        kinds = find_payload_kinds(self.base)
        sent = read_update(kinds, task.broadcast, {name: update.upload[name] for name in kinds})
        left, read, sizes = dict(task.client_state.get(RESIDUAL, {})), dict[str, Tree](), dict[str, int]()
        statistics = ctx.net.statistics
        for name, payload in sent.items():
            whole, change = tree.select(payload, statistics), tree.drop(payload, statistics)
            wanted = _add_residual(change, left.get(name, {}))
            stream = rng.stream(ctx.seed, f"compression {name}", ctx.round, task.client)
            vector, layout = tree.flatten(wanted), tree.layout(wanted)
            shapes = [shape for _, shape in layout]
            found = self.compressor.compress(vector, stream, shapes) if len(vector) else Compressed(vector, 0)
            got = tree.unflatten(found.vector, layout)
            read[name] = {key: got.get(key, whole.get(key)) for key in payload}
            sizes[name] = found.bytes + payload_bytes(tree.select(update.upload[name], statistics))
            left[name] = {**left.get(name, {}), **tree.map(lambda a, b: (a - b).float(), wanted, got)}
        upload = write_update(kinds, task.broadcast, read, {name: update.upload[name] for name in kinds})
        packed = {name: CompressedPayload(payload, sizes[name]) for name, payload in upload.items()}
        update = replace_upload(self.base, ctx, self.base_value(task), update, packed)
        if not self.compressor.keeps_residual:
            return update
        return update._replace(client_state={BASE: update.client_state, RESIDUAL: left})


def _add_residual(change: Tree, residual: Mapping[str, Any]) -> dict[str, Any]:
    """Return a change with what was left out of earlier ones."""
    return {
        key: value if key not in residual else _add(value, residual[key]) for key, value in change.items()
    }


def _add(change: Any, residual: Any) -> Any:
    return tree.add(change, residual) if isinstance(change, Mapping) else torch.add(change, residual)
