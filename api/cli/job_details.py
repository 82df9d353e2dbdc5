"""Prints the details of one job."""

from __future__ import annotations

from collections.abc import Sequence

from api.cli.display import (
    format_age,
    format_state,
    make_data_console,
    make_plain_text,
    make_table,
    print_table,
)
from api.reports.formatting import format_bytes, format_count, format_duration, format_number
from jobs.spec.spec_text import dump_spec
from jobs.store.records import Job, RoundRecord, RunTotals


def print_job(job: Job, records: Sequence[RoundRecord]) -> None:
    """Print a job: state, cost of all rounds, latest metrics, spec.

    Args:
        job: the job.
        records: its round records; with none no cost is printed.
    """
    print_table(make_table(("job", job.id), ((make_plain_text(name), value) for name, value in _facts(job))))
    if records:
        print_table(make_table(("cost of all rounds", ""), _totals(records), numbers=("",)))
    if job.last_metrics:
        metrics = (
            (make_plain_text(name), format_number(value)) for name, value in sorted(job.last_metrics.items())
        )
        print_table(make_table(("metric", "latest"), metrics, numbers=("latest",)))
    make_data_console().print(dump_spec(job.spec), markup=False, end="")


def _totals(records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    total, simulated = RunTotals.of(records), list[tuple[str, str]]()
    if total.simulated_seconds is not None:
        simulated.append(("simulated time", format_duration(total.simulated_seconds)))
        simulated.append(("energy", f"{total.joules:.4g} J"))
    return [
        ("computing time", format_duration(total.seconds)),
        ("traffic down", format_bytes(total.down)),
        ("traffic up", format_bytes(total.up)),
        ("parameter updates", format_count(total.cost.updates)),
        ("FLOPs", format_count(total.cost.flops)),
        *simulated,
    ]


def _facts(job: Job) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("name", make_plain_text(job.name)),
        ("state", format_state(job.state)),
        ("round", f"{job.rounds_done} of {job.rounds_total}"),
        ("priority", str(job.priority)),
        ("created", f"{job.created_at:%Y-%m-%d %H:%M:%S} UTC, {format_age(job.created_at)} ago"),
    ]
    optional = {
        "reason": job.reason,
        "message": job.message,
        "waiting for": job.waiting,
        "restarts": job.restarts or None,
        "labels": " ".join(f"{name}={value}" for name, value in job.labels.items()),
    }
    return facts + [(name, make_plain_text(str(value))) for name, value in optional.items() if value]
