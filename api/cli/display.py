"""Prints messages for people on standard error and data on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from api.reports.formatting import (
    format_bytes,
    format_count,
    format_epsilon,
    format_metric,
    format_metric_value,
    format_number,
)
from fedsim.errors import FedsimError, SpecError
from fedsim.learning_tasks.metrics import METRICS, find_main_metric

if TYPE_CHECKING:
    from rich.console import Console

    from jobs.store.records import Job, RoundRecord

PIPE_WIDTH = 200
"""Width of a table in a file or a pipe, in characters."""


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
    """Make the console for messages: standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def make_data_console() -> Console:
    """Make the console for data: standard output."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, width=width)


def print_message(text: str) -> None:
    """Print a message for the user."""
    make_message_console().print(text, markup=False)


@contextmanager
def show_waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show the current step while the user waits: a spinner in a terminal, else one line for each new step.

    Args:
        text: first text of the spinner.

    Yields:
        A function that shows the text of the current step.
    """
    console = make_message_console()
    if console.is_terminal:
        with console.status(text) as status:
            yield status.update
        return
    printed: set[str] = set()

    def print_new_message(text: str) -> None:
        if text not in printed:
            printed.add(text)
            print_message(text)

    yield print_new_message


def print_json(value: Any) -> None:
    """Print data as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_line(value: Any) -> None:
    """Print data as one line of JSON, and flush."""
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")), flush=True)


def print_error(error: FedsimError) -> None:
    """Print an error and its hint."""
    console = make_message_console()
    console.print("[bold red]error:[/] ", end="")
    console.print(error.message, markup=False)
    if error.hint and not isinstance(error, SpecError):
        console.print(f"  {error.hint}", markup=False)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Iterable[str] = ()) -> Any:
    """Make a table.

    Args:
        columns: titles of the columns.
        rows: cells as text or rich text.
        numbers: titles of the columns that are aligned right.
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


def print_table(table: Any, *, unbroken: Collection[str] = ()) -> None:
    """Print a table; a narrow terminal breaks its texts, and no number in two.

    Args:
        table: of `make_table`.
        unbroken: titles of columns of texts that are not broken either.
    """
    console = make_data_console()
    for column in table.columns:
        if column.justify == "right" or column.header in unbroken:
            widths = [console.measure(cell).maximum for cell in (*column.cells, column.footer)]
            column.min_width = max(console.measure(column.header).minimum, *widths)
    # Without `soft_wrap`, rich cuts off what is wider than the terminal.
    console.print(table, soft_wrap=True)


def format_state(state: str) -> Any:
    """Return a state as coloured text."""
    from rich.text import Text

    return Text(state, style=STATE_STYLES.get(state, ""))


def format_end(job: Job, result: str = "") -> str:
    """Write how a job ended, such as "FAILED (NODE_LOST): node 10.0.0.3 was lost".

    Args:
        job: the job.
        result: a text that follows the state.
    """
    reason = f" ({job.reason})" if job.reason else ""
    return f"{job.state}{reason}{result}" + (f": {job.message}" if job.message else "")


def make_plain_text(text: str) -> Any:
    """Return text without markup."""
    from rich.text import Text

    return Text(text)


def make_jobs_table(jobs: Iterable[Job]) -> Any:
    """Make the table of jobs."""
    heads = ("id", "name", "algorithm", "seed", "state", "round", "score", "priority", "age")
    rows = (
        (
            make_plain_text(job.id),
            make_plain_text(job.name),
            make_plain_text(job.algorithm),
            str(job.spec.get("seed", "")),
            format_state(job.state),
            f"{job.rounds_done}/{job.rounds_total}",
            _format_score(job.last_metrics),
            str(job.priority),
            format_age(job.created_at),
        )
        for job in jobs
    )
    return make_table(heads, rows, numbers=("seed", "round", "score", "priority", "age"))


def _format_score(metrics: Mapping[str, Any]) -> str:
    """Write the main metric of a job, such as "accuracy 0.9123"; "personal" marks that of personal models."""
    name = find_main_metric(metrics)
    if name is None:
        return ""
    return f"{format_metric(name.removeprefix('global_'))} {format_metric_value(name, metrics[name])}"


def make_rounds_table(records: Sequence[RoundRecord]) -> Any:
    """Make the table of rounds, with totals in the last row."""
    from jobs.store.records import RunTotals

    main = find_main_kind(records)
    personal = any(f"personal_{main}" in record.metrics for record in records)
    title = _title_kind(main)
    personal_title = f"personal {title}"
    heads = [
        "round",
        title,
        personal_title,
        "loss",
        "traffic down",
        "traffic up",
        "parameter updates",
        "FLOPs",
        "seconds",
    ]
    if not personal:
        heads.remove(personal_title)
    total = RunTotals.of(records)
    heads += ["simulated s", "joules"] if total.simulated_seconds is not None else []
    heads += ["epsilon"] if any(format_epsilon(record.method) for record in records) else []
    made = make_table(heads, (), numbers=heads)
    made.show_footer = True
    for record in records:
        cells = _round_cells(record, main)
        made.add_row(*(cells[head] for head in heads))
    footers = {
        "round": "total",
        "traffic down": format_bytes(total.down),
        "traffic up": format_bytes(total.up),
        "parameter updates": format_count(total.cost.updates),
        "FLOPs": format_count(total.cost.flops),
        "seconds": f"{total.seconds:.2f}",
        "simulated s": f"{total.simulated_seconds or 0:.2f}",
        "joules": f"{total.joules or 0:.4g}",
    }
    for head, column in zip(heads, made.columns, strict=True):
        column.footer = footers.get(head, "")
    return made


def find_main_kind(records: Sequence[RoundRecord]) -> str:
    """Return the main metric of the records, such as "accuracy", without the model's name."""
    found = (name for record in records if (name := find_main_metric(record.metrics)))
    return next(found, "global_accuracy").partition("_")[2]


VALIDATION = "validation_"
"""The beginning of a metric on the validation set, without the model's name."""


def _title_kind(main: str) -> str:
    """Return the title of a metric without the model's name; it names the validation set."""
    is_validation = main.startswith(VALIDATION)
    title = METRICS[main.removeprefix(VALIDATION)].title
    return f"{title} (validation)" if is_validation else title


def _round_cells(record: RoundRecord, main: str) -> dict[str, str]:
    metrics, cost, title = record.metrics, record.cost, _title_kind(main)
    return {
        "round": str(record.round),
        title: format_metric_value(main, metrics.get(f"global_{main}")),
        f"personal {title}": format_metric_value(main, metrics.get(f"personal_{main}")),
        "loss": format_number(metrics.get("global_loss")),
        "traffic down": format_bytes(record.bytes.down),
        "traffic up": format_bytes(record.bytes.up),
        "parameter updates": format_count(cost.updates) if cost else "",
        "FLOPs": format_count(cost.flops) if cost else "",
        "seconds": f"{record.seconds.total:.2f}",
        "simulated s": f"{record.clock.round:.2f}" if record.clock else "",
        "joules": f"{record.clock.joules:.4g}" if record.clock else "",
        "epsilon": format_epsilon(record.method),
    }


def format_age(moment: datetime) -> str:
    """Write the time since a moment, e.g. `3 h`."""
    seconds = int((datetime.now(UTC) - moment).total_seconds())
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{max(seconds, 0)} s"
