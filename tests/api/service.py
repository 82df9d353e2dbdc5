"""A real server on a real store, with a queue that does nothing: the tests play the cluster's part."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from fastapi import FastAPI

from actors.resources import ClusterNode
from api.sdk.transport.stream import Assembler, Message
from api.server.app import create_app
from api.server.connections import ClosingServer, make_server_config
from api.server.web_server import open_listener
from fedsim.errors import RayUnavailable
from jobs.local_ray.cluster import ClusterState, JobActors, NodeState, NodeUsage, Share
from jobs.settings import Limits, Settings
from jobs.spec import parse_spec
from jobs.store.job_store import JobStore
from jobs.store.records import Job, RoundRecord
from jobs.store.states import JobState
from tests.databases import service_database

LIMITS = Limits()

JOBS = "/api/v1/jobs"


def read_messages(lines: Iterable[str]) -> Iterator[Message]:
    """Yield the events of a whole stream; its lines come without their ends."""
    assembler = Assembler()
    for line in lines:
        if (message := assembler.add_line(line)) is not None:
            yield message


class IdleQueue:
    """A dispatcher that leaves the jobs where they are."""

    def __init__(self) -> None:
        self.woken = 0
        self.started = False
        self.missing: str | None = None

    def start(self) -> None:
        self.started = True

    def stop(self) -> None:
        self.started = False

    def wake(self) -> None:
        self.woken += 1

    def nodes(self) -> list[ClusterNode] | None:
        return [ClusterNode("127.0.0.1", 8, 0)]

    def read_cluster_state(self) -> ClusterState:
        if self.missing:
            raise RayUnavailable(self.missing)
        whole = Share(total=8, free=7)
        usage = NodeUsage(cpus=8, cpu_percent=59.3, load=4.5, memory_total=32 * 10**9, memory_used=12 * 10**9)
        none = Share(total=0, free=0)
        node = NodeState(id="1", address="127.0.0.1", head=True, cpus=whole, gpus=none, usage=usage)
        actors = JobActors(job_id="abc", actors=1, waiting=0, cpus=1, gpus=0, nodes=["1"])
        return ClusterState(nodes=[node], cpus=whole, gpus=node.gpus, jobs=[actors])

    def find_obstacle(self) -> str | None:
        return self.missing


class RunningService:
    """A server in a thread, and what stands behind it."""

    def __init__(
        self, app: FastAPI, settings: Settings, store: JobStore, dispatcher: IdleQueue, port: int
    ) -> None:
        self.app, self.settings, self.store, self.dispatcher = app, settings, store, dispatcher
        self.listener = open_listener("127.0.0.1", port)
        self.port: int = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = ClosingServer(make_server_config(app, settings.limits, 2))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})

    def start(self) -> None:
        self.thread.start()
        end = time.monotonic() + 10
        while not self.server.started:
            if time.monotonic() > end or not self.thread.is_alive():
                raise RuntimeError("the test's server did not start")
            time.sleep(0.01)

    def stop(self) -> None:
        if not self.thread.is_alive():
            return
        self.app.state.loop.call_soon_threadsafe(self.app.state.service.event_hub.close)
        self.server.should_exit = True
        self.thread.join(10)
        self.listener.close()

    def queued(self, **fields: Any) -> Job:
        """Make a job that waits, as the store has it."""
        spec = parse_spec({"algorithm": "fedavg", "rounds": 5, **fields})
        return self.store.create(spec)[0]

    def running(self, **fields: Any) -> Job:
        """Make a job that runs."""
        job = self.queued(**fields)
        self.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
        self.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
        return self.store.get(job.id)

    def ended(self, rounds: int = 3, **fields: Any) -> Job:
        """Make a job that has succeeded after so many rounds."""
        job = self.running(**fields)
        for number in range(1, rounds + 1):
            self.store.add_round(job.id, a_round(number))
        self.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
        return self.store.get(job.id)


def a_round(number: int, **metrics: float) -> RoundRecord:
    """Make a record whose accuracy grows with its number."""
    accuracy = {"global_accuracy": 1 - 1 / (number + 1), "global_loss": 1 / number}
    return RoundRecord.model_validate(
        {
            "round": number,
            "digest": f"{number:064x}",
            "cohort": 10,
            "seconds": {"total": 0.5, "train": 0.4},
            "bytes": {"down": 1000, "up": 2000, "by_payload": {"params": 2000}},
            "metrics": accuracy | metrics,
            "engine": {"pool": "serial", "width": 1, "actors": 2, "restarts": 0},
        }
    )


def a_job() -> Job:
    """Make a job that failed, as a service tells of it."""
    fields = {"id": "0123456789ab", "name": "x", "state": "FAILED", "spec": {}, "rounds_total": 3}
    return Job.model_validate({**fields, "created_at": datetime.now(UTC)})


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """What an answer says that is a refusal of this status and code, and nothing else."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["code"] == code
    assert set(body) == {"type", "title", "status", "detail", "code", "hint", "request_id", "errors"}
    assert body["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    return body


def submit(http: httpx.Client, spec: Any, **headers: str) -> httpx.Response:
    """Ask for a job of this spec."""
    return http.post(JOBS, json={"spec": spec}, headers=headers)


def play_cluster(service: RunningService, name: str, final: JobState, rounds: int = 3) -> threading.Thread:
    """Run the next job of this name as soon as it is there."""
    earlier = {job.id for job in service.store.queue()}

    def work() -> None:
        end = time.monotonic() + 20
        jobs: list[Job] = []
        while not jobs and time.monotonic() < end:
            time.sleep(0.02)
            jobs = [job for job in service.store.queue() if job.name == name and job.id not in earlier]
        job = jobs[0]
        service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
        service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
        for number in range(1, rounds + 1):
            service.store.add_round(job.id, a_round(number))
        service.store.change_state(job.id, JobState.RUNNING, final, message="that is how it ended")

    thread = threading.Thread(target=work)
    thread.start()
    return thread


class Outcome(NamedTuple):
    """What a command has done: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What it printed as JSON."""
        return json.loads(self.out)


Fedsim = Callable[..., Outcome]
"""Runs the command line with these arguments."""


@contextmanager
def running_service(
    home: Path, *, token: str | None = None, port: int = 0, limits: Limits = LIMITS, **options: Any
) -> Iterator[RunningService]:
    """Run a server for as long as the block lasts."""
    queue = IdleQueue()
    settings = Settings(home=home, token=token, limits=limits)
    settings = replace(settings, database_url=service_database(settings.make_home()))
    with JobStore.open(settings.database_url) as store:
        service = RunningService(create_app(settings, store, queue, **options), settings, store, queue, port)
        try:
            service.start()
            yield service
        finally:
            service.stop()
