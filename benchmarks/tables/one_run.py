"""One run of a table: its rounds in this process, and what is kept of them."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.tables.grid import GridRun, Table
from benchmarks.tables.journal import Entry, Spent, numbers, rounded, scored, thinned
from fedsim.clients.population import Population
from fedsim.core import RunSettings
from fedsim.core.personal_scores import sorted_curve
from fedsim.engine.experiment import Experiment
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import FedsimError
from jobs.run.run_result import FinalModel
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.resolve import resolve_spec
from jobs.store.records import RoundRecord


@dataclass(frozen=True)
class Pending:
    """A run that is still to be made: its spec has been checked."""

    run: GridRun
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
        data_seed = RunSettings(seed=experiment.settings.seed, rounds=0, cohort_size=0)
        neutral: Any = {"algorithm": None, "settings": data_seed, "evaluate_every": 1, "personal": "auto"}
        key = repr(replace(experiment, **neutral))
        if key not in self.made:
            self.made[key] = experiment.load_population()
            while len(self.made) > self.keep:
                self.made.popitem(last=False)
        self.made.move_to_end(key)
        return replace(self.made[key], settings=experiment.settings)


def results(experiment: Experiment, population: Population, device: str = "cpu") -> Iterator[RoundResult]:
    """One result per round, of the reference pool in this process, where the server trains as well."""
    pool = SerialPool(experiment.algorithm, population, device)
    try:
        yield from simulate(
            experiment.algorithm,
            population,
            pool,
            evaluate_every=experiment.evaluate_every,
            personal=experiment.personal,
            device=device,
        )
    finally:
        pool.close()


def execute(
    pending: Pending, table: Table, settings: Settings, shared: Populations, code: str, device: str = "cpu"
) -> Entry:
    """Make one run.

    Args:
        pending: which.
        table: that it is of.
        settings: where data is.
        shared: the populations made before.
        code: its version, for the journal.
        device: "cpu" or "cuda".

    Raises:
        FedsimError: if it fails.
    """
    experiment = resolve_spec(pending.spec, settings)
    scores: dict[str, dict[int, float]] = {metric: {} for metric in table.metrics}
    down, up, seconds = 0, 0, 0.0
    cost, final_model = Counter[str](), FinalModel()
    last: RoundResult | None = None
    population, spent, start = shared.of(experiment), dict[int, Spent](), time.process_time()
    for last in results(experiment, population, device):
        down, up = down + last.traffic.down, up + last.traffic.up
        seconds += last.seconds["total"]
        record = last.record()
        cost.update(record["cost"])
        final_model.add(RoundRecord.model_validate(record))
        for metric in scores.keys() & last.metrics.keys():
            scores[metric][last.round] = round(last.metrics[metric], 6)
            spent[last.round] = Spent(
                bytes=down + up, processor_seconds=round(time.process_time() - start, 1)
            )
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
        spent=thinned(spent, table.curve_every),
        others=found,
        clients=() if last.personal is None else tuple(sorted_curve(last.personal)[1].round(4).tolist()),
        chosen=_on_tests(chosen),
        chosen_model=chosen.get("model", ""),
        method=numbers(last.method),
        digest=last.digest[:16],
        code=code,
        device=named(device),
    )


def _on_tests(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Round and accuracy of the model that validation chose; {} where none was chosen, or none tested."""
    if chosen.get("accuracy") is None:
        return {}
    return {"round": chosen["round"], "value": round(chosen["accuracy"], 6)}


def named(device: str) -> str:
    """What a journal calls a device: "cpu", or the GPU's name."""
    return torch.cuda.get_device_name(0) if device == "cuda" else device
