"""Runs in one process: the digests of the reference pool, checkpoints and the end from another thread."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.errors import CoordinatorLost
from jobs.run import execute as execute_module
from jobs.run.execute import execute
from jobs.run.listener import RunListener
from jobs.run.run_steps import Attempt
from jobs.run.without_ray.in_process_attempt import InProcessAttempt
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.resolve import resolve_spec
from jobs.store.records import RoundRecord

SPEC: dict[str, Any] = {
    "algorithm": "scaffold",
    "rounds": 5,
    "clients": {"total": 8, "fraction": 0.5},
    "model": "logistic",
    "local": {"steps": 2},
    "checkpoint": {"every": 2},
}


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run on Ray fail: every run here has to stay in this process."""
    monkeypatch.setattr("jobs.run.ray_connection.connect_to_ray", None)


def reference_digests(spec: JobSpec, settings: Settings) -> list[str]:
    experiment = resolve_spec(spec, settings)
    population, size = experiment.load_population(), experiment.stack
    algorithm = experiment.algorithm
    pool = (
        StackedPool(algorithm, population, size)
        if isinstance(size, int)
        else SerialPool(algorithm, population)
    )
    return [result.digest for result in simulate(algorithm, population, pool)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"resources": {"workers": 1, "stack": 4}},
        {"algorithm": "fedper", "model": "mlp", "evaluation": {"validation": 0.1}},
    ],
)
def test_digests_are_those_of_the_reference_pool(change: dict[str, Any], settings: Settings) -> None:
    spec = parse_spec({**SPEC, **change})
    result = execute(spec, settings)
    assert [record.digest for record in result.records] == reference_digests(spec, settings)
    assert all(record.engine.actors == 0 for record in result.records)


class Closer(RunListener):
    """Closes the first attempt after a round, as the watcher of a cancelled job does."""

    def __init__(self, after: int) -> None:
        self.after, self.attempts = after, list[Attempt]()

    def on_attempt(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.after and len(self.attempts) == 1:
            self.attempts[0].close()


def test_a_closed_run_goes_on_from_its_checkpoint(settings: Settings, tmp_path: Path) -> None:
    spec, url = parse_spec({**SPEC, "faults": {"max_restarts": 0}}), str(tmp_path / "kept")
    with pytest.raises(CoordinatorLost):
        execute(spec, settings, checkpoints=url, listener=Closer(3))
    said = list[str]()

    class Notes(RunListener):
        def on_status(self, text: str) -> None:
            said.append(text)

    result = execute(spec, settings, checkpoints=url, resume=True, listener=Notes())
    assert "going on after round 2, from its checkpoint" in said
    assert [record.digest for record in result.records] == reference_digests(spec, settings)


def test_a_lost_run_starts_again_and_repeats_its_digests(settings: Settings) -> None:
    spec, closer = parse_spec(SPEC), Closer(3)
    result = execute(spec, settings, listener=closer)
    assert len(closer.attempts) == 2
    assert [record.digest for record in result.records] == reference_digests(spec, settings)


@pytest.mark.parametrize("where", ["cluster", "workers"])
def test_other_runs_go_to_ray(where: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    class AskedForRay(Exception):
        pass

    def connect(_: Settings) -> None:
        raise AskedForRay

    monkeypatch.setattr("jobs.run.ray_connection.connect_to_ray", connect)
    if where == "cluster":
        settings = replace(settings, ray_address="auto")
    else:
        monkeypatch.setattr(execute_module, "is_short", lambda *_: False)
    with pytest.raises(AskedForRay):
        execute(parse_spec(SPEC), settings)


@pytest.mark.slow
def test_a_short_run_imports_no_ray() -> None:
    code = (
        "import sys; from jobs.run.execute import execute; from jobs.settings import Settings; "
        "from jobs.spec import parse_spec; "
        f"execute(parse_spec({SPEC!r}), Settings.from_env()); assert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_attempt_gives_its_models_and_partition(settings: Settings) -> None:
    spec = parse_spec(SPEC)
    attempt = InProcessAttempt(resolve_spec(spec, settings), spec)
    assert [step.round for step in attempt if isinstance(step, RoundRecord)] == [1, 2, 3, 4, 5]
    assert attempt.get_global_model()
    assert len(attempt.get_partition()["offsets"]) == 9
    assert attempt.get_chosen_model() is None


def test_a_run_that_goes_on_warns_of_changed_examples(
    tmp_path: Path, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "table.csv"
    lines = ["size,kind", *(f"{number},{'ab'[number % 2]}" for number in range(80))]
    data = {"dataset": {"name": "table", "path": "table.csv", "target": "kind"}}
    home = replace(settings, data_roots=(tmp_path,))

    def run(rounds: int) -> list[str]:
        spec = parse_spec({**SPEC, "data": data, "rounds": rounds})
        done = execute(spec, home, checkpoints=str(tmp_path / "checkpoints"), resume=True)
        return [record.engine.data for record in done.records]

    table.write_text("\n".join(lines))
    (first,) = run(1)
    assert run(2) == [first, first] != ["", ""]
    assert not caplog.messages
    table.write_text("\n".join([*lines[:-1], "1000,b"]))
    (*_, changed) = run(3)
    assert caplog.messages == [
        f"the data set table has changed since round 2: it was {first}, and is now {changed}"
    ]
