"""Models of callers: a service runs no code and reads no files that they name, unless it is allowed."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from fedsim.base import tree
from fedsim.models import make_net
from jobs.run.artifacts import save_model
from jobs.store.states import JobState
from tests.api.service import JOBS, RunningService, problem


@pytest.mark.parametrize("route", ["check", "plan", "jobs"])
def test_code_of_callers_is_refused_and_not_run(http: httpx.Client, tmp_path: Path, route: str) -> None:
    marker = tmp_path / "marker"
    source = f"open({str(marker)!r}, 'w').close()\nclass Net:\n    pass\n"
    model = {"name": "python", "path": "mine.py:Net", "source": source}
    spec = {"algorithm": "fedavg", "model": model}
    answer = http.post(f"/api/v1/{route}", json={"spec": spec} if route == "jobs" else spec)
    [fault] = answer.json()["errors"]
    assert fault["path"] == "model.name"
    assert "FEDSIM_ALLOW_PYTHON=1" in fault["hint"]
    assert answer.status_code == (200 if route == "check" else 422)
    assert not marker.exists()


def test_a_job_from_the_time_when_code_was_allowed_is_not_resumed(
    service: RunningService, http: httpx.Client
) -> None:
    job = service.running(model={"name": "python", "path": "mine.py:Net", "source": "class Net:\n    pass\n"})
    service.store.change_state(job.id, JobState.RUNNING, JobState.FAILED)
    [fault] = problem(http.post(f"{JOBS}/{job.id}/resume"), 422, "BAD_SPEC")["errors"]
    assert fault["path"] == "model.name"
    assert service.store.get(job.id).state is JobState.FAILED


def test_a_job_begins_from_the_model_of_another_and_keeps_to_it(
    service: RunningService, http: httpx.Client
) -> None:
    first = service.ended()
    net = make_net("logistic", input_shape=(1, 8, 8), num_classes=10)
    save_model(service.settings, first.id, tree.to_numpy(net.init(3)))
    body = {"spec": {"algorithm": "fedavg", "model": {"name": "logistic", "init": first.id}}}
    keyed = {"Idempotency-Key": "once"}
    answer = http.post(JOBS, json=body, headers=keyed)
    assert answer.status_code == 201, answer.text
    init = answer.json()["spec"]["model"]["init"]
    assert (init["job"], len(init["sha256"])) == (first.id, 64)
    assert http.post(JOBS, json=body, headers=keyed).json()["id"] == answer.json()["id"]
    save_model(service.settings, first.id, tree.to_numpy(net.init(4)))
    refused = problem(http.post(f"{JOBS}/{answer.json()['id']}/clone"), 422, "BAD_SPEC")
    assert [fault["path"] for fault in refused["errors"]] == ["model.init.sha256"]


@pytest.mark.parametrize("route", ["check", "plan", "jobs"])
def test_a_service_reads_no_file_that_a_caller_names(http: httpx.Client, route: str) -> None:
    spec = {"algorithm": "fedavg", "model": {"name": "mlp", "init": "/etc/passwd"}}
    answer = http.post(f"/api/v1/{route}", json={"spec": spec} if route == "jobs" else spec)
    [fault] = answer.json()["errors"]
    assert fault["path"] == "model.init.file"
    assert "outside the data roots" in fault["message"]
