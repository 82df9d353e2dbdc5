"""The planner: what it foretells is what a run then records, and what does not fit is said."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedsim.errors import DataError, OutOfMemory
from jobs.local_ray.keeper_files import Addresses, write_addresses
from jobs.plan import planner
from jobs.plan.plan import Plan
from jobs.plan.planner import add_note_on_short_run, draft_plan, plan
from jobs.run.execute import execute
from jobs.settings import Settings
from jobs.spec.resolve import resolve_spec
from tests.jobs.stored import spec


@pytest.mark.slow
def test_a_plan_foretells_the_records(ray_cluster: None, settings: Settings) -> None:
    small = spec(rounds=3, resources__workers=2, evaluation__every=2, data__tests="matched")
    phases: list[str] = []
    # Enough for whole rounds on a machine that has other work as well.
    found = plan(small, settings, seconds=60, on_status=phases.append)
    assert found.fits
    assert found.device == "cpu"
    assert (found.workers, found.clients.per_round, found.clients.per_worker) == (2, 10, 5)
    assert (found.rounds, found.evaluations, found.personal_evaluations) == (3, 2, 2)
    assert found.memory is not None
    assert 50e6 < found.memory.worker < 5e9
    assert found.memory.shared > 100_000
    [node] = found.nodes
    assert (node.fit, node.workers) == (8, 2)
    assert "measuring whole rounds" in phases
    assert found.seconds is not None
    each = found.seconds.round
    assert each.total == pytest.approx(each.train + each.server + each.evaluate + each.personal, abs=1e-5)
    assert each.personal == pytest.approx(found.seconds.personal * 2 / 3, abs=1e-5)
    assert found.seconds.personal > 0
    assert found.seconds.total == pytest.approx(found.seconds.startup + 3 * each.total, abs=1e-2)
    assert each.evaluate == pytest.approx(found.seconds.evaluation * 2 / 3, abs=1e-5)
    assert found.bytes is not None
    records = execute(small, settings).records
    without = [replace(record.bytes, personal=0) for record in records]
    assert without == [found.bytes.round] * 3
    assert found.bytes.total.personal == sum(record.bytes.personal for record in records) > 0
    assert found.bytes.total.down == sum(record.bytes.down for record in records)
    assert found.bytes.total.up == sum(record.bytes.up for record in records)
    assert Plan.model_validate_json(found.model_dump_json()) == found


def test_a_plan_of_a_short_run_says_that_it_needs_no_ray(settings: Settings) -> None:
    small = spec(rounds=3)
    drafted = draft_plan(small, resolve_spec(small, settings)).model_copy(update={"faster": ["more workers"]})
    noted = add_note_on_short_run(drafted, small, settings, 1.0)
    assert noted.faster == []
    assert "one process without Ray" in noted.notes[0]
    assert add_note_on_short_run(drafted, small, replace(settings, ray_address="auto"), 1.0) == drafted
    # The planner of a service connects to the local Ray of its home.
    settings.home.mkdir(exist_ok=True)
    write_addresses(settings.home, Addresses(os.getpid(), "", "", gcs="127.0.0.1:9"))
    ours, other = (replace(settings, ray_address=f"127.0.0.1:{port}") for port in (9, 8))
    assert add_note_on_short_run(drafted, small, ours, 1.0) != drafted
    assert add_note_on_short_run(drafted, small, other, 1.0) == drafted
    large = spec(rounds=3, resources__workers=2)
    assert add_note_on_short_run(drafted, large, settings, 1.0) == drafted


@pytest.mark.slow
def test_a_round_longer_than_the_measuring_is_put_together(ray_cluster: None, settings: Settings) -> None:
    long = spec(rounds=2, resources__workers=2, local__epochs=10_000)
    found = plan(long, settings, seconds=1)
    assert found.measured is not None
    assert found.measured.whole_rounds == 0
    assert found.measured.seconds < 60
    assert found.seconds is not None
    assert found.seconds.round.train > 1
    assert any("longer than the measuring" in note for note in found.notes)
    assert found.bytes is not None
    assert (found.bytes.round.down, found.bytes.round.up) == (192_400, 192_400)


def test_what_does_not_fit_is_an_answer_with_the_arithmetic(settings: Settings) -> None:
    found = plan(spec(resources__workers=2000), replace(settings, ray_num_cpus=4))
    assert not found.fits
    assert found.message.startswith("2000 workers x 1 CPU asked, ")
    assert "resources.workers" in found.hint
    assert found.nodes[0].fit in (4, 8)
    assert found.seconds is None


def test_a_worker_without_enough_memory_is_a_spec_that_does_not_fit(
    ray_cluster: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out_of_memory(*_: object) -> None:
        raise OutOfMemory("client 3 ran out of memory in train: CUDA out of memory.", "use less")

    monkeypatch.setattr("jobs.plan.planner.measure", run_out_of_memory)
    found = plan(spec(), settings)
    assert (found.fits, found.hint, found.seconds) == (False, "use less", None)
    assert found.message.startswith("client 3 ran out of memory")


def test_a_planner_process_takes_no_more_memory_than_a_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setenv("FEDSIM_CHECK_MEMORY", "3")
    monkeypatch.setattr(planner, "resolve_spec", fill_memory)
    limits = list[int]()
    monkeypatch.setattr(planner, "limit_memory", limits.append)
    monkeypatch.setattr(planner, "answer_standard_input", lambda work: work({"algorithm": "fedavg"}))
    with pytest.raises(DataError, match="more than the 3 GB of memory that a check may use"):
        planner.main()
    assert limits == [3 * 10**9]


def test_a_planner_process_answers_errors_as_data(tmp_path: Path) -> None:
    wrong = io.StringIO(json.dumps({"algorithm": "fedavg", "rounds": 0})).getvalue()
    done = subprocess.run(
        [sys.executable, "-m", "jobs.plan.planner"], input=wrong, capture_output=True, text=True, check=False
    )
    answer = json.loads(done.stdout)["error"]
    assert (done.returncode, answer["code"]) == (0, "BAD_SPEC")
    assert answer["errors"][0]["path"] == "rounds"
