"""One run of a table in this process, and its entry in the journal."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fedsim.base.memory_usage import name_processor
from fedsim.core.personal_scores import PersonalScores, sorted_curve
from fedsim.errors import FedsimError
from jobs.grid.journal import Entry, Spending, round_metrics, select_numbers, summarise_metric, thin_curve
from jobs.grid.table import Table
from jobs.run.run_result import FinalModel
from jobs.run.without_ray.populations import Populations
from jobs.settings import Settings
from jobs.spec.resolve import resolve_spec
from jobs.spec.sweep import Member
from jobs.store.records import RoundRecord, RunTotals


def make_run(
    member: Member, table: Table, settings: Settings, shared: Populations, code: str, device: str = "cpu"
) -> Entry:
    """Make one run.

    Args:
        member: the run.
        table: the table of the run.
        settings: the data roots.
        shared: the populations of earlier runs.
        code: the version of the code, for the journal.
        device: "cpu" or "cuda".

    Raises:
        FedsimError: if it fails.
    """
    experiment = resolve_spec(member.spec, settings)
    records, personal, population = list[RoundRecord](), None, shared.of(experiment)
    worked, start = dict[int, float](), time.process_time()
    for result in experiment.simulate(population, device):
        records.append(RoundRecord.model_validate(result.record()))
        worked[result.round] = time.process_time() - start
        personal = result.personal
    return make_entry(member, table, records, personal, worked, code=code, device=name_device(device))


def make_entry(
    member: Member,
    table: Table,
    records: Sequence[RoundRecord],
    personal: PersonalScores | None = None,
    worked: Mapping[int, float] = MappingProxyType({}),
    *,
    code: str = "",
    device: str = "not recorded",
) -> Entry:
    """Make the entry of a run in a journal.

    Args:
        member: the run.
        table: the table of the run.
        records: one for each round.
        personal: the scores of the clients' own models after the last round; None if unknown.
        worked: processor seconds from the start to the end of each round, if known (one process).
        code: the version of the code.
        device: the name of the processor or GPU, if known.

    Raises:
        FedsimError: if no round was scored by the table's metric.
    """
    final_model, scores = FinalModel(), {metric: dict[int, float]() for metric in table.metrics}
    for record in records:
        final_model.add(record)
        for metric in scores.keys() & record.metrics.keys():
            scores[metric][record.round] = round(_number(record.metrics[metric]), 6)
    if not scores[table.metric]:
        raise FedsimError(
            f"{member.run} was never scored by {table.metric!r}", "name a metric of its records"
        )
    found = {
        metric: summarise_metric(metric, points, table.curve_every)
        for metric, points in scores.items()
        if points
    }
    main, chosen = found.pop(table.metric), final_model.document().get("best_by_validation", {})
    last, total = records[-1], RunTotals.of(records)
    return Entry(
        key=member.spec_hash,
        labels=member.run.labels,
        seed=member.run.seed,
        rounds=last.round,
        final=round_metrics((name, _number(value)) for name, value in last.result_metrics.items()),
        best=main.best,
        tail=main.tail,
        curve=main.curve,
        bytes={"down": total.down, "up": total.up},
        cost=asdict(total.cost),
        seconds=round(total.seconds, 1),
        spent=thin_curve(_sum_spent(records, worked, set().union(*scores.values())), table.curve_every),
        others=found,
        clients=() if personal is None else tuple(sorted_curve(personal)[1].round(4).tolist()),
        chosen=_on_tests(chosen),
        chosen_model=chosen.get("model", ""),
        method=select_numbers(last.method),
        digest=last.digest[:16],
        code=code,
        device=device,
    )


def _sum_spent(
    records: Sequence[RoundRecord], worked: Mapping[int, float], rounds: set[int]
) -> dict[int, Spending]:
    """Sum bytes, seconds and joules from the start to the end of each of these rounds."""
    totals = accumulate(record.bytes.down + record.bytes.up for record in records)
    energies = accumulate(0.0 if record.clock is None else record.clock.joules for record in records)
    return {
        record.round: Spending(
            bytes=total,
            processor_seconds=round(worked[record.round], 1) if record.round in worked else None,
            simulated_seconds=None if record.clock is None else round(record.clock.total, 3),
            joules=None if record.clock is None else round(energy, 3),
        )
        for record, total, energy in zip(records, totals, energies, strict=True)
        if record.round in rounds
    }


def _number(value: Any) -> float:
    """Return a metric of a record; NaN for null, which stands for a number that is not finite."""
    return math.nan if value is None else float(value)


def _on_tests(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return round and test accuracy of the model that validation chose; {} if none was chosen or tested."""
    if chosen.get("accuracy") is None:
        return {}
    return {"round": chosen["round"], "value": round(chosen["accuracy"], 6)}


def name_device(device: str) -> str:
    """Name the GPU or the processor: it decides the last digits and the seconds."""
    if device == "cuda":
        return torch.cuda.get_device_name(0)
    return name_processor() or device


def find_code_version() -> str:
    """The commit of the code that runs, marked where its files were changed since; empty outside a checkout.

    Other changed files do not count: a table that runs writes its journal into the same checkout.
    """
    root = Path(__file__).parents[2]

    def ask_git(*words: str) -> str:
        asked = ["git", "-C", str(root), *words]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = ask_git("status", "--porcelain", "--untracked-files=no", "fedsim", "actors", "jobs")
        return ask_git("describe", "--always") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
