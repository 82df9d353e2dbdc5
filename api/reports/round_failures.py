"""Failures that a run survived, round by round, for its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jobs.store.records import RoundRecord

MOST_ROUNDS = 100
"""Rounds that are listed one by one."""


def list_round_failures(records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    """List the rounds in which workers were replaced, or clients were retried or failed.

    Args:
        records: round records, in order.

    Returns:
        Pairs such as `("round 3", "1 worker replaced")`; after `MOST_ROUNDS` pairs one pair counts the rest.
    """
    found = [(f"round {record.round}", "; ".join(_describe_failures(record))) for record in records]
    failing = [(place, text) for place, text in found if text]
    more = len(failing) - MOST_ROUNDS
    return failing if more <= 0 else [*failing[:MOST_ROUNDS], ("later", f"{more:,} more rounds had failures")]


def _describe_failures(record: RoundRecord) -> Iterator[str]:
    extra = record.engine.model_extra or {}
    if record.engine.restarts:
        yield f"{_count(record.engine.restarts, 'worker')} replaced"
    if retries := extra.get("client_retries"):
        yield f"{_count(retries, 'client')} retried after an error"
    if record.failed:
        errors = extra.get("client_errors", {}).items()
        first = next((f"; first error (client {client}): {text}" for client, text in errors), "")
        yield f"clients left out because they failed: {', '.join(map(str, record.failed))}{first}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
