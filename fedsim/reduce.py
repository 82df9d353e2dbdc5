"""From the blocks' sums to the cohort's: what `Algorithm.aggregate` receives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from . import tree, wire
from .core import Algorithm, Reduced, Reduction
from .errors import FedsimError
from .worker import BlockResult


def combine(
    algorithm: Algorithm,
    results: Sequence[BlockResult],
    cohort: Sequence[int],
    down: Mapping[str, int],
    engine: Mapping[str, Any],
) -> Reduced:
    """Add the blocks' partial sums, in block order whatever the order of arrival.

    Args:
        algorithm: which declares how each payload is reduced.
        results: every block's.
        cohort: the round's clients, in order.
        down: bytes sent to the cohort, by payload.
        engine: how the pool did it, for the record.
    """
    blocks = sorted(results, key=lambda block: block.number)
    place = {client: (b, i) for b, block in enumerate(blocks) for i, client in enumerate(block.clients)}
    clients = tuple(client for client in cohort if client in place)
    located = [(blocks[b], i) for b, i in (place[client] for client in clients)]
    weights = tuple(block.weights[i] for block, i in located)
    examples = tuple(block.num_examples[i] for block, i in located)
    mass = sum(sum(block.weights) for block in blocks)
    payloads: dict[str, Any] = {}
    for name, reduction in algorithm.uploads.items():
        if reduction is Reduction.GATHER:
            payloads[name] = [block.gathered[name][i] for block, i in located]
        else:
            payloads[name] = _total(blocks, name, mass if reduction is Reduction.MEAN else 1.0)
    up = sum((block.up for block in blocks), Counter[str]())
    return Reduced(
        payloads=payloads,
        clients=clients,
        weights=weights,
        num_examples=examples,
        metrics=_averages([block.metrics[i] for block, i in located], examples),
        traffic=wire.traffic(down, up),
        engine=engine,
    )


def _total(blocks: Sequence[BlockResult], name: str, mass: float) -> dict[str, Any]:
    if mass <= 0:
        raise FedsimError(
            f"the weights of this round's clients sum to {mass!r}, so {name!r} has no mean",
            "give every client at least one example (data.partition.min_size: 1)",
        )
    total: dict[str, Any] | None = None
    for block in blocks:
        total = tree.accumulate(total, block.sums[name], 1.0)
    return tree.map(lambda x: x / mass, total or {})


def _averages(metrics: Sequence[Mapping[str, float]], examples: Sequence[int]) -> dict[str, float]:
    mass = sum(examples) or 1
    names = metrics[0] if metrics else {}
    return {name: sum(m[name] * n for m, n in zip(metrics, examples, strict=True)) / mass for name in names}
