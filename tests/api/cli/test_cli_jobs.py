"""The commands about jobs, and the demo, against a real server whose cluster is played by the tests."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from api.cli import job_progress
from api.cli.commands import completion
from api.cli.commands import demo as demo_command
from jobs.spec import parse_spec, presets
from jobs.store.states import FailureReason, JobState
from tests.api.service import Fedsim, RunningService, play_cluster


def test_submit_prints_the_id_only(online: Fedsim, service: RunningService) -> None:
    outcome = online("submit", "demo", "--set", "rounds=3", "--priority", 5, "--label", "owner=ada")
    assert outcome.code == 0, outcome.err
    job = service.store.get(outcome.out.strip())
    assert (job.rounds_total, job.priority, job.labels) == (3, 5, {"owner": "ada"})
    assert online("submit", "demo", "--label", "owner").code == 2
    assert online("submit", "demo", "--format", "json").data["state"] == "QUEUED"
    once = ("submit", "demo", "--idempotency-key", "from-the-command-line")
    assert online(*once).out == online(*once).out
    too_large = online("submit", "demo", "--set", "resources.workers=5000")
    assert (too_large.code, too_large.out) == (3, "")
    assert "5000 workers" in too_large.err


@pytest.mark.parametrize(("final", "code"), [(JobState.SUCCEEDED, 0), (JobState.FAILED, 1)])
def test_submit_can_wait_for_the_end(
    online: Fedsim, service: RunningService, final: JobState, code: int
) -> None:
    cluster = play_cluster(service, f"wait-{final}", final)
    outcome = online("submit", "demo", "--set", f"name=wait-{final}", "--set", "rounds=3", "--wait")
    cluster.join()
    assert outcome.code == code, outcome.err
    assert "round 3/3" in outcome.err
    assert "that is how it ended" in outcome.err
    assert service.store.get(outcome.out.strip()).state is final


def test_list_and_show(online: Fedsim, service: RunningService) -> None:
    job = service.ended(name="to be [bold]listed[/] für Müller", rounds=2)
    outcome = online("list", "--state", "succeeded")
    assert job.id in outcome.out
    assert "[bold]listed[/]" in outcome.out
    assert "algorithm" in outcome.out.splitlines()[1]
    assert "fedavg" in outcome.out
    found = online("list", "--limit", 1, "--format", "json").data
    assert [(each["id"], each["algorithm"]) for each in found] == [(job.id, "fedavg")]
    shown = online("show", job.id)
    assert "SUCCEEDED" in shown.out
    assert "algorithm:" in shown.out
    assert "name: to be [bold]listed[/] für Müller" in shown.out
    assert online("show", job.id, "--format", "json").data["rounds_done"] == 2
    missing = online("show", "0000")
    assert (missing.code, missing.out) == (4, "")
    assert online("show", job.id[:9], "--format", "json").data["id"] == job.id
    mistyped = online("show", f"{job.id[:-2]}zz")
    assert mistyped.code == 4
    assert f"did you mean '{job.id}'" in mistyped.err


def test_list_filters_and_says_when_there_is_more(online: Fedsim, service: RunningService) -> None:
    for number in range(3):
        service.store.create(
            parse_spec({"algorithm": "fedprox", "name": f"filtered {number}"}),
            priority=number,
            labels={"batch": "filters", "number": str(number)},
        )
    label = ("--label", "batch=filters", "--format", "json")
    for options, names in {
        (): [2, 1, 0],
        ("--order-by", "priority"): [0, 1, 2],
        ("--label", "number=1"): [1],
        ("--algorithm", "fedprox", "--search", "FILTERED 2"): [2],
        ("--state", "queued", "--state", "RUNNING"): [2, 1, 0],
        ("--state", "failed"): [],
        ("--limit", 2): [2, 1],
        ("--limit", 2, "--all"): [2, 1, 0],
    }.items():
        outcome = online("list", *label, *options)
        assert [job["name"] for job in outcome.data] == [f"filtered {n}" for n in names], options
        assert ("showing 2 jobs" in outcome.err) == (options == ("--limit", 2))
    assert "no job matches" in online("list", "--state", "failed", "--label", "batch=filters").err
    assert online("list", "--state", "sleeping").code == 2


def test_watch_in_all_formats(online: Fedsim, service: RunningService) -> None:
    job = service.ended(rounds=3)
    outcome = online("watch", job.id)
    assert outcome.code == 0, outcome.err
    assert f"job {job.id} SUCCEEDED" in outcome.err
    lines = online("watch", job.id, "--format", "jsonl").out.splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
    whole = online("watch", job.id, "--format", "json").data
    assert (whole["job"]["state"], len(whole["rounds"])) == ("SUCCEEDED", 3)
    failed = service.running()
    why = {"reason": FailureReason.BAD_DATA, "message": "no data"}
    service.store.change_state(failed.id, JobState.RUNNING, JobState.FAILED, **why)
    outcome = online("watch", failed.id)
    assert outcome.code == 1
    assert f"job {failed.id} FAILED (BAD_DATA): no data" in outcome.err


def test_watch_says_what_a_quiet_job_waits_for(
    online: Fedsim, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.cli.job_progress.QUIET_SECONDS", 0.1)
    job = service.queued()
    service.store.write_waiting_reasons({job.id: "2 jobs are ahead of it"})
    said = job_progress.ProgressLines.show_phase

    def heard(view: job_progress.ProgressLines, text: str) -> None:
        said(view, text)
        if "are ahead" in text:
            service.store.request_cancel(job.id)

    monkeypatch.setattr(job_progress.ProgressLines, "show_phase", heard)
    outcome = online("watch", job.id)
    assert outcome.code == 1
    assert "waits in the queue: 2 jobs are ahead of it" in outcome.err


def test_rounds_in_all_formats(online: Fedsim, service: RunningService) -> None:
    job = service.ended(rounds=3)
    assert "0.7500" in online("rounds", job.id).out
    rows = list(csv.DictReader(io.StringIO(online("rounds", job.id, "--format", "csv").out)))
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    assert len(online("rounds", job.id, "--format", "json").data) == 3
    assert len(online("rounds", job.id, "--format", "jsonl").out.splitlines()) == 3


def test_logs_cancel_and_delete(online: Fedsim, service: RunningService) -> None:
    job = service.running()
    service.settings.log_path(job.id).write_text("one\ntwo\n")
    assert online("logs", job.id, "--tail", 1).out == "two\n"
    assert online("logs", job.id, "--format", "json").data == {"job": job.id, "lines": ["one", "two"]}
    assert online("delete", job.id, "--yes").code == 4
    assert online("cancel", job.id, "--format", "json").data["state"] == "CANCELLING"
    service.store.change_state(job.id, JobState.CANCELLING, JobState.CANCELLED)
    assert online("logs", job.id, "-f").out == "one\ntwo\n"
    assert online("logs", job.id, "-f", "--format", "json").out == '"one"\n"two"\n'
    outcome = online("delete", job.id, "--yes")
    assert (outcome.code, outcome.out) == (0, "")
    assert online("show", job.id).code == 4


def test_several_jobs_are_cancelled_or_deleted_at_once_or_none(
    online: Fedsim, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [service.queued(name="several").id for _ in range(2)]
    assert online("cancel", *jobs, "no-such-job").code == 4
    assert service.store.get(jobs[0]).state is JobState.QUEUED
    outcome = online("cancel", *jobs, jobs[0], "--format", "json")
    assert [(job["id"], job["state"]) for job in outcome.data] == [(job, "CANCELLED") for job in jobs]
    for answer, code in (("n\n", 2), ("", 2), ("y\n", 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        outcome = online("delete", *jobs, "--format", "json")
        assert outcome.code == code, outcome.err
        assert "Delete these 2 jobs" in outcome.err
    assert outcome.data == {"deleted": jobs}
    assert online("show", jobs[0]).code == 4


def test_the_jobs_of_a_label_are_cancelled_and_deleted(
    online: Fedsim, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = parse_spec({"algorithm": "fedavg"})
    mine = sorted(service.store.create(spec, labels={"group": "x"})[0].id for _ in range(2))
    other = service.queued().id
    for verb, done in (("cancel", "Cancel these 2 jobs?"), ("delete", "Delete these 2 jobs")):
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        refused = online(verb, "--label", "group=x")
        assert (refused.code, done in refused.err, "nothing was" in refused.err) == (2, True, True)
        assert online(verb, "--label", "group=x", "--yes").code == 0
    assert [online("show", job).code for job in mine] == [4, 4]
    assert service.store.get(other).state is JobState.QUEUED
    for words in (("cancel",), ("cancel", other, "--label", "group=x"), ("delete", "--label", "group=x")):
        assert online(*words).code == 2


def test_artifacts_are_listed_and_fetched(online: Fedsim, service: RunningService, tmp_path: Path) -> None:
    job = service.ended(rounds=2).id
    assert "report.json" in online("artifacts", job).out
    listed = online("artifacts", job, "--format", "json").data
    assert [each["name"] for each in listed] == ["spec.yaml", "report.json"]
    outcome = online("artifacts", job, "report.json", "--out", tmp_path / "one", "--format", "json")
    assert outcome.data == {"job": job, "files": [str(tmp_path / "one" / "report.json")]}
    assert online("compare", job, tmp_path / "one" / "report.json").code == 0
    assert online("artifacts", job, "--out", tmp_path / "all").code == 0
    assert {file.name for file in (tmp_path / "all").iterdir()} == {"spec.yaml", "report.json"}
    wrong = online("artifacts", job, "model.pkl")
    assert wrong.code == 4
    assert "model.safetensors" in wrong.err


def test_events_in_all_formats(online: Fedsim, service: RunningService) -> None:
    job = service.ended(rounds=2)
    lines = online("events", job.id).out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        *(["1", "state"], ["2", "state"], ["3", "state"]),
        *(["4", "round"], ["5", "round"], ["6", "state"]),
    ]
    assert "SUCCEEDED" in lines[-1]
    assert "accuracy 0.6667" in lines[-2]
    found = online("events", job.id, "--after", 4, "--format", "json").data
    assert [(event["id"], event["type"]) for event in found] == [(5, "round"), (6, "state")]
    assert len(online("events", job.id, "--format", "jsonl").out.splitlines()) == 6


def test_the_shell_is_offered_presets_files_and_jobs(
    online: Fedsim, service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = service.queued(name="offered")
    assert (job.id, "offered, QUEUED") in list(completion.complete_job(job.id[:9]))
    assert ("demo", presets()["demo"]) in list(completion.complete_spec("de"))
    (tmp_path / "mine.yaml").write_text("algorithm: fedavg")
    assert list(completion.complete_spec(f"{tmp_path}/mi")) == [(f"{tmp_path}/mine.yaml", "")]
    monkeypatch.setenv("FEDSIM_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("api.sdk.transport.connection.PAUSES", ())
    assert list(completion.complete_job("")) == []
    monkeypatch.setenv("_FEDSIM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "fedsim submit dem")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert online().out.split() == ["demo"]


def test_resume(online: Fedsim, service: RunningService) -> None:
    job = service.running()
    assert online("resume", job.id).code == 4
    service.store.change_state(job.id, JobState.RUNNING, JobState.FAILED, message="no memory")
    outcome = online("resume", job.id)
    assert (outcome.code, outcome.out) == (0, "")
    assert f"job {job.id} is QUEUED again; it continues after round 0 of 5" in outcome.err
    assert online("cancel", job.id, "--format", "json").data["state"] == "CANCELLED"
    assert online("resume", job.id, "--format", "json").data["resumes"] == 2
    online("cancel", job.id)
    ended = service.ended(rounds=5)
    assert online("resume", ended.id).code == 4
    more = online("resume", ended.id, "--rounds", 8)
    assert f"job {ended.id} is QUEUED again; it continues after round 5 of 8" in more.err
    online("cancel", ended.id)


def test_demo_uses_the_service_that_answers(online: Fedsim, service: RunningService) -> None:
    cluster = play_cluster(service, "demo", JobState.SUCCEEDED, rounds=20)
    outcome = online("demo", "--seed", 3)
    cluster.join()
    assert outcome.code == 0, outcome.err
    assert f"using the service at {service.url}" in outcome.err
    assert "50 clients (dirichlet), cohort 10" in outcome.err
    assert f"{service.url}/" in outcome.err
    assert "20.0 kB" in outcome.out
    newest = service.store.list(limit=1).jobs[0]
    assert (newest.name, newest.spec["seed"]) == ("demo", 3)


def test_demo_fails_with_its_job(online: Fedsim, service: RunningService) -> None:
    cluster = play_cluster(service, "demo", JobState.FAILED)
    outcome = online("demo", "--format", "json")
    cluster.join()
    assert outcome.code == 1
    assert (outcome.data["job"]["state"], len(outcome.data["rounds"])) == ("FAILED", 3)
    assert "that is how it ended" in outcome.err


def test_demo_starts_nothing_where_a_service_was_named(
    fedsim: Fedsim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSIM_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(demo_command, "IDLE_EXIT", 1)
    assert fedsim("demo").code == 4


def test_a_submission_that_will_take_hours_says_so(online: Fedsim, service: RunningService) -> None:
    long = ("--set=rounds=100000", "--set=local.epochs=10000")
    outcome = online("submit", "demo", *long)
    assert outcome.code == 0, outcome.err
    assert "by a count of its FLOPs" in outcome.err
    assert "by a count of its FLOPs" in (service.store.get(outcome.out.strip()).message or "")
    assert "by a count of its FLOPs" in online("check", "demo", *long).err
    assert "FLOPs" not in online("submit", "demo").err + online("check", "demo").err
