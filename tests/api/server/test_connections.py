"""Connections: how long a caller may take for a request, and how many connections may be open."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from api.server import connections, job_log
from api.server.connections import ACCEPT_ERROR, limit_accept_errors, raise_file_limit
from jobs.settings import Limits
from jobs.store.states import JobState
from tests.api.browser import until
from tests.api.server.test_serving import Process
from tests.api.service import RunningService, running_service

JOBS = "/api/v1/jobs"
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_OPEN = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
SHORT = 0.5
"""Seconds of a short time limit. The tests wait for what is asserted, never for a time."""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service whose callers have half a second for a request."""
    with running_service(tmp_path_factory.mktemp("hasty"), limits=Limits(request_seconds=SHORT)) as service:
        yield service


def connect(service: RunningService, first: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", service.port), timeout=20)
    made.sendall(first)
    return made


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the service closes the connection; a test whose service does not close it fails here."""
    pieces = []
    try:
        while piece := connection.recv(65536):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


@contextmanager
def half_open(service: RunningService, number: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connect(service, HALF_OPEN)) for _ in range(number)]


def post_header(length: int) -> bytes:
    head = f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize(
    "start",
    [
        b"",
        HALF_OPEN,
        post_header(1000) + b"{",
        WHOLE + HALF_OPEN,
    ],
    ids=["nothing", "half a header", "half a body", "half of the next header"],
)
def test_who_does_not_finish_a_request_is_closed(
    hasty: RunningService, start: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(hasty, start) as connection:
        answer = read_to_end(connection)
    until(lambda: not hasty.server.server_state.tasks)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert answer.startswith(b"HTTP/1.1 200") == start.startswith(
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r"
    )


@pytest.mark.parametrize(
    ("start", "answer"),
    [(HALF_OPEN, b""), (post_header(10**9), b"HTTP/1.1 413")],
    ids=["a header without end", "a body that was refused"],
)
def test_a_caller_that_goes_on_gets_no_more_time(hasty: RunningService, start: bytes, answer: bytes) -> None:
    with connect(hasty, start) as connection:
        closed = threading.Event()

        def drip() -> None:
            while not closed.wait(0.02):
                try:
                    connection.sendall(b"x" * 50)
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert read_to_end(connection)[:12] == answer
        closed.set()
        dripping.join()


def test_others_are_answered_while_many_are_half_open(hasty: RunningService) -> None:
    with half_open(hasty, 100) as waiting:
        assert httpx.get(f"{hasty.url}/healthz").is_success
        assert {read_to_end(connection) for connection in waiting} == {b""}
    until(lambda: not hasty.server.server_state.connections)


def test_an_upload_that_goes_on_is_not_cut(hasty: RunningService) -> None:
    """It takes twice the limit, and sends more than 500 bytes a second."""
    body = json.dumps({"spec": {"algorithm": "fedavg", "name": "x" * 14_000}}).encode()
    began = time.monotonic()
    with connect(hasty, post_header(len(body))) as connection:
        for at in range(0, len(body), 1000):
            connection.sendall(body[at : at + 1000])
            time.sleep(0.08)
        assert connection.recv(12) == b"HTTP/1.1 422"
    assert time.monotonic() - began > 2 * SHORT


def test_a_stream_is_not_cut(hasty: RunningService) -> None:
    job = hasty.running()
    with httpx.stream("GET", f"{hasty.url}{JOBS}/{job.id}/events", timeout=20) as response:
        lines = response.iter_lines()
        assert "event: state" in lines
        # Another caller, who came later, has been closed meanwhile.
        with connect(hasty) as later:
            assert read_to_end(later) == b""
        hasty.store.change_state(job.id, JobState.RUNNING, JobState.FAILED)
        assert any('"terminal":true' in line.replace(" ", "") for line in lines)


def test_the_oldest_that_waits_makes_room(tmp_path: Path) -> None:
    with running_service(tmp_path, limits=Limits(connections=3)) as service, half_open(service, 3) as waiting:
        assert httpx.get(f"{service.url}/healthz").is_success
        assert read_to_end(waiting[0]) == b""
        for connection in waiting[1:]:
            connection.sendall(b"Connection: close\r\n\r\n")
            assert read_to_end(connection).startswith(b"HTTP/1.1 200")


def test_a_caller_that_does_not_read_its_answer_makes_room(tmp_path: Path) -> None:
    large = b"GET /static/plotly.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running_service(tmp_path, limits=Limits(connections=1)) as service, connect(service, large):
        until(lambda: httpx.get(f"{service.url}/healthz").is_success)


def find_opened(service: RunningService) -> connections.OpenConnections:
    protocol: Any = service.server.config.http
    opened: connections.OpenConnections = protocol.keywords["opened"]
    return opened


def test_answers_that_nobody_reads_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "MOST_UNSENT", 1000)
    large = b"GET /static/plotly.min.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with running_service(tmp_path) as service, connect(service, large) as first:
        until(lambda: find_opened(service)._unsent.by_connection)
        whole = len(httpx.get(f"{service.url}/static/plotly.min.js").content)
        with connect(service, large) as second:
            until(lambda: any("do not read their answers" in line for line in caplog.messages))
            cut = [len(read_to_end(each)) < whole for each in (first, second)]
        assert cut == [True, False]
        until(lambda: not service.server.server_state.connections)
        unsent = find_opened(service)._unsent
        assert (unsent.by_connection, unsent.total) == ({}, 0)


def test_a_service_that_has_stopped_leaves_no_connection_and_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, closed = anyio.AsyncFile.aclose, list[bool]()

    async def close_late(file: anyio.AsyncFile[bytes]) -> None:
        await asyncio.sleep(0.2)
        await close(file)
        closed.append(file.closed)

    monkeypatch.setattr(anyio.AsyncFile, "aclose", close_late)
    large = b"GET /static/plotly.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running_service(tmp_path) as service, connect(service, large):
        until(lambda: find_opened(service)._unsent.by_connection)
        service.stop()
        assert not service.server.server_state.connections
        assert closed == [True]


def test_bodies_that_do_not_come_whole_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "MOST_UNREAD", 10_000)
    head = f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    part = head + b"Content-Length: 9000\r\n\r\n" + b" " * 8000
    with running_service(tmp_path) as service, connect(service, part) as first:
        until(lambda: find_opened(service)._unread.by_connection)
        with connect(service, part) as second:
            assert read_to_end(first) == b""
            until(lambda: any("do not send the rest of a body" in line for line in caplog.messages))
            # The one that goes on is read to its end, and answered.
            second.sendall(b" " * 998 + b"{}")
            assert second.recv(65536).startswith(b"HTTP/1.1 422")
        until(lambda: not service.server.server_state.connections)
        unread = find_opened(service)._unread
        assert (unread.by_connection, unread.total) == ({}, 0)


def test_a_log_is_read_no_faster_than_its_caller_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, taken = job_log._read_from, list[int]()

    def read_counted(path: Path, position: int, most: int = job_log.BLOCK_BYTES) -> bytes:
        taken.append(most)
        return read(path, position, most)

    monkeypatch.setattr(job_log, "_read_from", read_counted)
    with running_service(tmp_path) as service:
        job = service.ended()
        service.settings.log_path(job.id).write_bytes(b"a line\n" * (job_log.MOST_BYTES // 7))
        for query in ("from=0", "tail=100000", "follow=true&tail=100000"):
            taken.clear()
            address = f"GET {JOBS}/{job.id}/logs?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            with connect(service, address.encode()):
                until(lambda: taken)
                if query == "from=0":
                    until(lambda: find_opened(service)._unsent.by_connection)
                assert max(taken) <= job_log.BLOCK_BYTES
                assert sum(taken) < job_log.MOST_BYTES


def test_a_stream_makes_no_room(tmp_path: Path) -> None:
    with running_service(tmp_path, limits=Limits(connections=1)) as service:
        job = service.running()
        with httpx.stream("GET", f"{service.url}{JOBS}/{job.id}/events", timeout=20) as response:
            assert response.is_success
            refusal = httpx.get(f"{service.url}/healthz")
        assert (refusal.status_code, refusal.json()["code"]) == (503, "NOT_READY")
        assert refusal.headers["retry-after"] == "5"
        until(lambda: not service.server.server_state.connections)
        assert httpx.get(f"{service.url}/healthz").is_success


def test_one_address_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "is_loopback", lambda address: False)
    limits = Limits(connections_per_address=2)
    with running_service(tmp_path, limits=limits) as service:
        with half_open(service, 2) as waiting:
            refusal = httpx.get(f"{service.url}/healthz")
            assert (refusal.status_code, refusal.json()["code"]) == (429, "TOO_MANY_REQUESTS")
            assert "127.0.0.1" in refusal.json()["detail"]
            waiting[0].sendall(b"\r\n")
            assert waiting[0].recv(12) == b"HTTP/1.1 200"
        until(lambda: httpx.get(f"{service.url}/healthz").is_success)


def test_a_page_with_a_dozen_streams_is_far_from_the_limits() -> None:
    assert Limits().connections_per_address >= 20 * 12
    assert Limits().connections >= Limits().streams + 10 * Limits().connections_per_address / 2


def test_open_files_are_raised_to_what_the_system_allows() -> None:
    code = "from api.server.connections import raise_file_limit; print(raise_file_limit())"

    def allow_few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 700))

    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=allow_few)
    assert done.stdout.strip() == "700"
    assert raise_file_limit() <= connections.MOST_FILES


def test_few_open_files_lower_the_number_of_connections() -> None:
    opened = connections.OpenConnections(Limits(), 1024)
    assert opened.most == 1024 - connections.RESERVED_FILES
    assert connections.OpenConnections(Limits(), 65_536).most == Limits().connections


def test_failures_to_accept_are_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        loop = asyncio.get_running_loop()
        limit_accept_errors(loop)
        for _ in range(5000):
            loop.call_exception_handler({"message": ACCEPT_ERROR, "exception": OSError(24, "too many")})
        loop.call_exception_handler({"message": "something else"})
        while not any("cannot accept" in line for line in caplog.messages):
            await asyncio.sleep(0.05)

    with caplog.at_level(logging.WARNING):
        asyncio.run(fail())
    assert len(caplog.messages) == 2
    assert "something else" in caplog.messages[0]
    assert "(5000 in a second)" in caplog.messages[1]


@pytest.mark.slow
def test_with_few_open_files_the_service_still_answers(tmp_path: Path) -> None:
    """More half-open connections than the process may open files."""
    log = tmp_path / "log"
    server = Process(tmp_path / "home", files=700, log=log)
    address = ("127.0.0.1", httpx.URL(server.url).port or 0)
    try:
        with ExitStack() as stack:
            for _ in range(800):
                connection = stack.enter_context(socket.create_connection(address, timeout=20))
                connection.sendall(HALF_OPEN)
            assert httpx.get(f"{server.url}/healthz", timeout=20).is_success
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
    finally:
        server.end()
    assert len(log.read_text()) < 5000
