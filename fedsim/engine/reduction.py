"""From the clients' reports to what `Algorithm.aggregate` receives: sums along the tree of blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import nan
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedsim.base import tree, wire
from fedsim.base.digest import ClientStatesDigest
from fedsim.base.tree import Layout, Tree
from fedsim.core import Algorithm, ClientUpdate, Context, ReducedUpdates, Reduction
from fedsim.core.capabilities import PayloadAccounting, capability, count_bytes
from fedsim.engine.blocks import Node, TreeSum
from fedsim.errors import CohortFailed
from fedsim.stacking.grouping import StackingNotes

Sums: TypeAlias = "dict[str, Any] | None"
"""{slot: one float64 vector, in transit an array}; None for a part of the tree where nobody reported."""


@dataclass(frozen=True)
class ClientOutcome:
    """What the server learns of one client's round besides its payloads.

    Attributes:
        client: its number.
        weight: what it counts in a MEAN.
        num_examples: how many it holds.
        metrics: its scalars.
        gathered: its own entry of every GATHER payload.
        mark: SHA-256 of its new memory; None unless the algorithm is stateful.
    """

    client: int
    weight: float
    num_examples: int
    metrics: dict[str, float]
    gathered_payloads: dict[str, Any] = field(default_factory=dict)
    state_digest: bytes | None = None


@dataclass
class SpanResult:
    """What the clients of a span sent.

    Attributes:
        nodes: (node, sums) of the nodes of the tree that lie wholly in the span, from left to right; for
            MEAN the weighted and for SUM the plain sum of every payload.
        layouts: how each payload's vector is laid out.
        sizes: bytes of each payload that is summed, the same from every client.
        outcomes: one entry per client that reported, in the order in which they ran.
        errors: why each of the others did not.
        retries: how often clients were trained again.
        up: bytes by payload, over the clients that reported.
        seconds: what it took.
        stacking: which local loops were made together.
    """

    nodes: list[tuple[Node, Sums]] = field(default_factory=list)
    layouts: dict[str, Layout] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    outcomes: list[ClientOutcome] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    retries: int = 0
    bytes_up: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    stacking: StackingNotes = field(default_factory=StackingNotes)

    def to_numpy(self) -> SpanResult:
        """The same over NumPy arrays, for travelling between processes."""
        return self._convert(lambda vector: vector.cpu().numpy(), tree.to_numpy)

    def to_tensors(self) -> SpanResult:
        """The same over tensors again."""
        return self._convert(tree.wrap_array, tree.from_numpy)

    def _convert(self, vector: Callable[[Any], Any], entry: Callable[[Tree], Tree]) -> SpanResult:
        nodes = [(node, None if sums is None else tree.map(vector, sums)) for node, sums in self.nodes]
        return replace(
            self, nodes=nodes, outcomes=[_convert_outcome(outcome, entry) for outcome in self.outcomes]
        )


def _convert_outcome(outcome: ClientOutcome, convert: Any) -> ClientOutcome:
    if not outcome.gathered_payloads:
        return outcome
    return replace(
        outcome, gathered_payloads={name: convert(entry) for name, entry in outcome.gathered_payloads.items()}
    )


def make_client_sums(
    algorithm: Algorithm, ctx: Context, update: ClientUpdate, weight: float, result: SpanResult
) -> dict[str, Tensor]:
    """One client's part of every sum; its layouts and bytes are noted in `result`, once nothing can fail.

    Products of float32 numbers and whole weights are exact in float64, so the mean of one client is its
    model.
    """
    sums, up, fresh = {}, dict[str, int](), dict[str, Tree]()
    same = not capability(
        algorithm, PayloadAccounting
    )  # then all clients' payloads cost what the first one's does
    for name, reduction in algorithm.uploads.items():
        payload = update.upload[name]
        if reduction is Reduction.GATHER:
            up |= _payload_cost(algorithm, ctx, name, payload)
            continue
        slot = _slot(name, reduction, ctx.model)
        if slot not in result.layouts:
            fresh[slot] = payload
        if same and slot not in fresh and name not in algorithm.free_uploads:
            up[name] = result.sizes[slot]
        else:
            up |= _payload_cost(algorithm, ctx, name, payload)
        vector = tree.flatten(payload)
        sums[slot] = vector if reduction is Reduction.SUM else vector.mul_(weight)
    for slot, payload in fresh.items():
        result.layouts[slot], result.sizes[slot] = tree.layout(payload), wire.payload_bytes(payload)
    result.bytes_up.update(up)
    return sums


def _payload_cost(algorithm: Algorithm, ctx: Context, name: str, payload: Tree) -> dict[str, int]:
    """What sending this payload costs: nothing at all where it is not sent in reality."""
    return {} if name in algorithm.free_uploads else {name: count_bytes(algorithm, ctx, name, payload)}


def _slot(payload: str, reduction: Reduction, model: int) -> str:
    """Where a payload's sum over the clients of one architecture, or over all, is kept."""
    return f"all/{payload}" if reduction is Reduction.OVERALL_MEAN else f"{model}/{payload}"


def select_gathered(algorithm: Algorithm, update: ClientUpdate) -> dict[str, Tree]:
    """One client's entries of the GATHER payloads."""
    wanted = (name for name, reduction in algorithm.uploads.items() if reduction is Reduction.GATHER)
    return {name: update.upload[name] for name in wanted}


def add_sums(a: Sums, b: Sums) -> Sums:
    """The sum of two parts, either of which may be empty."""
    if a is None or b is None:
        return a if b is None else b
    both = {slot: torch.add(value, b[slot]) if slot in b else value for slot, value in a.items()}
    return {**both, **{slot: value for slot, value in b.items() if slot not in a}}


def combine_results(
    algorithm: Algorithm,
    ctx: Context,
    results: Sequence[SpanResult],
    cohort: Sequence[int],
    down: Mapping[str, int],
    engine: Mapping[str, Any],
    fingerprint: ClientStatesDigest,
) -> ReducedUpdates:
    """Finish the sums along the tree, whatever the order of arrival.

    Args:
        algorithm: which declares how each payload is reduced.
        ctx: the round.
        results: of spans that together hold every block.
        cohort: the round's clients, in order.
        down: bytes sent to the cohort, by payload.
        engine: how the pool did it, for the record.
        fingerprint: of the pool's memories, which is brought up to date.

    Raises:
        CohortFailed: if no client reported.
    """
    total, layouts, up = TreeSum(add_sums), dict[str, Layout](), Counter[str]()
    found: dict[int, ClientOutcome] = {}
    for node, part in sorted((n for result in results for n in result.nodes), key=_leftmost):
        total.add_node(node, part)
    for result in results:
        layouts.update(result.layouts)
        up.update(result.bytes_up)
        found.update((outcome.client, outcome) for outcome in result.outcomes)
    outcomes = [found[client] for client in cohort if client in found]
    failures = _failures(ctx, results, cohort, len(outcomes))
    fingerprint.update(
        {outcome.client: outcome.state_digest for outcome in outcomes if outcome.state_digest is not None}
    )
    sums: Any = total.total() or {}
    payloads = {
        name: [outcome.gathered_payloads[name] for outcome in outcomes]
        if reduction is Reduction.GATHER
        else _finish_payload(name, reduction, ctx, sums, layouts, outcomes)
        for name, reduction in algorithm.uploads.items()
    }
    return ReducedUpdates(
        payloads=payloads,
        clients=tuple(outcome.client for outcome in outcomes),
        weights=tuple(outcome.weight for outcome in outcomes),
        num_examples=tuple(outcome.num_examples for outcome in outcomes),
        metrics=_averages(outcomes),
        traffic=wire.make_traffic(down, up),
        engine={
            **engine,
            **sum((result.stacking for result in results), StackingNotes()).to_record(),
            **_make_failure_record(failures, sum(result.retries for result in results)),
        },
        failed=tuple(failures),
        memory_digest=fingerprint.hexdigest() if algorithm.stateful else None,
    )


def _failures(
    ctx: Context, results: Sequence[SpanResult], cohort: Sequence[int], reported: int
) -> dict[int, str]:
    """Why each client that failed did, in cohort order."""
    errors = {client: text for result in results for client, text in result.errors.items()}
    failures = {client: errors[client] for client in cohort if client in errors}
    if failures and not reported:
        client, cause = next(iter(failures.items()))
        raise CohortFailed(
            f"all {len(failures)} clients of round {ctx.round + 1} failed; client {client}: {cause}",
            "faults.client_error: fail shows the first error at once",
        )
    return failures


NAMED_FAILURES = 5
"""How many of a round's failed clients a record says the cause of; it has the numbers of all."""


def _make_failure_record(failures: Mapping[int, str], retries: int) -> dict[str, Any]:
    """What a record says of clients that raised: nothing if none did."""
    said: dict[str, Any] = {}
    if failures:
        named = islice(failures.items(), NAMED_FAILURES)
        said["client_errors"] = {str(client): cause for client, cause in named}
    if retries:
        said["client_retries"] = retries
    return said


def _leftmost(entry: tuple[Node, Sums]) -> int:
    node = entry[0]
    return node.place << node.level


def _finish_payload(
    name: str,
    reduction: Reduction,
    ctx: Context,
    sums: Mapping[str, Tensor],
    layouts: Mapping[str, Layout],
    outcomes: Sequence[ClientOutcome],
) -> dict[str, Any]:
    """A payload's sum or mean as a tree again; with several architectures, one for each that came.

    Of clients whose weights sum to 0 there is no mean: {}.
    """
    if reduction is Reduction.OVERALL_MEAN:
        slot, mass = _slot(name, reduction, 0), float(np.sum([o.weight for o in outcomes]))
        return tree.unflatten(sums[slot] / mass, layouts[slot]) if slot in sums and mass > 0 else {}
    count, found = len(ctx.nets), {}
    for model in range(count):
        slot = _slot(name, reduction, model)
        mass = float(np.sum([o.weight for o in outcomes if o.client % count == model]))
        if slot in sums and (mass > 0 or reduction is Reduction.SUM):
            vector = sums[slot] / mass if reduction is Reduction.MEAN else sums[slot]
            found[str(model)] = tree.unflatten(vector, layouts[slot])
    return found.get("0", {}) if count == 1 else found


def _averages(outcomes: Sequence[ClientOutcome]) -> dict[str, float]:
    """The mean of each metric over the clients' examples; NaN where there are none."""
    mass = sum(outcome.num_examples for outcome in outcomes)
    names = outcomes[0].metrics if outcomes else {}
    if not mass:
        return dict.fromkeys(names, nan)
    return {name: sum(o.metrics[name] * o.num_examples for o in outcomes) / mass for name in names}
