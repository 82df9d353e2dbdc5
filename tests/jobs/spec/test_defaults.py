"""A spec that leaves fields out and a library call that leaves arguments out run the same experiment."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from fedsim.core import LocalTraining, RunSettings
from fedsim.engine.experiment import Experiment
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import resolve_spec


def test_service_and_library_have_the_same_defaults(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    spec = parse_spec({"algorithm": "fedavg"})
    found = resolve_spec(spec, settings)
    library = Experiment(
        algorithm=found.algorithm,
        settings=RunSettings(rounds=spec.rounds, cohort_size=spec.clients.cohort_size),
        num_clients=found.num_clients,
        dataset=found.dataset,
        partition=found.partition,
        models=found.models,
        roots=settings.data_roots,
        cache=found.cache,
        code=found.code,
    )
    for field in fields(Experiment):
        assert getattr(found, field.name) == getattr(library, field.name), field.name


def test_a_falling_rate_has_the_same_default_power() -> None:
    decay = parse_spec({"algorithm": "fedavg", "local": {"lr_decay": {"alpha": 0.1}}}).local.lr_decay
    assert decay is not None
    assert decay.power == LocalTraining().lr_power
