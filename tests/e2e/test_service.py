"""The whole service as its users meet it: a server process, a Ray of its own, real jobs."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.client import FedSimClient
from fedsim.errors import SpecError
from jobs.local_ray import find_ray, stop_ray
from jobs.settings import Settings
from jobs.store import JobStore

QUICK: dict[str, Any] = {
    "algorithm": "fedavg",
    "rounds": 4,
    "clients": {"total": 20, "fraction": 0.2},
    "model": "logistic",
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
}
LONG = {**QUICK, "name": "long", "rounds": 100_000}


class Server:
    """`fedsim serve` as a process of its own, on a home of its own."""

    def __init__(self, home: Path) -> None:
        self.settings = Settings(home=home)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready to run jobs."""
        command = [sys.executable, "-m", "api.cli", "serve", "--port", str(self.port)]
        environment = {**os.environ, "FEDSIM_HOME": str(self.settings.home)}
        environment.pop("FEDSIM_DATABASE_URL", None)
        with (self.settings.make_home() / "serve.out").open("ab") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        deadline = time.monotonic() + 90
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.settings.home / "serve.out").read_text()[-3000:])
            time.sleep(0.2)

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the server; its Ray stays."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20)

    def living_actors(self) -> int:
        """Client actors and coordinators that Ray knows to be alive."""
        address = find_ray(self.settings)
        assert address is not None
        answer = httpx.get(f"{address.jobs}/api/v0/actors", headers=address.headers, timeout=20).json()
        return sum(actor["state"] != "DEAD" for actor in answer["data"]["result"]["result"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("home"))
    try:
        server.start()
        yield server
    finally:
        server.stop()
        stop_ray(server.settings)


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as client:
        yield client


def submit(http: httpx.Client, spec: dict[str, Any]) -> str:
    answer = http.post("/jobs", json={"spec": spec})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def wait_for(http: httpx.Client, job: str, states: set[str], seconds: float = 60) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while True:
        found: dict[str, Any] = http.get(f"/jobs/{job}").json()
        if found["state"] in states:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


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
    job = submit(http, QUICK)
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
    assert "ended SUCCEEDED" in http.get(f"/jobs/{job}/logs").text


def test_the_same_by_the_sdk(server: Server, tmp_path: Path) -> None:
    with FedSimClient(server.url) as client:
        by_the_sdk(client, tmp_path)


def by_the_sdk(client: FedSimClient, tmp_path: Path) -> None:
    job = client.submit(QUICK, set={"rounds": 3})
    assert [record.round for record in job.watch()] == [1, 2, 3]
    assert job.wait(timeout=30) == "SUCCEEDED"
    assert len(job.rounds()) == 3
    assert len(job.rounds().to_csv(tmp_path / "rounds.csv").read_text().splitlines()) == 4
    again = client.submit(QUICK, set={"rounds": 3, "seed": 0})
    assert again.wait(timeout=60) == "SUCCEEDED"
    assert [r.digest for r in again.rounds()] == [r.digest for r in job.rounds()]
    with pytest.raises(SpecError) as caught:
        client.submit({"algorithm": "fedavgg", "model": "lenet6"})
    assert {error.path for error in caught.value.errors} == {"algorithm.name", "model.name"}


def test_a_second_job_waits_and_a_cancelled_one_makes_room(http: httpx.Client, server: Server) -> None:
    first, second = submit(http, LONG), submit(http, QUICK)
    wait_for(http, first, {"RUNNING"})
    waiting = http.get(f"/jobs/{second}").json()
    assert waiting["state"] == "QUEUED"
    assert waiting["waiting"]
    began = time.monotonic()
    assert http.post(f"/jobs/{first}/cancel").status_code in (200, 202)
    wait_for(http, first, {"CANCELLED"}, seconds=15)
    assert time.monotonic() - began < 15
    assert http.post(f"/jobs/{first}/cancel").status_code in (200, 202)
    wait_for(http, second, {"SUCCEEDED"})
    deadline = time.monotonic() + 10
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


def test_a_killed_api_loses_nothing(http: httpx.Client, server: Server) -> None:
    job = submit(http, {**QUICK, "rounds": 400})
    wait_for(http, job, {"RUNNING"})
    server.stop(signal.SIGKILL)
    with JobStore.open(server.settings.database_url) as store:
        before = len(store.rounds(job))
    server.start()
    assert http.get(f"/jobs/{job}").json()["state"] in ("RUNNING", "SUCCEEDED")
    ended = wait_for(http, job, {"SUCCEEDED", "FAILED"}, seconds=120)
    assert ended["state"] == "SUCCEEDED"
    with JobStore.open(server.settings.database_url) as store:
        numbers = [record.round for record in store.rounds(job)]
    assert numbers == list(range(1, 401))
    assert before <= 400
    assert ended["restarts"] == 0
