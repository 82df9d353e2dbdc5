"""The whole service as its users meet it: a server process, a Ray of its own, real jobs."""

from __future__ import annotations

import csv
import io
import json
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from api.sdk.client import FedSimClient
from fedsim.errors import SpecError
from jobs.store.job_store import JobStore
from tests.e2e.server import QUICK, Server, submit, wait_for

LONG = {**QUICK, "name": "long", "rounds": 100_000}


def events(http: httpx.Client, job: str) -> list[tuple[str, dict[str, Any]]]:
    """Every event of a job, until the stream ends by itself."""
    found = []
    with http.stream("GET", f"/jobs/{job}/events", timeout=90) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        kind = ""
        for line in stream.iter_lines():
            if line.startswith("event:"):
                kind = line.removeprefix("event:").strip()
            elif line.startswith("data:"):
                found.append((kind, json.loads(line.removeprefix("data:"))))
    return found


def test_submit_watch_and_fetch_by_rest(http: httpx.Client) -> None:
    job = submit(http, {**QUICK, "data": {"tests": "matched"}})
    seen = events(http, job)
    assert [data["round"] for kind, data in seen if kind == "round"] == [1, 2, 3, 4]
    assert [data["state"] for kind, data in seen if kind == "state"][-1] == "SUCCEEDED"
    assert seen[-1][1]["terminal"] is True
    rounds = http.get(f"/jobs/{job}/rounds").json()
    records = rounds["rounds"] if isinstance(rounds, dict) else rounds
    assert [record["round"] for record in records] == [1, 2, 3, 4]
    assert [record["digest"] for record in records] == [d["digest"] for k, d in seen if k == "round"]
    table = http.get(f"/jobs/{job}/rounds", headers={"Accept": "text/csv"})
    assert table.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [row["round"] for row in rows] == ["1", "2", "3", "4"]
    assert rows[0]["digest"] == records[0]["digest"]
    clients = list(csv.DictReader(io.StringIO(http.get(f"/jobs/{job}/artifacts/personal.csv").text)))
    assert len(clients) == records[-1]["metrics"]["personal_clients"]
    assert "ended SUCCEEDED" in http.get(f"/jobs/{job}/logs").text
    check_artifacts(http, job)
    cluster = http.get("/cluster").json()
    assert cluster["cpus"]["total"] >= 1
    assert [node["head"] for node in cluster["nodes"]] == [True]


def check_artifacts(http: httpx.Client, job: str) -> None:
    """Everything that a job leaves can be fetched, and holds what it should."""
    names = [each["name"] for each in http.get(f"/jobs/{job}/artifacts").json()["artifacts"]]
    written = ["model.safetensors", "partition.safetensors", "personal.csv"]
    assert names == ["spec.yaml", "report.json", *written]
    files = {name: http.get(f"/jobs/{job}/artifacts/{name}").content for name in names}
    assert len(json.loads(files["report.json"])["rounds"]) == 4
    model, dealt = load(files["model.safetensors"]), load(files["partition.safetensors"])
    assert all(np.isfinite(value).all() for value in model.values())
    spec = http.get(f"/jobs/{job}").json()["spec"]
    assert len(dealt["offsets"]) == spec["clients"]["total"] + 1
    assert len(set(dealt["indices"].tolist())) == len(dealt["indices"]) == dealt["offsets"][-1]


@pytest.mark.weekly
def test_the_same_by_the_sdk(server: Server, tmp_path: Path) -> None:
    with FedSimClient(server.url) as client:
        by_the_sdk(client, tmp_path)


def by_the_sdk(client: FedSimClient, tmp_path: Path) -> None:
    job = client.submit(QUICK, set={"rounds": 3})
    assert [record.round for record in job.watch()] == [1, 2, 3]
    assert job.wait(timeout=300) == "SUCCEEDED"
    assert len(job.rounds()) == 3
    assert len(job.rounds().to_csv(tmp_path / "rounds.csv").read_text().splitlines()) == 4
    with pytest.raises(SpecError) as caught:
        client.submit({"algorithm": "fedavgg", "model": "lenet6"})
    assert {error.path for error in caught.value.errors} == {"algorithm.name", "model.name"}
    running = client.submit(LONG)
    next(running.watch())
    waiting = client.submit(QUICK)
    assert waiting.refresh().state == "QUEUED"
    assert running.refresh().state == "RUNNING"
    assert running.cancel() == "CANCELLING"
    assert running.wait(timeout=300) == "CANCELLED"
    assert waiting.wait(timeout=300) == "SUCCEEDED"


@pytest.mark.slow
def test_a_second_job_waits_and_a_cancelled_one_makes_room(http: httpx.Client, server: Server) -> None:
    first, second = submit(http, LONG), submit(http, QUICK)
    wait_for(http, first, {"RUNNING"})
    waiting = http.get(f"/jobs/{second}").json()
    assert waiting["state"] == "QUEUED"
    assert waiting["waiting"]
    assert http.post(f"/jobs/{first}/cancel").status_code in (200, 202)
    wait_for(http, first, {"CANCELLED"}, seconds=300)
    assert http.post(f"/jobs/{first}/cancel").status_code in (200, 202)
    wait_for(http, second, {"SUCCEEDED"})
    deadline = time.monotonic() + 120
    while server.living_actors() and time.monotonic() < deadline:
        time.sleep(0.2)
    # The Jobs API keeps a supervisor per job for a moment; client actors and coordinators are gone.
    assert server.living_actors() == 0


def test_a_job_that_cannot_fit_is_refused_with_the_arithmetic(http: httpx.Client) -> None:
    answer = http.post("/jobs", json={"spec": {**QUICK, "resources": {"workers": 5000}}})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "DOES_NOT_FIT"
    assert problem["errors"][0]["path"] == "resources.workers"
    assert problem["errors"][0]["value"] == 5000
    assert "5000 workers x 1 CPU asked" in problem["errors"][0]["message"]
    assert problem["hint"]


@pytest.mark.slow
def test_a_killed_api_loses_nothing(http: httpx.Client, server: Server) -> None:
    job = submit(http, {**QUICK, "rounds": 400})
    wait_for(http, job, {"RUNNING"})
    server.stop(signal.SIGKILL)
    with JobStore.open(server.settings.database_url) as store:
        before = [record.digest for record in store.rounds(job)]
    server.start()
    assert http.get(f"/jobs/{job}").json()["state"] in ("RUNNING", "SUCCEEDED")
    ended = wait_for(http, job, {"SUCCEEDED", "FAILED"}, seconds=300)
    assert ended["state"] == "SUCCEEDED"
    with JobStore.open(server.settings.database_url) as store:
        records = store.rounds(job)
    assert [record.round for record in records] == list(range(1, 401))
    assert [record.digest for record in records[: len(before)]] == before
    assert ended["restarts"] == 0
