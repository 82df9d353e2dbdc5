"""Slow look-ups keep nobody waiting but those who ask for one, and a silent store no probe."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.server.errors import ServiceBusy
from api.server.slow_lookups import Interest, Lookups, SharedProbe
from api.server.work_process import WorkProcess
from fedsim import FedSimClient
from fedsim.errors import SpecError
from jobs.plan.checker import CheckedSpec
from jobs.spec import JobSpec
from jobs.store.records import Job, JobPage
from tests.api.service import RunningService, running_service

SPEC = {"algorithm": "fedavg", "rounds": 2}
API = "/api/v1"
SHARED_THREADS = 40
MANY = 45
"""More than the threads that all routes share."""

EMPTY_MAP: dict[str, Any] = {"classes": [], "counts": [], "distances": [], "clients": 0, "notes": []}


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path / "home") as running:
        yield running


def test_others_are_served_while_many_look_up_what_takes_long(
    quiet: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def check(spec: JobSpec, *_: Any) -> CheckedSpec | None:
        return CheckedSpec(spec, None) if go_on.wait() else None

    async def answer(self: WorkProcess, question: Any, is_gone: Any) -> dict[str, Any]:
        self.pending += 1
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        self.pending -= 1
        return EMPTY_MAP

    monkeypatch.setattr("jobs.plan.checker.check_submission", check)
    monkeypatch.setattr(WorkProcess, "run", answer)
    job = quiet.queued()
    bodies: list[tuple[str, str, Any]] = [
        ("POST", "/check", SPEC),
        ("POST", "/jobs", {"spec": SPEC}),
        ("GET", f"/jobs/{job.id}/class-map", None),
    ]
    service = quiet.app.state.service

    def ask(number: int) -> int:
        method, path, body = bodies[number % 3]
        return httpx.request(method, f"{quiet.url}{API}{path}", json=body, timeout=120).status_code

    with ThreadPoolExecutor(MANY) as threads:
        asked = [threads.submit(ask, number) for number in range(MANY)]
        try:
            wait_until(lambda: service.check_lookups.pending + service.data_checker.pending == MANY)
            for path in ("/healthz", "/readyz", f"{API}/jobs"):
                assert httpx.get(f"{quiet.url}{path}", timeout=30).status_code == 200
        finally:
            go_on.set()
        assert {each.result() for each in asked} == {200, 201}
    assert service.check_lookups.pending == service.data_checker.pending == 0


def test_readiness_waits_for_none_of_the_threads_that_all_routes_share(
    quiet: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, started, service = threading.Event(), list[str](), quiet.app.state.service
    job, get = quiet.queued(), service.store.get

    def get_late(job_id: str) -> Job:
        started.append(job_id)
        go_on.wait()
        return get(job_id)

    monkeypatch.setattr(service.store, "get", get_late)
    with ThreadPoolExecutor(MANY) as threads:
        url = f"{quiet.url}{API}/jobs/{job.id}"
        asked = [threads.submit(httpx.get, url, timeout=120) for _ in range(MANY)]
        try:
            wait_until(lambda: len(started) == SHARED_THREADS)
            for path in ("/healthz", "/readyz"):
                assert httpx.get(f"{quiet.url}{path}", timeout=30).status_code == 200
        finally:
            go_on.set()
        assert {each.result().status_code for each in asked} == {200}


def test_others_are_served_while_many_send_what_takes_long_to_read(
    quiet: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, service = threading.Event(), quiet.app.state.service

    def read(body: bytes) -> Any:
        go_on.wait()
        return SPEC if body == b"check" else {"spec": SPEC}

    monkeypatch.setattr("api.server.dependencies._read_text", read)

    def send(number: int) -> int:
        path = ("check", "jobs")[number % 2]
        return httpx.post(f"{quiet.url}{API}/{path}", content=path, timeout=120).status_code

    with ThreadPoolExecutor(MANY) as threads:
        sent = [threads.submit(send, number) for number in range(MANY)]
        try:
            wait_until(lambda: service.body_lookups.pending == MANY)
            for path in ("/healthz", "/readyz", f"{API}/jobs"):
                assert httpx.get(f"{quiet.url}{path}", timeout=30).status_code == 200
        finally:
            go_on.set()
        assert {each.result() for each in sent} == {200, 201}


def test_so_many_may_wait_and_the_next_one_is_told_to_come_again(quiet: RunningService) -> None:
    checks: Lookups = quiet.app.state.service.check_lookups
    checks.threads = checks.waiting = 0
    for path, body in (("/check", SPEC), ("/jobs", {"spec": SPEC})):
        refusal = httpx.post(f"{quiet.url}{API}{path}", json=body)
        assert (refusal.status_code, refusal.json()["code"]) == (503, "NOT_READY")
        assert refusal.headers["retry-after"] == "5"
        assert "5 s" in refusal.json()["hint"]


def test_who_was_told_to_come_again_does(
    quiet: RunningService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusals = [ServiceBusy("many wait", seconds=0)] * 2
    run = Lookups.run_work

    async def crowded(self: Lookups, *given: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await run(self, *given)

    monkeypatch.setattr(Lookups, "run_work", crowded)
    with FedSimClient(quiet.url) as client:
        assert client.submit(SPEC).id
    assert refusals == []
    # A file with a fault of shape is looked over before: that waits as well, and so all faults are told.
    refusals.append(ServiceBusy("many wait", seconds=0))
    file = tmp_path / "spec.yaml"
    file.write_text("{algorithm: no_such_method, rounds: -1}")
    with FedSimClient(quiet.url) as client, pytest.raises(SpecError) as caught:
        client.submit(file)
    assert refusals == []
    assert {fault.path for fault in caught.value.errors} == {"algorithm.name", "rounds"}


def test_a_store_that_does_not_answer_keeps_a_probe_waiting_for_so_long_only(quiet: RunningService) -> None:
    go_on = threading.Event()
    quiet.app.state.service.store_probe = SharedProbe(go_on.wait, seconds=0.1)
    try:
        for _ in range(3):
            unready = httpx.get(f"{quiet.url}/readyz", timeout=60)
            assert (unready.status_code, unready.json()["detail"]) == (503, "the database does not answer")
    finally:
        go_on.set()


def test_probes_of_a_silent_store_hold_one_thread() -> None:
    go_on, asked = threading.Event(), list[int]()

    def ask() -> None:
        asked.append(1)
        go_on.wait()

    async def probe() -> None:
        pulse = SharedProbe(ask, seconds=0.05)
        for _ in range(4):
            with pytest.raises(TimeoutError):
                await pulse.wait_for_answer()
        go_on.set()
        pulse.seconds = 60.0
        await pulse.wait_for_answer()
        await pulse.wait_for_answer()

    asyncio.run(probe())
    assert len(asked) <= 3


@pytest.mark.parametrize("end", ["the caller leaves", "the service stops"])
def test_a_look_up_ends_when_nobody_waits_for_it(end: str) -> None:
    """The thread that reads the rounds is free for others again."""

    async def scene() -> None:
        lookups, left, seen = Lookups(threads=1, waiting=5), threading.Event(), threading.Event()

        async def is_gone() -> bool:
            return left.is_set()

        def work(interest: Interest) -> None:
            while True:
                interest.check()
                seen.set()

        asked = asyncio.create_task(lookups.run_while_wanted(is_gone, work))
        while not seen.is_set():
            await asyncio.sleep(0.01)
        if end == "the caller leaves":
            left.set()
        else:
            lookups.close()
        with pytest.raises(ServiceBusy, match="was given up"):
            await asked
        assert lookups.pending == 0
        left.clear()
        assert await lookups.run_while_wanted(is_gone, lambda _: 3) == 3

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("path", "kind", "reads"),
    [
        ("comparison", "round_lookups", "api.server.routes.comparison.read_all_rounds"),
        ("curves", "curve_lookups", "api.server.routes.curves.read_curves"),
    ],
)
def test_a_caller_that_leaves_frees_its_thread(
    quiet: RunningService, monkeypatch: pytest.MonkeyPatch, path: str, kind: str, reads: str
) -> None:
    def read_for_ever(*arguments: Any) -> Iterator[Any]:
        while True:
            arguments[-1].check()
            yield from ()

    monkeypatch.setattr(reads, read_for_ever)
    job, lookups = quiet.ended(), getattr(quiet.app.state.service, kind)
    with socket.create_connection(("127.0.0.1", quiet.port)) as caller:
        caller.sendall(f"GET {API}/{path}?job={job.id} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        wait_until(lambda: lookups.pending == 1)
    wait_until(lambda: lookups.pending == 0)


@pytest.mark.parametrize(
    ("path", "kind", "reads"),
    [
        ("jobs/{}/rounds", "page_lookups", "rounds"),
        ("jobs/{}/rounds?limit=10000", "round_lookups", "rounds"),
        ("jobs?limit=500", "round_lookups", "list"),
    ],
)
def test_a_page_whose_caller_left_while_it_waited_is_not_read(
    quiet: RunningService, monkeypatch: pytest.MonkeyPatch, path: str, kind: str, reads: str
) -> None:
    job, service = quiet.ended(), quiet.app.state.service
    lookups, go_on, begun = getattr(service, kind), threading.Event(), list[Any]()

    def read_late(*arguments: Any, **_: Any) -> Any:
        begun.append(arguments)
        go_on.wait()
        return () if reads == "rounds" else JobPage(jobs=[], next_page_token=None, counts={})

    monkeypatch.setattr(service.store, reads, read_late)
    monkeypatch.setattr(lookups, "threads", 1)
    request = f"GET {API}/{path.format(job.id)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    try:
        for number in range(1, 4):
            with socket.create_connection(("127.0.0.1", quiet.port)) as caller:
                caller.sendall(request)
                wait_until(lambda number=number: lookups.pending == number and bool(begun))
        wait_until(lambda: all(interest._ended.is_set() for interest in lookups._interests))
    finally:
        go_on.set()
    wait_until(lambda: lookups.pending == 0)
    assert len(begun) == 1


def wait_until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)
