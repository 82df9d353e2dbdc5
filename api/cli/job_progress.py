"""Shows the progress of a job: a progress bar in a terminal, else plain lines."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from api.cli.display import make_message_console, print_message
from api.reports.formatting import format_metric, format_metric_value, format_number
from fedsim.errors import ServiceError
from fedsim.learning_tasks.metrics import main_metric_names
from jobs.store.records import RoundRecord
from jobs.store.states import FINAL

if TYPE_CHECKING:
    from rich.progress import Progress

    from api.sdk.job_handle import JobHandle
    from api.sdk.transport.stream import Message
    from jobs.store.records import Job

QUIET_SECONDS = 3.0
"""Seconds without events after which the reason for waiting is read from the service."""

STATE_MESSAGES = {
    "QUEUED": "waits in the queue",
    "STARTING": "is starting on the cluster",
    "RUNNING": "is running: loading data, starting workers",
    "CANCELLING": "is being cancelled",
}


class ProgressView(Protocol):
    """A view of the progress of a job."""

    def show_phase(self, text: str) -> None:
        """Show the current step."""

    def show_round(self, record: RoundRecord) -> None:
        """Show an ended round."""

    def show_note(self, text: str) -> None:
        """Show a message that stays visible."""


class ProgressBar:
    """A progress bar with the accuracy beside it, for a terminal."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self.progress, self.name = progress, name
        self.task = progress.add_task(name, total=total, score="")

    def show_phase(self, text: str) -> None:
        """Show the current step."""
        self.progress.update(self.task, score=text)

    def show_round(self, record: RoundRecord) -> None:
        """Show an ended round."""
        self.progress.update(self.task, completed=record.round, score=format_scores(record))

    def show_note(self, text: str) -> None:
        """Show a message that stays visible."""
        self.progress.console.print(text, markup=False)


class ProgressLines:
    """One line for each round, at most one per second, for a file or a pipe."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.last_phase = ""
        self.next_at = 0.0

    def show_phase(self, text: str) -> None:
        """Show the current step, once."""
        if text != self.last_phase:
            self.last_phase = text
            print_message(f"{self.name}: {text}")

    def show_round(self, record: RoundRecord) -> None:
        """Show an ended round."""
        now = time.monotonic()
        if now >= self.next_at or record.round == self.total:
            self.next_at = now + 1
            print_message(f"{self.name}: round {record.round}/{self.total}  {format_scores(record)}")

    def show_note(self, text: str) -> None:
        """Show a message that stays visible."""
        print_message(text)


def format_scores(record: RoundRecord) -> str:
    """Write the metrics and failures of a round on one line."""
    metrics = record.metrics
    parts = (
        *(
            (format_metric(name.removeprefix("global_")), format_metric_value(name, metrics[name]))
            for name in main_metric_names()
            if name in metrics
        ),
        ("loss", format_number(metrics.get("global_loss"))),
        ("clients failed", str(len(record.failed) or "")),
        ("workers replaced", str(record.engine.restarts or "")),
    )
    return "  ".join(f"{name} {text}" for name, text in parts if text)


@contextmanager
def open_live_view(name: str, total: int) -> Iterator[ProgressView]:
    """Open the view for standard error: a progress bar in a terminal, else lines.

    Args:
        name: name of the job.
        total: number of rounds of the job.
    """
    if not sys.stderr.isatty():
        yield ProgressLines(name, total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[score]}", markup=False),
    )
    console = make_message_console()
    # With soft wrap the bar would be longer than the line.
    console.soft_wrap = False
    with RichProgress(*columns, console=console) as progress:
        yield ProgressBar(progress, name, total)


def follow_job(handle: JobHandle, view: ProgressView) -> None:
    """Show the events of a job until it ends; without events, show why it waits.

    Args:
        handle: the job; refreshed at the end.
        view: view of the progress.
    """
    inbox: queue.Queue[Message | BaseException | None] = queue.Queue()
    threading.Thread(target=_read, args=(handle, inbox), daemon=True, name="events").start()
    running = False
    while True:
        try:
            item = inbox.get(timeout=QUIET_SECONDS)
        except queue.Empty:
            if not running:
                view.show_phase(_describe_waiting(handle))
            continue
        if item is None:
            break
        if isinstance(item, BaseException):
            raise item
        running = item.type == "round" or (running and item.type != "state")
        _show(item, view)
    # Patient: the service may restart at this moment.
    handle.refresh(patient=True)


def _read(handle: JobHandle, inbox: queue.Queue[Message | BaseException | None]) -> None:
    try:
        for message in handle.events():
            inbox.put(message)
    except BaseException as error:
        inbox.put(error)
    inbox.put(None)


def _show(message: Message, view: ProgressView) -> None:
    content: dict[str, Any] = message.data
    if message.type == "round":
        view.show_round(RoundRecord.model_validate(content))
    elif message.type == "warning":
        view.show_note(f"warning: {content.get('message', '')}")
    elif content.get("state") in STATE_MESSAGES:
        view.show_phase(f"the job {STATE_MESSAGES[content['state']]}")


def _describe_waiting(handle: JobHandle) -> str:
    from api.sdk.transport.followers import is_temporary

    try:
        job: Job = handle.refresh()
    except ServiceError as error:
        if not is_temporary(error):
            raise
        return "the service does not answer; trying again"
    if job.state in FINAL:
        return f"the job is {job.state}"
    reason = f": {job.waiting}" if job.waiting else ""
    return f"the job {STATE_MESSAGES[job.state]}{reason}"
