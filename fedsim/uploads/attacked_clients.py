"""AttackedClients: any algorithm, with malicious clients among its clients.

Wire:
    down, keeps  the base algorithm's
    up      the base algorithm's payloads; attackers send others than they computed
    server  base      the base algorithm's state
            attackers of the last cohort

An attack changes parameters only: statistics of normalisation layers stay as the attacker computed them.
Attackers report honest metrics. An attack on examples needs this class for the record alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from fedsim.base import rng, tree
from fedsim.core import ClientTask, ClientUpdate, Context, ReducedUpdates
from fedsim.core.wrapper import StatefulWrapper, WrapperState
from fedsim.uploads.attacks import Attack, draw_attackers
from fedsim.uploads.model_updates import (
    find_payload_kinds,
    read_update,
    replace_part,
    require_model_updates,
    select_parameters,
    write_update,
)
from fedsim.uploads.robust_aggregation import RobustAggregation


@dataclass(frozen=True, kw_only=True)
class AttackedState(WrapperState):
    """The server state.

    Attributes:
        attackers: of the last cohort, in ascending order.
    """

    attackers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class AttackedClients(StatefulWrapper):
    """Any algorithm, with a share of malicious clients.

    Attributes:
        base: the algorithm.
        attack: what the malicious clients do.

    Raises:
        ValueError: if the attack changes updates and the uploads of the base algorithm are no model
            updates; or if attackers collude and the base is no `RobustAggregation`, which has the updates
            of all clients.
    """

    attack: Attack

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attack.colludes and not isinstance(self.base, RobustAggregation):
            raise ValueError("colluding attackers need RobustAggregation, with Mean for the plain mean")
        if self.attack.changes_updates:
            require_model_updates(self.base)

    def init_server_state(self, ctx: Context) -> Any:
        """The base algorithm's state, before any attack."""
        return AttackedState(base=self.base.init_server_state(ctx), attackers=())

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """The base algorithm's training; an attacker then changes its update."""
        update: ClientUpdate = super().train_client(ctx, task)
        if self.attack.colludes or not self.attack.changes_updates:
            return update
        if task.client not in _find_attackers(self.attack, ctx.seed, ctx.num_clients):
            return update
        kinds = find_payload_kinds(self.base)
        sent = read_update(kinds, task.broadcast, update.upload)
        stream = rng.stream(ctx.seed, "attack", ctx.round, task.client)
        parameters = select_parameters(ctx, sent)
        honest = tree.flatten(parameters)
        changed = self.attack.change_update(honest.cpu(), stream).to(honest.device)
        lies = replace_part(sent, parameters, changed)
        return update._replace(upload=write_update(kinds, task.broadcast, lies, update.upload))

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        """The base algorithm's state; colluding attackers first agree on what they send."""
        if self.attack.colludes:
            attackers = _find_attackers(self.attack, ctx.seed, ctx.num_clients)
            for each in ctx.architectures.values():
                reduced = self._collude(each, state.base, reduced, attackers)
        return self.note_attackers(ctx, super().aggregate(ctx, state, reduced), reduced.clients)

    def note_attackers(self, ctx: Context, state: Any, clients: Sequence[int]) -> Any:
        """The state with the attackers among the clients of the last round."""
        attackers = _find_attackers(self.attack, ctx.seed, ctx.num_clients)
        return replace(state, attackers=tuple(client for client in clients if client in attackers))

    def _collude(
        self, ctx: Context, state: Any, reduced: ReducedUpdates, attackers: frozenset[int]
    ) -> ReducedUpdates:
        """Return the updates of a cohort with those that the attackers of one architecture forge."""
        places = [
            place
            for place, client in enumerate(reduced.clients)
            if ctx.is_of_architecture(client) and reduced.weights[place] > 0
        ]
        bad = [place for place in places if reduced.clients[place] in attackers]
        if not bad:
            return reduced
        kinds, broadcast = find_payload_kinds(self.base), self.base.broadcast(ctx, state)
        sent = {
            place: read_update(kinds, broadcast, {name: reduced[name][place] for name in kinds})
            for place in places
        }
        vectors = {place: tree.flatten(select_parameters(ctx, update)) for place, update in sent.items()}
        own = torch.stack([vectors[place] for place in bad])
        others = [vectors[place] for place in places if place not in bad]
        forged = self.attack.forge_update(own, torch.stack(others) if others else own[:0])
        payloads = {name: list(reduced[name]) for name in kinds}
        for place in bad:
            pattern = {name: payloads[name][place] for name in kinds}
            lies = replace_part(sent[place], select_parameters(ctx, sent[place]), forged)
            for name, payload in write_update(kinds, broadcast, lies, pattern).items():
                payloads[name][place] = payload
        return replace(reduced, payloads=payloads)

    def describe_round(self, ctx: Context, state: Any) -> Mapping[str, Any]:
        """The base algorithm's record, the attackers of the cohort, and their share, if the rule has one."""
        said = {**super().describe_round(ctx, state), "attackers": list(state.attackers)}
        shares = state.base.shares if isinstance(self.base, RobustAggregation) else {}
        if not shares:
            return said
        return {**said, "attacker_share": round(sum(shares.get(str(c), 0.0) for c in state.attackers), 6)}


@lru_cache(maxsize=8)
def _find_attackers(attack: Attack, seed: int, num_clients: int) -> frozenset[int]:
    """Return the malicious clients of a run."""
    return frozenset(draw_attackers(attack, seed, num_clients).tolist())
