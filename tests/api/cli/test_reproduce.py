"""`fedsim reproduce`: the list, the three ways to make runs, and the verdicts."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from api.cli import service_runs
from api.sdk import waiting
from fedsim import FedSimClient
from jobs.grid.journal import Journal
from jobs.grid.process_pool import run_in_processes
from jobs.grid.ray_runs import run_on_ray
from jobs.grid.runner import run_table
from jobs.grid.table import Table, load_table, read_table
from jobs.settings import Settings
from jobs.store.states import JobState
from tests.api.blocking import Answering
from tests.api.service import Fedsim, RunningService, a_job, a_round
from tests.jobs.grid.small_table import SMALL


@pytest.fixture
def table(tmp_path: Path) -> Table:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("seeds: [1, 2]", "seeds: [1]"), "utf-8")
    return read_table(file)


def test_a_wrong_table_scale_or_device_is_named_before_anything_runs(fedsim: Fedsim, tmp_path: Path) -> None:
    for words, said in {
        "nothing": "'nothing' is no table",
        "clock-fmnist --scale paper": "clock-fmnist has no preset of a paper's scale",
        "demo-claim --device gpu": "write cpu or cuda",
        "demo-claim --url http://127.0.0.1:9": "--url with --on pool",
        "demo-claim --on service --device cuda --processes 3": "--processes, --device with --on service",
    }.items():
        done = fedsim("reproduce", *words.split(), "--out", str(tmp_path))
        assert done.code == 2
        assert said in done.err
    assert list(tmp_path.glob("*.jsonl")) == []


def test_a_service_makes_runs_as_one_group_that_is_found_again(
    service: RunningService, table: Table, tmp_path: Path
) -> None:
    """Two of four jobs end, then the command is stopped; the second call submits nothing new."""
    table = table.model_copy(update={"name": f"group-{tmp_path.name}"[:60]})
    with FedSimClient(service.url) as client:
        group = client.sweep(table.sweep)
        for number, job in enumerate(group.jobs):
            service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
            service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
            service.store.add_round(job.id, a_round(1, global_accuracy=number / 10))
            service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED, message="done")
        journal = Journal(tmp_path / "out", table.name)
        faults = run_table(
            table, journal, lambda *each: service_runs.run_on_service(*each, client), lambda progress: None
        )
        assert faults == []
        found = [entry.final["global_accuracy"] for entry in journal.read().values()]
        assert found == [0.0, 0.1, 0.2, 0.3]
        assert len(list(client.jobs(label=f"group={table.name}"))) == 4


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("answering", ["sync"], indirect=True)
def test_a_service_that_restarts_while_it_makes_runs_is_waited_for(
    answering: Answering, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(service_runs, "PAUSE", 0.0)
    job, away = a_job().model_dump(mode="json"), [httpx.ConnectError("nobody there")] * 9
    client, _ = answering({"jobs": []}, {**job, "state": "RUNNING"}, *away, {"jobs": [job]})
    first = table.runs()[0]
    assert [run.member for run in service_runs.run_on_service(table, [first], client)] == [first]
    # It is away while the rounds of a job are read, too; the job is deleted meanwhile.
    client, _ = answering({"jobs": []}, {**job, "state": "SUCCEEDED"}, *away, {"jobs": []})
    [ended] = service_runs.run_on_service(table, [first], client)
    assert ended.entry == "its job was deleted"


@pytest.mark.slow
def test_processes_and_ray_make_the_same_runs(table: Table, tmp_path: Path) -> None:
    settings, made = Settings(home=tmp_path / "home", ray_num_cpus=2), []
    for name, runs in {
        "pool": lambda *each: run_in_processes(*each, settings, processes=1),
        "ray": lambda *each: run_on_ray(*each, settings),
    }.items():
        journal = Journal(tmp_path / name, table.name)
        assert run_table(table, journal, runs, lambda progress: None) == []
        made.append(
            {key: (run.digest, run.final, run.bytes, run.cost) for key, run in journal.read().items()}
        )
    assert made[0] == made[1]
    assert len(made[0]) == 4


@pytest.mark.slow
def test_the_demo_gets_three_verdicts(fedsim: Fedsim, tmp_path: Path) -> None:
    done = fedsim("reproduce", "demo-claim", "--out", str(tmp_path))
    assert done.code == 0
    rows = [line for line in done.out.splitlines() if "FedAvg" in line]
    assert [re.search("held|reversed|undecided", row)[0] for row in rows] == [  # type: ignore[index]
        "held",
        "reversed",
        "undecided",
    ]
    assert "12 of 12 runs" in done.err
    assert "seed by seed (1, 2, 3): mean and 95 % interval, in percentage points" in done.err
    assert "adjusted for 3 comparisons" in done.err
    assert f"fedsim reproduce demo-claim --report --out {tmp_path}" in done.err
    again = fedsim("reproduce", "demo-claim", "--out", str(tmp_path), "--format", "json")
    assert [verdict["verdict"] for verdict in again.data] == ["held", "reversed", "undecided"]
    (listed,) = (
        each
        for each in fedsim("reproduce", "list", "--out", str(tmp_path), "--format", "json").data
        if each["table"] == "demo-claim"
    )
    assert (listed["runs"], listed["finished"]) == (12, 12)
    assert "took" not in again.err, "nothing is run again"
    fedsim("reproduce", "--report", "--out", str(tmp_path))
    assert "## Card" in (tmp_path / "demo.md").read_text("utf-8")


def test_more_seeds_follow_the_last_one() -> None:
    table = load_table("kdia-fmnist")
    assert table.with_seeds(2).seeds == (2506, 2507)
    assert table.with_seeds(5).seeds == (2506, 2507, 2508, 2509, 2510)


def test_the_scale_is_a_preset() -> None:
    table = load_table("kdia-cifar10")
    assert table.at_scale("small") == table
    assert table.at_scale("paper").preset == "kdia-cifar10"
    assert table.at_scale("kdia-cinic10-small").preset == "kdia-cinic10-small"
