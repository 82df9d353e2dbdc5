"""SecureAggregation: any algorithm whose server needs sums alone, with the costs of secure aggregation.

Bell, Bonawitz, Gascon, Lepoint, Raykova, CCS 2020 (SecAgg+), with k neighbours for each client; with all
others as neighbours it is SecAgg of Bonawitz et al., CCS 2017.

Wire:
    down    the base algorithm's
            secure_aggregation  keys and encrypted shares of the neighbours, and who came
    up      the base algorithm's payloads, masked: each number has 32 bits and those of a sum of the cohort
            secure_aggregation  the masked weight of the client, keys, encrypted shares for the neighbours,
                                and the shares that unmask the sum, SUM
    keeps   the base algorithm's
    server  base        the base algorithm's state
            incomplete  whether too few clients remained in the last round to unmask its sum

The simulation computes the sums without masks, which cancel. Numbers stay floats: the protocol adds whole
numbers of 32 bits, whose rounding is not simulated. In the semi-honest version of the protocol a client

    1. sends two public keys, and receives those of its k neighbours;
    2. sends each neighbour one encrypted message with a share of its key and a share of its seed;
    3. sends its masked numbers;
    4. learns which neighbours came, and sends one share for each neighbour.

If less than the share `threshold` of the asked clients remains, the sum cannot be unmasked, and the round
leaves the server's state as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Annotated, Any, ClassVar

import torch

from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.shares import ceil_share
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates, Reduction
from fedsim.core.capabilities import PersonalBroadcast, capability
from fedsim.core.wrapper import StatefulWrapper, WrapperState
from fedsim.uploads.model_updates import unwrap
from fedsim.uploads.private_examples import count_lost_steps
from fedsim.uploads.server_view import explain_single_reads

PROTOCOL = "secure_aggregation"
"""The payload that stands for the messages of the protocol."""

KEY_BYTES = 32
SHARE_BYTES = 32
ID_BYTES = 4
ENCRYPTION_BYTES = 28
"""Nonce and tag of authenticated encryption, such as AES-GCM."""

NUMBER_BITS = 32


class MaskedPayload(dict[str, Any]):
    """A payload of a client, as masked numbers."""


@dataclass(frozen=True, kw_only=True)
class SecureAggregationState(WrapperState):
    """The server state.

    Attributes:
        incomplete: whether too few clients remained in the last round.
    """

    incomplete: bool


@dataclass(frozen=True, kw_only=True)
class SecureAggregation(StatefulWrapper):
    """Any algorithm whose server needs sums of uploads alone, with the bytes and the threshold of SecAgg+.

    Attributes:
        base: the algorithm.
        neighbours: k, the number of clients with which each client shares its secrets; None for all others.
        threshold: the smallest share of the clients that the server asked whose sum it can unmask.

    Raises:
        ValueError: if the server of the base algorithm reads single clients.
    """

    own: ClassVar[frozenset[type]] = frozenset({PersonalBroadcast})
    own_payloads: ClassVar[tuple[str, ...]] = (PROTOCOL,)

    neighbours: Annotated[int, Range(minimum=1)] | None = None
    threshold: Annotated[float, Range(above=0, maximum=1)] = 0.66

    def __post_init__(self) -> None:
        super().__post_init__()
        if reason := explain_single_reads(unwrap(self.base)):
            raise ValueError(f"{type(unwrap(self.base)).__name__} needs more than sums: {reason}")
        self.add_upload(PROTOCOL, Reduction.SUM)

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, before any round."""
        return SecureAggregationState(base=self.base.init_server_state(ctx), incomplete=False)

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The base algorithm's payloads, and the messages of the protocol."""
        sent: Mapping[str, Tree] = super().broadcast(ctx, state)
        return {**sent, PROTOCOL: {}}

    def broadcast_personal(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        """The base algorithm's payloads: personal models need no protocol."""
        personal = capability(self.base, PersonalBroadcast)
        found = self.base.broadcast if personal is None else personal.broadcast_personal
        return found(ctx, state.base)

    def instructs_personal(self, ctx: Context) -> bool:
        """The base algorithm's answer; True if it has no personal broadcast of its own."""
        personal = capability(self.base, PersonalBroadcast)
        return personal is None or personal.instructs_personal(ctx)

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training; its uploads and its weight are masked."""
        update: ClientUpdate = super().train_client(ctx, task)
        masked = {name: MaskedPayload(payload) for name, payload in update.upload.items()}
        weight = MaskedPayload(weight=torch.tensor(self.weigh_client(ctx, task), dtype=torch.float64))
        return update._replace(upload={**masked, PROTOCOL: weight})

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        """The bytes of masked numbers, and of the messages of the protocol."""
        is_up = isinstance(payload, MaskedPayload)
        masked = count_masked_bytes(payload, ctx.cohort_size) if is_up else 0
        if name == PROTOCOL:
            return masked + count_protocol_bytes(self.count_neighbours(ctx), up=is_up)
        return masked if is_up else super().count_bytes(ctx, name, payload)

    def count_neighbours(self, ctx: Context) -> int:
        """Return k: at most all other clients of the cohort."""
        others = ctx.cohort_size - 1
        return others if self.neighbours is None else min(self.neighbours, others)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's next state; the present one if too few clients remained."""
        came = len(reduced.clients)
        asked = came + len(reduced.failed) + reduced.left_out
        if came < ceil_share(self.threshold, asked):
            lost = count_lost_steps(self.base, ctx, state.base, reduced)
            return replace(state, base=lost, incomplete=True)
        return replace(super().aggregate(ctx, state, reduced), incomplete=False)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, the neighbours of a client, and whether the round had no sum."""
        said = {"neighbours": self.count_neighbours(ctx), "incomplete": state.incomplete}
        return {**super().describe_round(ctx, state), "secure_aggregation": said}


def count_masked_bytes(payload: Tree, cohort_size: int) -> int:
    """Return the bytes of a payload whose numbers have 32 bits, and those that a sum of the cohort needs."""
    numbers = sum(int(leaf.numel()) for _, leaf in tree.leaves(payload))
    return ceil(numbers * (NUMBER_BITS + ceil(log2(max(1, cohort_size)))) / 8)


def count_protocol_bytes(neighbours: int, *, up: bool) -> int:
    """Return the bytes of one client's messages of the protocol without its masked numbers.

    Args:
        neighbours: k.
        up: whether to count those to the server, or those from it.
    """
    message = 2 * SHARE_BYTES + ENCRYPTION_BYTES + ID_BYTES
    if up:
        return 2 * KEY_BYTES + neighbours * (message + SHARE_BYTES + ID_BYTES)
    return neighbours * (2 * KEY_BYTES + ID_BYTES + message) + ceil(neighbours / 8)
