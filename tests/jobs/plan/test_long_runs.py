"""The warning about runs of hours: its FLOPs against those of a real run."""

from typing import Any

import pytest

from jobs.plan import long_runs
from jobs.plan.long_runs import describe_long_run
from jobs.run.listener import RunListener
from jobs.run.without_ray.in_process import run_in_process
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.dataset_facts import look_up_facts
from jobs.spec.run_size import count_flops
from jobs.store.records import RunTotals

SHORT: dict[str, Any] = {
    "algorithm": "fedavg",
    "rounds": 2,
    "data": {"dataset": "digits", "partition": "iid"},
    "clients": {"total": 20, "fraction": 0.1},
    "model": "mlp",
    "local": {"epochs": 3, "batch_size": 8},
}
LONG = {**SHORT, "rounds": 100_000, "local": {"epochs": 10_000, "batch_size": 8}}


def count_trained(spec: JobSpec, settings: Settings) -> float:
    facts = look_up_facts(spec, settings)
    assert facts is not None
    assert facts.file_facts is not None
    return count_flops(spec, facts._replace(file_facts=facts.file_facts._replace(tests=0)), settings)


@pytest.mark.parametrize("change", [{}, {"local": {"steps": 5, "batch_size": 8}}])
def test_the_count_is_that_of_a_run(change: dict[str, Any], settings: Settings) -> None:
    spec = parse_spec({**SHORT, **change})
    found = RunTotals.of(run_in_process(spec, settings, RunListener()).records).cost
    # Clients of 1,437 / 20 examples differ by one.
    assert count_trained(spec, settings) == pytest.approx(found.flops, rel=0.01)


def test_long_runs_on_cpus_get_a_warning(settings: Settings) -> None:
    assert describe_long_run(parse_spec(SHORT), settings, 2) is None
    warning = describe_long_run(parse_spec(LONG), settings, 2)
    assert warning is not None
    assert "on 2 CPUs" in warning
    assert "fedsim plan" in warning
    gpus = {**LONG, "resources": {"gpus_per_worker": 0.5}}
    assert describe_long_run(parse_spec(gpus), settings, 2) is None


def test_scores_of_many_personal_models_are_counted(settings: Settings) -> None:
    """360 tests for each of a million clients; FedAvg has no personal evaluation here."""
    data = {"dataset": "digits", "partition": {"kind": "sampled", "size": 5}}
    many = {**SHORT, "model": {"name": "mlp", "hidden": 4096}, "data": data}
    many |= {"clients": {"total": 1_000_000, "fraction": 0.00001}, "local": {"epochs": 1, "batch_size": 8}}
    assert describe_long_run(parse_spec(many), settings, 2) is None
    warning = describe_long_run(parse_spec({**many, "algorithm": "fedper"}), settings, 2)
    assert "evaluation.personal_clients: most of it scores the personal models of 1,000,000" in str(warning)
    some = {**many, "algorithm": "fedper", "evaluation": {"personal_clients": 1000}}
    assert describe_long_run(parse_spec(some), settings, 2) is None


def test_training_on_the_server_is_said_to_be_missing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_an_hour = 2 * 1800 * long_runs.FLOPS_PER_CORE
    monkeypatch.setattr(long_runs, "count_flops", lambda *_: half_an_hour)
    warning = describe_long_run(parse_spec({**SHORT, "algorithm": "kdia"}), settings, 2)
    assert "roughly 30 minutes on 2 CPUs" in str(warning)
    assert "without the training of kdia on the server" in str(warning)
    assert describe_long_run(parse_spec(SHORT), settings, 2) is None
