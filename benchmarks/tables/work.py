"""Running a table: every run in one process, several processes at a time, at low priority."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from pathlib import Path
from statistics import fmean
from threading import Thread

import torch

from benchmarks.tables.grid import Table, hash_spec, load_table, tables
from benchmarks.tables.journal import Entry, Journal
from benchmarks.tables.one_run import Pending, Populations, execute
from fedsim.errors import FedsimError
from jobs.settings import Settings

LOG = logging.getLogger("fedsim.tables")


class _Process:
    """What a worker process keeps between runs."""

    def __init__(self, table: Table, settings: Settings, code: str, device: str) -> None:
        self.table, self.settings, self.shared = table, settings, Populations()
        self.code, self.device = code, device

    def __call__(self, pending: Pending) -> Entry | str:
        try:
            return execute(pending, self.table, self.settings, self.shared, self.code, self.device)
        except Exception as error:  # one broken run must not end the table
            return f"{type(error).__name__}: {error}"


_HERE: dict[str, _Process] = {}  # one entry, in worker processes only: an initialiser returns nothing


def settle(niceness: int) -> None:
    """Make this a worker process: of low priority, on one thread, and gone when its parent is."""
    os.nice(niceness)
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _begin(niceness: int, table: Table, settings: Settings, code: str, device: str) -> None:
    settle(niceness)
    _HERE["process"] = _Process(table, settings, code, device)


def _end_with_parent() -> None:
    """A killed table takes its processes along; else they would go on with what nobody writes down."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(pending: Pending) -> Entry | str:
    return _HERE["process"](pending)


def run_table(
    table: Table,
    journal: Journal,
    settings: Settings,
    *,
    processes: int = 2,
    niceness: int = 19,
    device: str = "cpu",
) -> list[str]:
    """Make every run that the journal does not have.

    Args:
        table: whose runs.
        journal: where finished runs are written, and looked for first.
        settings: where data is.
        processes: runs at a time, each on one thread.
        niceness: added to the processes' own; 19 leaves the machine to everybody else.
        device: where runs train, "cpu" or "cuda", whose first GPU all processes share.

    Returns:
        What did not work, one sentence for each run.
    """
    waiting, faults = missing(table, journal)
    for fault in faults:
        LOG.warning("left out: %s", fault)
    if taken := take(table, journal, waiting):
        LOG.info("%s: %d runs that other tables have made", table.name, taken)
        waiting, _ = missing(table, journal)
    total = sum(1 for _ in table.runs())
    LOG.info("%s: %d runs, %d to be made, %d at a time", table.name, total, len(waiting), processes)
    if not waiting:
        return faults
    os.environ["OMP_NUM_THREADS"] = "1"
    initial = (niceness, table, settings, code_version(), device)
    executor = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_begin, initargs=initial)
    with executor:
        futures = {executor.submit(_work, pending): pending for pending in waiting}
        try:
            faults += list(_gather(futures, journal, processes))
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise
    return faults


def missing(table: Table, journal: Journal) -> tuple[list[Pending], list[str]]:
    """The runs that are still to be made, and what is wrong with those that cannot be."""
    finished, waiting, faults = journal.read(), list[Pending](), list[str]()
    for run in table.runs():
        try:
            spec = table.spec(run)
        except FedsimError as error:
            faults.append(f"{run}: {error}")
            continue
        key = hash_spec(spec)
        if key not in finished:
            waiting.append(Pending(run, spec, key))
    return waiting, faults


def take(table: Table, journal: Journal, waiting: Sequence[Pending]) -> int:
    """Write down those runs that stand in the journals beside this one already, of other tables.

    Only from tables that follow the same metric, all others that this one shows, and at least as many points
    of the curves: their lines say all that a run of this table would.

    Returns:
        How many.
    """
    wanted, count = {pending.key: pending.run for pending in waiting}, 0
    for name in tables():
        other = load_table(name)
        same = other.metric == table.metric and set(other.metrics) >= set(table.metrics)
        if not wanted or name == table.name or not same or table.curve_every % other.curve_every:
            continue
        entries = Journal(journal.file.parent, name).read()
        for key in [key for key in wanted if key in entries]:
            journal.append(entries[key].taken(wanted.pop(key).labels, table.curve_every))
            count += 1
    return count


def _gather(futures: dict[Future[Entry | str], Pending], journal: Journal, processes: int) -> Iterator[str]:
    """Write down each run as it ends, and say how far it all is; yields what failed."""
    seconds, left = [entry.seconds for entry in journal.read().values()], set(futures)
    while left:
        done, left = wait(left, return_when=FIRST_COMPLETED)
        for future in done:
            outcome, run = future.result(), futures[future].run
            if isinstance(outcome, str):
                LOG.error("failed: %s: %s", run, outcome)
                yield f"{run}: {outcome}"
                continue
            journal.append(outcome)
            seconds.append(outcome.seconds)
            hours = fmean(seconds[-20:]) * len(left) / processes / 3600
            LOG.info(
                "%s: %s after %.0f s; %d to go, about %.1f h",
                run, list(outcome.curve.values())[-1], outcome.seconds, len(left), hours,
            )  # fmt: skip


def code_version() -> str:
    """The commit of the code that runs, marked where files were changed since; empty outside a checkout."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
