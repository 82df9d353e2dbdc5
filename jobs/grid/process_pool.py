"""The runs of a table in processes of this machine: one run per process and thread, several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import torch

from jobs.grid.journal import Entry
from jobs.grid.one_run import Populations, make_run
from jobs.grid.runner import EndedRun
from jobs.grid.table import Table
from jobs.settings import Settings
from jobs.spec.sweep import Member

Worker: TypeAlias = Callable[[Any], Any]
"""Does one piece of work; a worker process keeps its own between pieces."""


class _Runner:
    """Makes runs of a table; runs with the same data share it."""

    def __init__(self, table: Table, settings: Settings, code: str, device: str) -> None:
        self.table, self.settings, self.shared = table, settings, Populations()
        self.code, self.device = code, device

    def __call__(self, member: Member) -> Entry | str:
        try:
            return make_run(member, self.table, self.settings, self.shared, self.code, self.device)
        except Exception as error:  # one broken run must not end the table
            return f"{type(error).__name__}: {error}"


_HERE: dict[str, Worker] = {}  # one entry, in worker processes only: an initialiser returns nothing


def _begin(make_worker: Callable[..., Worker], arguments: tuple[Any, ...]) -> None:
    """Begin a worker process: on one thread, and gone when its parent is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()
    _HERE["worker"] = make_worker(*arguments)


def _end_with_parent() -> None:
    """A killed table takes its processes along; else they would go on with what nobody writes down."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(piece: Any) -> Any:
    return _HERE["worker"](piece)


def run_in_processes(
    table: Table, missing: Sequence[Member], settings: Settings, *, processes: int = 2, device: str = "cpu"
) -> Iterator[EndedRun]:
    """Make runs in processes.

    Args:
        table: whose runs.
        missing: the runs.
        settings: where data is.
        processes: runs at a time, each on one thread.
        device: where runs train, "cpu" or "cuda", whose first GPU all processes share.

    Yields:
        Each run with its entry, or with the reason of its failure, as it ends.
    """
    with open_processes(processes, _Runner, (table, settings, find_code_version(), device)) as submit:
        futures = {submit(member): member for member in missing}
        for future in as_completed(futures):
            yield EndedRun(futures[future], future.result())


@contextmanager
def open_processes(
    processes: int, make_worker: Callable[..., Worker], arguments: tuple[Any, ...]
) -> Iterator[Callable[[Any], Future[Any]]]:
    """Start worker processes, each on one thread; an error, Ctrl-C included, ends them at once.

    Args:
        processes: their number.
        make_worker: makes the worker of a process, in the process.
        arguments: of `make_worker`.

    Yields:
        A function that gives a piece of work to one of them, and returns the future of its result.
    """
    others = set(active_children())
    executor = ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=_begin, initargs=(make_worker, arguments)
    )
    with _one_thread_for_children(), executor:
        try:
            yield lambda piece: executor.submit(_work, piece)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()
            raise


@contextmanager
def _one_thread_for_children() -> Iterator[None]:
    """Limit the processes that start meanwhile to one thread: their libraries read it at their import."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def find_code_version() -> str:
    """The commit of the code that runs, marked where files were changed since; empty outside a checkout."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
