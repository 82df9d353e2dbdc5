"""Every payload of every algorithm: what privacy covers, and the table of docs/privacy.md that says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedsim.algorithms import ALGORITHMS
from fedsim.core import Reduction
from fedsim.core.capabilities import ClientInstructions, ClientSurvey, LabelCensus, capability
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.uploads.model_updates import explain_other_uploads
from fedsim.uploads.private_examples import explain_other_training
from fedsim.uploads.server_view import explain_answers, explain_single_reads
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick

PAGE = Path(__file__).parents[3] / "docs" / "privacy.md"


def make_row(name: str) -> str:
    """The row of an algorithm: its payloads, and what covers them."""
    kind = ALGORITHMS[name]
    kinds = {p: f"{r.value} (free)" if p in kind.free_uploads else r.value for p, r in kind.uploads.items()}
    payloads = [f"`{payload}` {reduction}" for payload, reduction in kinds.items()]
    # `jobs.spec.checks.upload_checks` refuses q-FedAvg: with privacy every client has the weight 1.
    weights = "clients have weights that depend on their losses" if name == "qfedavg" else ""
    reasons = (
        explain_other_uploads(kind) or explain_answers(kind) or weights,
        explain_other_training(kind),
        explain_single_reads(kind),
    )
    shown = [reason.split(", and the budget")[0] or "yes" for reason in reasons]
    return " | ".join([", ".join(payloads), *shown])


def test_the_page_has_every_algorithm() -> None:
    text = PAGE.read_text("utf-8").split("## Every algorithm")[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.M))
    assert rows == {name: make_row(name) for name in ALGORITHMS}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_served_algorithm_has_no_payload_beside_the_noise(name: str) -> None:
    kind = ALGORITHMS[name]
    sums = {Reduction.MEAN, Reduction.SUM}
    answers = issubclass(kind, LabelCensus | ClientSurvey)
    if not explain_other_uploads(kind) and not explain_answers(kind):
        assert set(kind.uploads.values()) <= sums
        assert not kind.free_uploads
        assert not answers
    if not explain_single_reads(kind):
        assert Reduction.GATHER not in kind.uploads.values()
        assert not answers


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_traffic_has_no_payload_without_a_mark(name: str) -> None:
    """Everything that a run sends up is declared in `uploads`, or is the census."""
    population, method = federation([16] * 4, rounds=3), quick(name)
    pool = SerialPool(method, population)
    sent, down = set[str](), set[str]()
    for result in simulate(method, population, pool):
        ctx = population.context(min(result.round, 2))
        down |= set(method.broadcast(ctx, result.state))
        if instructing := capability(method, ClientInstructions):
            down |= set(instructing.instruct_client(ctx, result.state, 0))
        sent |= set(result.traffic.by_payload)
    census = {"census"} if capability(method, LabelCensus) else set()
    assert sent <= set(method.uploads) | census | down
