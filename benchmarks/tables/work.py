"""Running a table: every run in one process, several processes at a time, at low priority."""

from __future__ import annotations

import logging
import os
import subprocess
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from statistics import fmean
from threading import Thread
from typing import Any

import torch

from benchmarks.tables.grid import Run, Table, fingerprint, load_table, tables
from benchmarks.tables.journal import Entry, Journal, numbers, rounded, scored
from fedsim.core import Local
from fedsim.errors import FedsimError
from fedsim.experiment import Experiment
from fedsim.personal import sorted_curve
from fedsim.pools import SerialPool
from fedsim.population import Population
from fedsim.simulation import RoundResult, simulate
from jobs.final_model import FinalModel
from jobs.records import RoundRecord
from jobs.resolve import resolve
from jobs.settings import Settings
from jobs.spec import JobSpec

LOG = logging.getLogger("fedsim.tables")


@dataclass(frozen=True)
class Pending:
    """A run that is still to be made: its spec has been checked."""

    run: Run
    spec: JobSpec
    key: str


class Populations:
    """The populations made last, shared by the runs whose data is the same.

    Args:
        keep: how many.
    """

    def __init__(self, keep: int = 4) -> None:
        self.keep, self.made = keep, OrderedDict[str, Population]()

    def of(self, experiment: Experiment) -> Population:
        """The experiment's population, made only if none with the same data and partition is at hand."""
        neutral: Any = {"algorithm": None, "local": Local(), "rounds": 0, "cohort_size": 0}
        key = repr(replace(experiment, **neutral, evaluate_every=1, personal="auto"))
        if key not in self.made:
            self.made[key] = experiment.population()
            while len(self.made) > self.keep:
                self.made.popitem(last=False)
        self.made.move_to_end(key)
        return replace(
            self.made[key],
            local=experiment.local,
            rounds=experiment.rounds,
            cohort_size=experiment.cohort_size,
        )


def results(experiment: Experiment, population: Population) -> Iterator[RoundResult]:
    """One result per round, of the reference pool in this process."""
    pool = SerialPool(experiment.algorithm, population)
    try:
        yield from simulate(
            experiment.algorithm,
            population,
            pool,
            evaluate_every=experiment.evaluate_every,
            personal=experiment.personal,
        )
    finally:
        pool.close()


def execute(pending: Pending, table: Table, settings: Settings, shared: Populations, code: str) -> Entry:
    """Make one run.

    Raises:
        FedsimError: if it fails.
    """
    experiment = resolve(pending.spec, settings)
    scores: dict[str, dict[int, float]] = {metric: {} for metric in table.metrics}
    down, up, seconds = 0, 0, 0.0
    cost, final_model = Counter[str](), FinalModel()
    last: RoundResult | None = None
    for last in results(experiment, shared.of(experiment)):
        down, up = down + last.traffic.down, up + last.traffic.up
        seconds += last.seconds["total"]
        record = last.record()
        cost.update(record["cost"])
        final_model.add(RoundRecord.model_validate(record))
        for metric in scores.keys() & last.metrics.keys():
            scores[metric][last.round] = round(last.metrics[metric], 6)
    if last is None or not scores[table.metric]:
        raise FedsimError(
            f"{pending.run} was never scored by {table.metric!r}", "name a metric of its records"
        )
    found = {metric: scored(points, table.curve_every) for metric, points in scores.items() if points}
    main, chosen = found.pop(table.metric), final_model.document().get("best_by_validation", {})
    return Entry(
        key=pending.key,
        labels=pending.run.labels,
        seed=pending.run.seed,
        rounds=last.round,
        final=rounded(last.metrics.items()),
        best=main.best,
        tail=main.tail,
        curve=main.curve,
        bytes={"down": down, "up": up},
        cost=dict(cost),
        seconds=round(seconds, 1),
        others=found,
        clients=() if last.personal is None else tuple(sorted_curve(last.personal)[1].round(4).tolist()),
        chosen=_on_tests(chosen),
        chosen_model=chosen.get("model", ""),
        method=numbers(last.method),
        digest=last.digest[:16],
        code=code,
    )


def _on_tests(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Round and accuracy of the model that validation chose; {} where none was chosen, or none tested."""
    if chosen.get("accuracy") is None:
        return {}
    return {"round": chosen["round"], "value": round(chosen["accuracy"], 6)}


class _Process:
    """What a worker process keeps between runs."""

    def __init__(self, table: Table, settings: Settings, code: str) -> None:
        self.table, self.settings, self.code, self.shared = table, settings, code, Populations()

    def __call__(self, pending: Pending) -> Entry | str:
        try:
            return execute(pending, self.table, self.settings, self.shared, self.code)
        except Exception as error:  # one broken run must not end the table
            return f"{type(error).__name__}: {error}"


_HERE: dict[str, _Process] = {}  # one entry, in worker processes only: an initialiser returns nothing


def settle(niceness: int) -> None:
    """Make this a worker process: of low priority, on one thread, and gone when its parent is."""
    os.nice(niceness)
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _begin(niceness: int, table: Table, settings: Settings, code: str) -> None:
    settle(niceness)
    _HERE["process"] = _Process(table, settings, code)


def _end_with_parent() -> None:
    """A killed table takes its processes along; else they would go on with what nobody writes down."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(pending: Pending) -> Entry | str:
    return _HERE["process"](pending)


def run_table(
    table: Table, journal: Journal, settings: Settings, *, processes: int = 2, niceness: int = 19
) -> list[str]:
    """Make every run that the journal does not have.

    Args:
        table: whose runs.
        journal: where finished runs are written, and looked for first.
        settings: where data is.
        processes: runs at a time, each on one thread.
        niceness: added to the processes' own; 19 leaves the machine to everybody else.

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
    initial = (niceness, table, settings, code_version())
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
        key = fingerprint(spec)
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
