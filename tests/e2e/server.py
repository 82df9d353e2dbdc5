"""A server process on a home of its own, and how tests talk to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from jobs.local_ray.cluster import SUBMISSION_KEY
from jobs.local_ray.embedded_ray import find_ray, stop_ray
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import resolve_spec
from tests.databases import service_database

QUICK: dict[str, Any] = {
    "algorithm": "fedavg",
    "rounds": 4,
    "clients": {"total": 20, "fraction": 0.2},
    "model": "logistic",
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
}


class Server:
    """`fedsim serve` as a process of its own, on a home and a database; it may be given more variables."""

    def __init__(self, home: Path, url: str, **environment: str) -> None:
        self.settings, self.environment = Settings(home=home, database_url=url), environment
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready to run jobs."""
        command = [sys.executable, "-m", "api.cli.main", "serve", "--port", str(self.port)]
        environment = {**os.environ, **self.environment, **self.settings.secret_environment()}
        environment["FEDSIM_HOME"] = str(self.settings.home)
        with (self.settings.make_home() / "serve.out").open("ab") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        deadline = time.monotonic() + 180
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.settings.home / "serve.out").read_text()[-3000:])
            time.sleep(0.2)

    def is_ready(self) -> bool:
        """Whether the server says that it can run jobs."""
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the server; its Ray stays."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20)

    def actors(self) -> list[dict[str, Any]]:
        """The actors that Ray knows to be alive."""
        answer = self._ask("/api/v0/actors?detail=1&limit=10000")
        return [actor for actor in answer["data"]["result"]["result"] if actor["state"] != "DEAD"]

    def _ask(self, path: str) -> Any:
        """What Ray's dashboard says."""
        address = find_ray(self.settings)
        assert address is not None
        return httpx.get(address.jobs + path, headers=address.headers, timeout=20).json()

    def pids(self, job: str, kind: str) -> list[int]:
        """The processes of a job's living actors of a class, as far as Ray knows them now."""
        known = self._ask("/api/jobs/")
        names = {each["job_id"] for each in known if f"-{job}-" in each["metadata"].get(SUBMISSION_KEY, "")}
        mine = [actor for actor in self.actors() if actor["job_id"] in names and kind in actor["class_name"]]
        return sorted(int(actor["pid"]) for actor in mine if actor["state"] == "ALIVE" and actor["pid"])

    def living_actors(self) -> int:
        """How many client actors and coordinators live."""
        return len(self.actors())

    def coordinator_pid(self) -> int:
        """The process of the one coordinator; Ray's list of actors may be a moment behind."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            found = {a["pid"] for a in self.actors() if "Coordinator" in a["class_name"] and a["pid"]}
            if len(found) == 1:
                return int(found.pop())
        raise LookupError("there is not one coordinator")


@contextmanager
def running_server(home: Path, **environment: str) -> Iterator[Server]:
    """A server for as long as the block lasts; its Ray ends with it."""
    server = Server(home, service_database(home), **environment)
    try:
        server.start()
        yield server
    finally:
        try:
            server.stop()
        finally:
            stop_ray(server.settings)


def submit(http: httpx.Client, spec: dict[str, Any]) -> str:
    answer = http.post("/jobs", json={"spec": spec})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def wait_for(http: httpx.Client, job: str, states: set[str], seconds: float = 300) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while True:
        found: dict[str, Any] = http.get(f"/jobs/{job}").json()
        if found["state"] in states:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def undisturbed(spec: dict[str, Any], settings: Settings) -> list[str]:
    """The digests of a spec's rounds as one process computes them, one client after another."""
    experiment = resolve_spec(parse_spec(spec), settings)
    population = experiment.load_population()
    pool = SerialPool(experiment.algorithm, population)
    return [result.digest for result in simulate(experiment.algorithm, population, pool)]


def runner_pid(job: str) -> int:
    """The process that runs a job: a fork of the fork server, named after the job."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if (folder / "comm").read_text().strip() == job:
                return int(folder.name)
    raise LookupError(f"no process runs job {job}")
