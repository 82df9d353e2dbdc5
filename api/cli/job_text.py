"""One job in words."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from api.cli.display import age, data, plain, state_text, table
from api.reports.formatting import amount, duration, number, size
from jobs.store.records import Job, RoundRecord, total_cost


def describe(job: Job, records: Sequence[RoundRecord] = ()) -> None:
    """Print a job: how it stands, what its rounds cost together, its latest metrics, its spec.

    Args:
        job: which.
        records: its rounds; without them there are no sums.
    """
    console = data()
    console.print(table(("job", job.id), ((plain(name), value) for name, value in _facts(job))))
    if records:
        console.print(table(("all rounds", ""), _totals(records), numbers=("",)))
    if job.last_metrics:
        metrics = ((plain(name), number(value)) for name, value in sorted(job.last_metrics.items()))
        console.print(table(("metric", "latest"), metrics, numbers=("latest",)))
    console.print(yaml.safe_dump(job.spec, sort_keys=False), markup=False, end="")


def _totals(records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    cost = total_cost(records)
    return [
        ("seconds", duration(sum(record.seconds.total for record in records))),
        ("down", size(sum(record.bytes.down for record in records))),
        ("up", size(sum(record.bytes.up for record in records))),
        ("parameter updates", amount(cost.updates)),
        ("FLOPs", amount(cost.flops)),
    ]


def _facts(job: Job) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("name", plain(job.name)),
        ("state", state_text(job.state)),
        ("round", f"{job.rounds_done} of {job.rounds_total}"),
        ("priority", str(job.priority)),
        ("created", f"{job.created_at:%Y-%m-%d %H:%M:%S} UTC, {age(job.created_at)} ago"),
    ]
    optional = {
        "reason": job.reason,
        "message": job.message,
        "waits for": job.waiting,
        "restarts": job.restarts or None,
        "labels": " ".join(f"{name}={value}" for name, value in job.labels.items()),
    }
    return facts + [(name, plain(str(value))) for name, value in optional.items() if value]
