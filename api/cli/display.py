"""What is printed: words for people on standard error, data on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from api.reports.formatting import format_bytes, format_count, format_number, format_share
from api.reports.main_accuracy import find_main_accuracy
from fedsim.errors import FedsimError, SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from jobs.store.records import Job, RoundRecord

PIPE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe, where no terminal says how many there are."""

STATE_STYLES = {
    "QUEUED": "yellow",
    "STARTING": "cyan",
    "RUNNING": "cyan",
    "CANCELLING": "yellow",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "yellow",
}


def make_message_console() -> Console:
    """Give the console for people: standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def make_data_console() -> Console:
    """Give the console for what was asked for: standard output."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, width=width)


def print_message(text: str) -> None:
    """Tell the user something."""
    make_message_console().print(text, markup=False)


@contextmanager
def show_waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show what is being waited for: a spinner in a terminal, else a line whenever that changes.

    Args:
        text: what a spinner says at first.

    Yields:
        A function that takes what is being waited for now.
    """
    console = make_message_console()
    if console.is_terminal:
        with console.status(text) as status:
            yield status.update
        return
    said: set[str] = set()

    def print_new_message(text: str) -> None:
        if text not in said:
            said.add(text)
            print_message(text)

    yield print_new_message


def print_json(value: Any) -> None:
    """Print data for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_line(value: Any) -> None:
    """Print data for programs on one line, at once."""
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")), flush=True)


def print_error(error: FedsimError) -> None:
    """Say what went wrong, and what to do about it."""
    console = make_message_console()
    console.print("[bold red]error:[/] ", end="")
    console.print(error.message, markup=False)
    if error.hint and not isinstance(error, SpecError):
        console.print(f"  {error.hint}", markup=False)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Iterable[str] = ()) -> Any:
    """Make a table.

    Args:
        columns: the heads.
        rows: cells, as text or rich text.
        numbers: heads of the columns that are aligned to the right.
    """
    from rich import box
    from rich.table import Table

    right = frozenset(numbers)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for cells in rows:
        made.add_row(*cells)
    return made


def format_state(state: str) -> Any:
    """Give a state in its colour."""
    from rich.text import Text

    return Text(state, style=STATE_STYLES.get(state, ""))


def make_plain_text(text: str) -> Any:
    """Give text in which nothing is markup."""
    from rich.text import Text

    return Text(text)


def make_jobs_table(jobs: Iterable[Job]) -> Any:
    """Make the table of jobs."""
    heads = ("id", "name", "state", "round", "accuracy", "priority", "age")
    rows = (
        (
            make_plain_text(job.id),
            make_plain_text(job.name),
            format_state(job.state),
            f"{job.rounds_done}/{job.rounds_total}",
            _format_accuracy(job.last_metrics),
            str(job.priority),
            format_age(job.created_at),
        )
        for job in jobs
    )
    return make_table(heads, rows, numbers=("round", "accuracy", "priority", "age"))


def _format_accuracy(metrics: Mapping[str, Any]) -> str:
    """Write the accuracy of a job, and of which models where it is not that of a global one."""
    name = find_main_accuracy(metrics)
    if name is None:
        return ""
    return f"{'personal ' if name == 'personal_accuracy' else ''}{format_share(metrics[name])}"


def make_rounds_table(records: Sequence[RoundRecord]) -> Any:
    """Make the table of rounds, with the totals below."""
    from jobs.store.records import total_cost

    personal = any("personal_accuracy" in record.metrics for record in records)
    heads = ["round", "accuracy", "personal", "loss", "down", "up", "updates", "FLOPs", "seconds"]
    if not personal:
        heads.remove("personal")
    made = make_table(heads, (), numbers=heads)
    made.show_footer = True
    for record in records:
        cells = _round_cells(record)
        made.add_row(*(cells[head] for head in heads))
    cost = total_cost(records)
    totals = {
        "round": "total",
        "down": format_bytes(sum(record.bytes.down for record in records)),
        "up": format_bytes(sum(record.bytes.up for record in records)),
        "updates": format_count(cost.updates),
        "FLOPs": format_count(cost.flops),
        "seconds": f"{sum(record.seconds.total for record in records):.2f}",
    }
    for head, column in zip(heads, made.columns, strict=True):
        column.footer = totals.get(head, "")
    return made


def _round_cells(record: RoundRecord) -> dict[str, str]:
    metrics, cost = record.metrics, record.cost
    return {
        "round": str(record.round),
        "accuracy": format_share(metrics.get("global_accuracy")),
        "personal": format_share(metrics.get("personal_accuracy")),
        "loss": format_number(metrics.get("global_loss")),
        "down": format_bytes(record.bytes.down),
        "up": format_bytes(record.bytes.up),
        "updates": format_count(cost.updates) if cost else "",
        "FLOPs": format_count(cost.flops) if cost else "",
        "seconds": f"{record.seconds.total:.2f}",
    }


def format_age(moment: datetime) -> str:
    """Write how long ago something was."""
    seconds = int((datetime.now(UTC) - moment).total_seconds())
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{max(seconds, 0)} s"
