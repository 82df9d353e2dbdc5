"""Sweeps against a real service: submitted once, taken up again, waited for, summed up; on both clients."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsim import FedSimClient
from fedsim.errors import SpecError
from jobs.store.records import Job
from jobs.store.states import JobState
from tests.api.blocking import client_of
from tests.api.service import Fedsim, RunningService, a_round


@pytest.fixture(params=["sync", "async"])
def client(service: RunningService, request: pytest.FixtureRequest) -> Iterator[FedSimClient]:
    with client_of(request.param, service) as opened:
        yield opened


def sweep(name: str, **changes: Any) -> dict[str, Any]:
    base = {"algorithm": "fedprox", "rounds": 1}
    axes = {"mu": {"path": "algorithm.mu", "values": [0.0, 0.1]}}
    return {"name": name, "base": base, "axes": axes, "seeds": [1, 2], **changes}


def end(service: RunningService, job: Job, accuracy: float, final: JobState = JobState.SUCCEEDED) -> None:
    """Play the cluster's part for one job."""
    service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
    service.store.add_round(job.id, a_round(1, global_accuracy=accuracy))
    service.store.change_state(job.id, JobState.RUNNING, final, message="that is how it ended")


def end_all(service: RunningService, group: str, accuracies: list[float]) -> None:
    """Play the cluster's part for a group of so many jobs, as soon as they are there."""
    limit = time.monotonic() + 20
    waiting: list[Job] = []
    while len(waiting) < len(accuracies) and time.monotonic() < limit:
        time.sleep(0.02)
        waiting = list(service.store.list(state="QUEUED", label=f"group={group}", order_by="created_at").jobs)
    for job, accuracy in zip(waiting, accuracies, strict=True):
        end(service, job, accuracy)


def test_only_what_is_missing_is_submitted(service: RunningService, client: FedSimClient) -> None:
    name = f"missing-{secrets.token_hex(4)}"
    seen: list[int] = []
    first = client.sweep(sweep(name), news=lambda view: seen.append(len(view.found)))
    assert seen == [1, 2, 3, 4]
    assert first.counts() == {"QUEUED": 4}
    ids = [job.id for job in first.jobs]
    assert [job.id for job in client.sweep(sweep(name)).jobs] == ids
    more = client.sweep(sweep(name, seeds=[1, 2, 3], base={"algorithm": {"name": "fedprox"}, "rounds": 1}))
    assert [job.id for job in more.jobs][:4] == ids
    assert len({job.id for job in more.jobs}) == 6
    found = list(client.jobs(label=[f"group={name}", "mu=0.1"]))
    assert {job.job.spec["algorithm"]["mu"] for job in found} == {0.1}
    end(service, more.jobs[0].job, 0.5)
    client.job(ids[0]).delete()
    more.refresh()
    assert more.counts() == {"MISSING": 1, "QUEUED": 5}
    assert client.sweep(sweep(name)).jobs[0].id not in ids


def test_what_the_service_finds_wrong_is_said_with_its_run(client: FedSimClient) -> None:
    wrong = sweep(f"wrong-{secrets.token_hex(4)}", axes={"algorithm": ["fedavg", "fedawg"]}, seeds=[1])
    with pytest.raises(SpecError, match=r"in fedawg, seed 1.*did you mean 'fedavg'"):
        client.sweep(wrong)
    assert len(list(client.jobs(label=f"group={wrong['name']}"))) == 1


def test_it_ends_with_mean_and_deviation(service: RunningService, client: FedSimClient) -> None:
    name = f"figures-{secrets.token_hex(4)}"
    handle = client.sweep(sweep(name))
    with pytest.raises(TimeoutError, match="4 QUEUED"):
        handle.wait(timeout=0.1)
    cluster = threading.Thread(target=end_all, args=(service, name, [0.5, 0.6, 0.7, 0.6]))
    cluster.start()
    assert handle.wait(timeout=20)
    cluster.join()
    plain, strong = handle.cells()
    # the runs come seed by seed: cell 0 has 0.5 and 0.7, mean 0.6, sample deviation 0.1 * sqrt(2) = 0.141
    assert plain.values == {1: 0.5, 2: 0.7}
    assert (plain.mean, plain.std) == (pytest.approx(0.6), pytest.approx(0.1414, abs=1e-4))
    assert (strong.mean, strong.std) == (pytest.approx(0.6), pytest.approx(0.0))
    document = handle.document()
    assert document["states"] == {"SUCCEEDED": 4}
    assert [run["value"] for run in document["runs"]] == [0.5, 0.6, 0.7, 0.6]


def test_what_failed_goes_on_when_asked_to(service: RunningService, client: FedSimClient) -> None:
    name = f"failed-{secrets.token_hex(4)}"
    handle = client.sweep(sweep(name, axes={}, seeds=[1, 2]))
    bad, good = (job.job for job in handle.jobs)
    end(service, bad, 0.1, JobState.FAILED)
    end(service, good, 0.4)
    assert not handle.wait(timeout=20)
    [cell] = handle.cells()
    assert (cell.values, cell.expected, cell.std) == ({2: 0.4}, 2, None)
    assert client.sweep(sweep(name, axes={}, seeds=[1, 2])).counts() == {"FAILED": 1, "SUCCEEDED": 1}
    again = client.sweep(sweep(name, axes={}, seeds=[1, 2]), resume=True)
    assert again.counts() == {"QUEUED": 1, "SUCCEEDED": 1}
    service.store.request_cancel(bad.id)


def test_the_command_shows_a_table_and_exits_by_the_outcome(
    online: Fedsim, service: RunningService, tmp_path: Path
) -> None:
    file = tmp_path / "command.yaml"
    file.write_text(
        "base: demo\nset: {rounds: 1}\naxes: {local.lr: [0.1, 0.2]}\nseeds: [1, 2]\nlabels: {owner: ada}\n"
    )
    outcome = online("sweep", file, "--no-wait", "--format", "json")
    assert outcome.code == 0, outcome.err
    assert outcome.data["states"] == {"QUEUED": 4}
    cluster = threading.Thread(target=end_all, args=(service, "command", [0.5, 0.6, 0.7, 0.6]))
    cluster.start()
    outcome = online("sweep", file)
    cluster.join()
    assert outcome.code == 0, outcome.err
    assert "group command: 4 runs" in outcome.err
    assert "4 SUCCEEDED" in outcome.err
    assert "0.6000 ± 0.1414" in outcome.out
    assert "2 of 2" in outcome.out
    file.write_text(file.read_text().replace("[1, 2]\nl", "[1, 2, 3]\nl"))
    for job in online("sweep", file, "--no-wait", "--format", "json").data["runs"]:
        if job["state"] == "QUEUED":
            end(service, service.store.get(job["job"]), 0.6, JobState.FAILED)
    outcome = online("sweep", file)
    assert outcome.code == 1
    assert "2 of 3" in outcome.out
    assert "FAILED: that is how it ended" in outcome.err
    assert "--resume" in outcome.err
    file.write_text("base: demo\n")
    assert online("sweep", file).code == 2


def test_the_command_says_when_no_run_has_the_metric(
    online: Fedsim, service: RunningService, tmp_path: Path
) -> None:
    file = tmp_path / "unmeasured.yaml"
    file.write_text("base: demo\nset: {rounds: 1}\naxes: {}\nseeds: [1]\nmetric: personal_accuracy_mean\n")
    cluster = threading.Thread(target=end_all, args=(service, "unmeasured", [0.5]))
    cluster.start()
    outcome = online("sweep", file)
    cluster.join()
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.err.split())
    assert (
        "no run has the metric 'personal_accuracy_mean'; `metric` in the file may be one of: global_accuracy"
        in said
    )
