"""What a report tells of troubles that a run has outlasted, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jobs.store.records import RoundRecord

MOST_ROUNDS = 100
"""Rounds that are told one by one."""


def list_round_failures(records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    """Find the rounds in which actors were replaced, or clients trained again or were left out.

    Args:
        records: of the rounds, in their order.

    Returns:
        Each such round, as `round 3`, with what happened in it; of more than `MOST` the first ones, and how
        many there are besides.
    """
    found = [(f"round {record.round}", "; ".join(_of(record))) for record in records]
    told = [(place, text) for place, text in found if text]
    more = len(told) - MOST_ROUNDS
    return told if more <= 0 else [*told[:MOST_ROUNDS], ("later", f"the same in {more:,} more of the rounds")]


def _of(record: RoundRecord) -> Iterator[str]:
    said = record.engine.model_extra or {}
    if record.engine.restarts:
        yield f"{_count(record.engine.restarts, 'actor')} replaced"
    if retries := said.get("client_retries"):
        yield f"{_count(retries, 'client')} trained again after an error"
    if record.failed:
        cause = next((f" (client {who}: {why})" for who, why in said.get("client_errors", {}).items()), "")
        yield f"left out, because they failed: clients {', '.join(map(str, record.failed))}{cause}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
