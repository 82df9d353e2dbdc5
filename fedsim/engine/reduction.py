"""Reduction: sum the client updates along the tree of blocks, into the input of `Algorithm.aggregate`."""

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
"""{slot: float64 vector} (a NumPy array between processes); None for a part of the tree without updates."""


@dataclass(frozen=True)
class ClientOutcome:
    """One client's update without its summed payloads.

    Attributes:
        client: the client's number.
        weight: the client's weight in a MEAN.
        num_examples: the number of training examples of the client's task.
        metrics: the scalars of the update, such as the training loss.
        gathered_payloads: {payload name: the client's tree} for every GATHER payload.
        state_digest: SHA-256 of the new client state; None unless the algorithm is stateful.
    """

    client: int
    weight: float
    num_examples: int
    metrics: dict[str, float]
    gathered_payloads: dict[str, Any] = field(default_factory=dict)
    state_digest: bytes | None = None


@dataclass
class SpanResult:
    """The reduced updates of a span's clients.

    Attributes:
        nodes: (node, sums) of the tree nodes that lie wholly in the span, from left to right. A MEAN payload
            has its weighted sum, a SUM payload its plain sum.
        layouts: {slot: names, shapes and types of the tree in this vector}.
        sizes: {slot: bytes of one payload}, the same for every client.
        outcomes: one entry per client with an update, in the order of training.
        errors: {client: error text} for the clients that failed.
        retries: number of times that clients were trained again.
        bytes_up: bytes by payload name, summed over the clients with an update.
        seconds: wall-clock seconds of the span.
        stacking: the numbers of clients that ran in stacks and alone.
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
        """Return a copy with NumPy arrays, to send to another process."""
        return self._convert(lambda vector: vector.cpu().numpy(), tree.to_numpy)

    def to_tensors(self) -> SpanResult:
        """Return a copy with tensors: the inverse of `to_numpy`."""
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
    """Return one client's part of every sum, {slot: float64 vector}.

    Add the layouts and the bytes of its payloads to `result`, as the last step, when nothing can fail.

    Products of float32 numbers and integer weights are exact in float64: the mean over one client is exactly
    its model.
    """
    sums, up, fresh = {}, dict[str, int](), dict[str, Tree]()
    same = not capability(
        algorithm, PayloadAccounting
    )  # every client's payload then has the same bytes as the first client's
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
    """Return {name: bytes} of a payload; {} for a free upload, which a real system would not send."""
    return {} if name in algorithm.free_uploads else {name: count_bytes(algorithm, ctx, name, payload)}


def _slot(payload: str, reduction: Reduction, model: int) -> str:
    """Return the key of a payload's sum: "all/NAME" over all clients, "0/NAME" over architecture 0."""
    return f"all/{payload}" if reduction is Reduction.OVERALL_MEAN else f"{model}/{payload}"


def select_gathered(algorithm: Algorithm, update: ClientUpdate) -> dict[str, Tree]:
    """Return the GATHER payloads of one client update."""
    wanted = (name for name, reduction in algorithm.uploads.items() if reduction is Reduction.GATHER)
    return {name: update.upload[name] for name in wanted}


def add_sums(a: Sums, b: Sums) -> Sums:
    """Add two sums; either may be None."""
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
    """Combine the results of all spans; the order in which they arrive does not matter.

    Args:
        algorithm: declares how each payload is reduced (`Algorithm.uploads`).
        ctx: the round's context.
        results: the results of spans that together hold every block.
        cohort: the round's clients, in order.
        down: bytes sent to the cohort, by payload name.
        engine: facts about the pool for the round's record, such as its name.
        fingerprint: the digest of the pool's client states; this function updates it.

    Raises:
        CohortFailed: every client failed.
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
    """Return {client: error text} of the failed clients, in cohort order.

    Raises:
        CohortFailed: every client failed.
    """
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
"""Number of failed clients whose error text a round's record holds; it lists all their client numbers."""


def _make_failure_record(failures: Mapping[int, str], retries: int) -> dict[str, Any]:
    """Return the record's entries about failed and retried clients; {} without failures and retries."""
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
    """Turn a payload's sum into its reduced tree: the sum or the mean.

    Returns:
        The tree. With several architectures, {"0": tree, ...} for those with updates; OVERALL_MEAN always
        gives one tree. {} if the clients' weights sum to 0: there is no mean.
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
    """Return the mean of each metric, weighted by the clients' examples; NaN if they hold none."""
    mass = sum(outcome.num_examples for outcome in outcomes)
    names = outcomes[0].metrics if outcomes else {}
    if not mass:
        return dict.fromkeys(names, nan)
    return {name: sum(o.metrics[name] * o.num_examples for o in outcomes) / mass for name in names}
