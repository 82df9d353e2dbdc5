"""The claims of a result table, judged by REST from the jobs of its runs."""

from __future__ import annotations

from pathlib import Path

import httpx

from api.cli import service_runs
from fedsim import FedSimClient
from jobs.grid.journal import Journal
from jobs.grid.runner import run_table
from jobs.grid.table import load_table
from jobs.grid.verdicts import judge_claims
from jobs.spec import parse_spec
from jobs.store.states import JobState
from tests.api.service import RunningService, a_round, problem

ROUTE = "/api/v1/claims"

FINALS = {"20 rounds": 0.8, "2 rounds": 0.5, "FedProx, 20 rounds": 0.8, "a tenth of the rate": 0.4}


def test_verdicts_are_those_of_the_command(
    http: httpx.Client, service: RunningService, tmp_path: Path
) -> None:
    table = load_table("demo-claim")
    with FedSimClient(service.url) as client:
        group = client.sweep(table.sweep)
        for member in group.members:
            job = group.job_of(member)
            assert job is not None
            final = FINALS[member.run.cell[0]] + 0.01 * (member.run.seed * len(member.run.cell[0]) % 7)
            service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
            service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
            service.store.add_round(job.id, a_round(1, global_accuracy=final))
            service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
        journal = Journal(tmp_path, table.name)
        run_table(
            table, journal, lambda *each: service_runs.run_on_service(*each, client), lambda progress: None
        )
    verdicts = judge_claims(table, journal.read())
    found = http.get(ROUTE, params={"label": ["table=demo-claim", "preset=demo"]}).json()
    assert (found["finished"], found["runs"], found["paper"]) == (12, 12, "demo")
    assert found["command"] == "fedsim reproduce demo-claim --on service"
    assert [each["verdict"] for each in found["claims"]] == ["held", "reversed", "undecided"]
    for said, verdict in zip(found["claims"], verdicts, strict=True):
        assert (said["difference"], said["p"]) == (verdict.format_difference(), verdict.format_p())
        assert (said["sentence"], said["cells"]) == (verdict.claim.sentence, verdict.describe_cell())
    # Two seeds, chosen by their jobs.
    some = [job.id for member, job in zip(group.members, group.jobs, strict=True) if member.run.seed < 3]
    found = http.get(ROUTE, params={"job": some}).json()
    assert (found["finished"], found["runs"]) == (8, 8)


def test_other_jobs_have_no_claims(http: httpx.Client, service: RunningService) -> None:
    job = service.queued(name="no table")
    said = problem(http.get(ROUTE, params={"job": job.id}), 422, "BAD_REQUEST")["errors"][0]
    assert said["message"] == "the jobs are no runs of one built-in table"
    assert "label=table=NAME" in said["hint"]


def test_a_scale_that_is_no_preset_is_named(http: httpx.Client, service: RunningService) -> None:
    labels = {"table": "demo-claim", "preset": "gone", "seed": "1"}
    service.store.create(parse_spec({"algorithm": "fedavg"}), labels=labels)
    said = problem(http.get(ROUTE, params={"label": "preset=gone"}), 422, "BAD_REQUEST")["errors"][0]
    assert "has no preset 'gone'" in said["message"]


def test_seeds_are_those_of_the_specs(http: httpx.Client, service: RunningService) -> None:
    """Labels are free text: one of a seed may be missing, or say anything."""
    labels = {"table": "demo-claim", "preset": "demo"}
    job = service.store.create(parse_spec({"algorithm": "fedavg"}), labels=labels)[0]
    said = problem(http.get(ROUTE, params={"job": job.id}), 422, "BAD_REQUEST")["errors"][0]
    assert "the label seed" in said["message"]
    labels["seed"] = "9" * 30
    job = service.store.create(parse_spec({"algorithm": "fedavg", "seed": 2}), labels=labels)[0]
    assert http.get(ROUTE, params={"job": job.id}).json()["runs"] == 4


def test_a_clone_with_the_labels_of_a_run_is_not_the_run(http: httpx.Client, service: RunningService) -> None:
    labels = {"table": "demo-claim", "preset": "demo", "method": "20 rounds", "seed": "1"}
    job = service.store.create(parse_spec({"algorithm": "fedavg", "seed": 1}), labels=labels)[0]
    service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
    service.store.add_round(job.id, a_round(1, global_accuracy=0.5))
    service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
    found = http.get(ROUTE, params={"job": job.id}).json()
    assert (found["finished"], found["runs"]) == (0, 4)


def test_jobs_of_two_scales_are_not_mixed(http: httpx.Client, service: RunningService) -> None:
    spec = parse_spec({"algorithm": "fedavg"})
    for preset in ("kdia-cifar10", "kdia-cifar10-small"):
        labels = {"table": "kdia-cifar10", "preset": preset, "seed": "1"}
        service.store.create(spec, labels=labels)
    said = problem(http.get(ROUTE, params={"label": "table=kdia-cifar10"}), 422, "BAD_REQUEST")["errors"][0]
    assert said["message"] == "the jobs have several scales: kdia-cifar10, kdia-cifar10-small"
