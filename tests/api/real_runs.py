"""Real rounds for the page: methods on a few digits, their records as a service has them."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import resolve_spec
from jobs.store.records import Job, RoundRecord
from tests.api.service import RunningService
from tests.fedsim.methods import QUICK

SMALL: dict[str, Any] = {
    "clients": {"total": 8, "fraction": 0.5},
    "data": {"dataset": "digits", "limit": 400},
    "model": {"name": "mlp", "layers": 3, "hidden": 16},
    "local": {"steps": 4, "batch_size": 16, "lr": 0.1},
}

SPECS: dict[str, dict[str, Any]] = {
    "kdia": {"algorithm": {"name": "kdia", **QUICK["kdia"]}, "rounds": 4},
    "layer_schedule": {
        "algorithm": {"name": "layer_schedule", "times": [0, 1, 3], "tuning_epochs": 0},
        "rounds": 5,
    },
    # Of eight clients with four in a round some are soon done, and every phase ends within three rounds.
    "fedcl": {
        "algorithm": {"name": "fedcl", **QUICK["fedcl"], "levels": [0.3, 0.6], "v": 0.4, "cap": 3},
        "rounds": 8,
    },
    # A stage of the temperature lasts three rounds.
    "ace_pfl": {
        "algorithm": {"name": "ace_pfl", "clusters": 3, "r0": 3},
        "rounds": 7,
        "clients": {"total": 8, "fraction": 1.0},
        "data": {**SMALL["data"], "public": {"fraction": 0.1}, "tests": "labels"},
    },
    "curriculum": {
        "algorithm": "fedavg",
        "curriculum": {"data": {"budget": "global"}, "clients": {"b": 0.3}},
        "rounds": 6,
    },
}
"""What differs from SMALL; the rounds of all of them together take seconds."""


class RealJob(NamedTuple):
    """A job of a service, and the records of its rounds."""

    job: Job
    records: list[RoundRecord]

    def said(self, name: str) -> list[Any]:
        """What the method said by this name, round by round."""
        return [record.method[name] for record in self.records]

    def scored(self, metric: str) -> list[Any]:
        """A metric, round by round."""
        return [record.metrics[metric] for record in self.records]


def records_of(spec: dict[str, Any], settings: Settings) -> list[RoundRecord]:
    """The rounds of a spec, as one process computes them."""
    experiment = resolve_spec(parse_spec(spec), settings)
    population = experiment.load_population()
    pool = SerialPool(experiment.algorithm, population)
    results = simulate(experiment.algorithm, population, pool, personal=experiment.personal)
    return [RoundRecord.model_validate(result.record()) for result in results]


def real_job(service: RunningService, name: str) -> RealJob:
    """Give a service a job of one of the specs, with all of its rounds."""
    spec = {**SMALL, **SPECS[name]}
    job = service.running(name=name, **spec)
    records = records_of(spec, service.settings)
    for record in records:
        service.store.add_round(job.id, record)
    return RealJob(job, records)
