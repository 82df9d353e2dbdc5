"""The runs of a table in processes of this machine: one run per process and thread, several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from jobs.grid.journal import Entry
from jobs.grid.one_run import Populations, execute
from jobs.grid.runner import Outcome
from jobs.grid.table import Table
from jobs.settings import Settings
from jobs.spec.sweep import Member


class _Process:
    """What a worker process keeps between runs."""

    def __init__(self, table: Table, settings: Settings, code: str, device: str) -> None:
        self.table, self.settings, self.shared = table, settings, Populations()
        self.code, self.device = code, device

    def __call__(self, member: Member) -> Entry | str:
        try:
            return execute(member, self.table, self.settings, self.shared, self.code, self.device)
        except Exception as error:  # one broken run must not end the table
            return f"{type(error).__name__}: {error}"


_HERE: dict[str, _Process] = {}  # one entry, in worker processes only: an initialiser returns nothing


def settle() -> None:
    """Make this a worker process: on one thread, and gone when its parent is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _begin(table: Table, settings: Settings, code: str, device: str) -> None:
    settle()
    _HERE["process"] = _Process(table, settings, code, device)


def _end_with_parent() -> None:
    """A killed table takes its processes along; else they would go on with what nobody writes down."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(member: Member) -> Entry | str:
    return _HERE["process"](member)


def run_in_processes(
    table: Table, missing: Sequence[Member], settings: Settings, *, processes: int = 2, device: str = "cpu"
) -> Iterator[Outcome]:
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
    with open_processes(processes, _begin, (table, settings, find_code_version(), device)) as executor:
        futures = {executor.submit(_work, member): member for member in missing}
        for future in as_completed(futures):
            yield Outcome(futures[future], future.result())


@contextmanager
def open_processes(
    processes: int, begin: Callable[..., None], arguments: tuple[Any, ...]
) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes, each on one thread; an error, Ctrl-C included, ends them at once.

    Args:
        processes: their number.
        begin: called first in each of them; it calls `settle`.
        arguments: of `begin`.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    executor = ProcessPoolExecutor(processes, get_context("spawn"), initializer=begin, initargs=arguments)
    with executor:
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise


def find_code_version() -> str:
    """The commit of the code that runs, marked where files were changed since; empty outside a checkout."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
