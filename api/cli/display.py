"""What is printed: words for people on standard error, data on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from api.reports.formatting import amount, number, share, size
from api.reports.headline import headline
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


def words() -> Console:
    """Give the console for people: standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def data() -> Console:
    """Give the console for what was asked for: standard output."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, width=width)


def say(text: str) -> None:
    """Tell the user something."""
    words().print(text, markup=False)


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show what is being waited for: a spinner in a terminal, else a line whenever that changes.

    Args:
        text: what a spinner says at first.

    Yields:
        A function that takes what is being waited for now.
    """
    console = words()
    if console.is_terminal:
        with console.status(text) as status:
            yield status.update
        return
    said: set[str] = set()

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    yield say_once


def print_json(value: Any) -> None:
    """Print data for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_line(value: Any) -> None:
    """Print data for programs on one line, at once."""
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")), flush=True)


def print_error(error: FedsimError) -> None:
    """Say what went wrong, and what to do about it."""
    console = words()
    console.print("[bold red]error:[/] ", end="")
    console.print(error.message, markup=False)
    if error.hint and not isinstance(error, SpecError):
        console.print(f"  {error.hint}", markup=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Iterable[str] = ()) -> Any:
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


def state_text(state: str) -> Any:
    """Give a state in its colour."""
    from rich.text import Text

    return Text(state, style=STATE_STYLES.get(state, ""))


def plain(text: str) -> Any:
    """Give text in which nothing is markup."""
    from rich.text import Text

    return Text(text)


def jobs_table(jobs: Iterable[Job]) -> Any:
    """Make the table of jobs."""
    heads = ("id", "name", "state", "round", "accuracy", "priority", "age")
    rows = (
        (
            plain(job.id),
            plain(job.name),
            state_text(job.state),
            f"{job.rounds_done}/{job.rounds_total}",
            _reached(job.last_metrics),
            str(job.priority),
            age(job.created_at),
        )
        for job in jobs
    )
    return table(heads, rows, numbers=("round", "accuracy", "priority", "age"))


def _reached(metrics: Mapping[str, Any]) -> str:
    """Write the accuracy of a job, and of which models where it is not that of a global one."""
    name = headline(metrics)
    if name is None:
        return ""
    return f"{'personal ' if name == 'personal_accuracy' else ''}{share(metrics[name])}"


def rounds_table(records: Sequence[RoundRecord]) -> Any:
    """Make the table of rounds, with the totals below."""
    from jobs.store.records import total_cost

    personal = any("personal_accuracy" in record.metrics for record in records)
    heads = ["round", "accuracy", "personal", "loss", "down", "up", "updates", "FLOPs", "seconds"]
    if not personal:
        heads.remove("personal")
    made = table(heads, (), numbers=heads)
    made.show_footer = True
    for record in records:
        cells = _round_cells(record)
        made.add_row(*(cells[head] for head in heads))
    cost = total_cost(records)
    totals = {
        "round": "total",
        "down": size(sum(record.bytes.down for record in records)),
        "up": size(sum(record.bytes.up for record in records)),
        "updates": amount(cost.updates),
        "FLOPs": amount(cost.flops),
        "seconds": f"{sum(record.seconds.total for record in records):.2f}",
    }
    for head, column in zip(heads, made.columns, strict=True):
        column.footer = totals.get(head, "")
    return made


def _round_cells(record: RoundRecord) -> dict[str, str]:
    metrics, cost = record.metrics, record.cost
    return {
        "round": str(record.round),
        "accuracy": share(metrics.get("global_accuracy")),
        "personal": share(metrics.get("personal_accuracy")),
        "loss": number(metrics.get("global_loss")),
        "down": size(record.bytes.down),
        "up": size(record.bytes.up),
        "updates": amount(cost.updates) if cost else "",
        "FLOPs": amount(cost.flops) if cost else "",
        "seconds": f"{record.seconds.total:.2f}",
    }


def age(moment: datetime) -> str:
    """Write how long ago something was."""
    seconds = int((datetime.now(UTC) - moment).total_seconds())
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{max(seconds, 0)} s"
