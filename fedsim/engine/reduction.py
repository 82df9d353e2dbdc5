"""Reduction: sum the client updates along the tree of blocks, into the input of `Algorithm.aggregate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.base import tree, wire
from fedsim.base.digest import ClientStatesDigest
from fedsim.base.error_attribution import attribute_server_errors
from fedsim.base.tree import Layout
from fedsim.core import Algorithm, Context, ReducedUpdates, Reduction
from fedsim.engine.blocks import TreeSum
from fedsim.engine.server_messages import BytesDown
from fedsim.engine.span_result import ClientOutcome, SpanResult, Sums, make_slot, merge_layouts
from fedsim.errors import CohortFailed
from fedsim.stacking.grouping import StackingNotes


def add_sums(a: Sums, b: Sums) -> Sums:
    """Add two sums; either may be None."""
    if a is None or b is None:
        return a if b is None else b
    both = {slot: torch.add(value, b[slot]) if slot in b else value for slot, value in a.items()}
    return {**both, **{slot: value for slot, value in b.items() if slot not in a}}


class SpanSums:
    """The sum of a round, which grows as the results of spans arrive: few of them are in memory at once.

    Args:
        algorithm: named in errors.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.tree, self.layouts = TreeSum(add_sums), dict[str, Layout]()

    def take(self, result: SpanResult) -> SpanResult:
        """Add the sums of a span, in any order of the spans; return the rest of its result.

        Raises:
            MethodFailed: its payloads have other layouts than those of the spans before.
        """
        with attribute_server_errors(self.algorithm, "the sum of its uploads"):
            merge_layouts(self.layouts, result.layouts)
            for node, part in result.nodes:
                self.tree.add_node(node, part)
        return replace(result, nodes=[])


def combine_results(
    algorithm: Algorithm,
    ctx: Context,
    sums: SpanSums,
    results: Sequence[SpanResult],
    cohort: Sequence[int],
    down: BytesDown,
    engine: Mapping[str, Any],
    states_digest: ClientStatesDigest,
) -> ReducedUpdates:
    """Combine the results of all spans.

    Args:
        algorithm: declares how each payload is reduced (`Algorithm.uploads`).
        ctx: the round's context.
        sums: has taken the results.
        results: the rests of the results of spans that together hold every block.
        cohort: the round's clients, in order.
        down: bytes sent to the clients.
        engine: facts about the pool for the round's record, such as its name.
        states_digest: the digest of the pool's client states; this function updates it.
    """
    up = Counter[str]()
    found: dict[int, ClientOutcome] = {}
    for result in results:
        up.update(result.bytes_up)
        found.update((outcome.client, outcome) for outcome in result.outcomes)
    outcomes = [found[client] for client in cohort if client in found]
    metrics, metric_examples = average_metrics(
        [(each.metrics, dict.fromkeys(each.metrics, each.num_examples)) for each in outcomes]
    )
    failures = _failures(results, cohort)
    states_digest.update(
        {outcome.client: outcome.state_digest for outcome in outcomes if outcome.state_digest is not None}
    )
    total: Any = sums.tree.total() or {}
    payloads = {
        name: [outcome.gathered_payloads[name] for outcome in outcomes]
        if reduction is Reduction.GATHER
        else _finish_payload(name, reduction, ctx, total, sums.layouts, outcomes)
        for name, reduction in algorithm.uploads.items()
    }
    return ReducedUpdates(
        payloads=payloads,
        clients=tuple(outcome.client for outcome in outcomes),
        weights=tuple(outcome.weight for outcome in outcomes),
        num_examples=tuple(outcome.num_examples for outcome in outcomes),
        metrics=metrics,
        traffic=wire.make_traffic(down.sum_payloads(cohort), up),
        engine={
            **engine,
            **sum((result.stacking for result in results), StackingNotes()).to_record(),
            **_make_failure_record(failures, sum(result.retries for result in results)),
        },
        failed=tuple(failures),
        memory_digest=states_digest.hexdigest() if algorithm.stateful else None,
        client_bytes=tuple((down.of_client(outcome.client), outcome.bytes_up) for outcome in outcomes),
        metric_examples=metric_examples,
    )


def _failures(results: Sequence[SpanResult], cohort: Sequence[int]) -> dict[int, str]:
    """Return {client: error text} of the failed clients, in cohort order."""
    errors = {client: text for result in results for client, text in result.errors.items()}
    return {client: errors[client] for client in cohort if client in errors}


def require_updates(reduced: ReducedUpdates, failed: str) -> ReducedUpdates:
    """Return the updates of a cohort.

    Args:
        reduced: the updates.
        failed: the beginning of the error message, such as "all 3 clients of round 2 failed".

    Raises:
        CohortFailed: every client failed.
    """
    if reduced.failed and not reduced.clients:
        client, cause = next(iter(reduced.engine["client_errors"].items()))
        hint = "faults.client_error: fail shows the first error at once"
        raise CohortFailed(f"{failed}; client {client}: {cause}", hint)
    return reduced


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
        slot, mass = make_slot(name, reduction, 0), float(np.sum([o.weight for o in outcomes]))
        return tree.unflatten(sums[slot] / mass, layouts[slot]) if slot in sums and mass > 0 else {}
    count, found = len(ctx.nets), {}
    for model in range(count):
        slot = make_slot(name, reduction, model)
        mass = float(np.sum([o.weight for o in outcomes if o.client % count == model]))
        if slot in sums and (mass > 0 or reduction is Reduction.SUM):
            vector = sums[slot] / mass if reduction is Reduction.MEAN else sums[slot]
            found[str(model)] = tree.unflatten(vector, layouts[slot])
    return found.get("0", {}) if count == 1 else found


def average_metrics(
    parts: Sequence[tuple[Mapping[str, float], Mapping[str, int]]],
) -> tuple[dict[str, float], dict[str, int]]:
    """Average each metric over the parts that have it, weighted by their examples.

    Args:
        parts: of the cohort, single clients or groups: {metric: value} and {metric: examples behind it}.

    Returns:
        The means, NaN without examples; and {metric: examples behind it}.
    """
    names = dict.fromkeys(name for metrics, _ in parts for name in metrics)
    examples = {name: sum(held.get(name, 0) for _, held in parts) for name in names}
    means = {
        name: sum(metrics[name] * held[name] for metrics, held in parts if held.get(name)) / total
        if total
        else nan
        for name, total in examples.items()
    }
    return means, examples
