"""The service's own log: one JSON object a line, a request's id in all of them, and no secrets."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.cli.commands.serve import announce_url
from api.server import service_log
from fedsim.base.secret_urls import HIDDEN
from fedsim.errors import SettingsError
from jobs.settings import Settings
from tests.api.service import RunningService, running_service

JOBS = "/api/v1/jobs"
TOKEN = "a-token-that-no-log-may-hold"


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root, names = logging.getLogger(), ("fedsim", "fedsim.access")
    handlers, levels = list(root.handlers), {name: logging.getLogger(name).level for name in names}
    level = root.level
    yield
    logging.getLogger("asyncio").removeFilter(service_log.is_news)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in names:
        logging.getLogger(name).setLevel(levels[name])


def written(settings: Settings) -> io.StringIO:
    stream = io.StringIO()
    service_log.install_log_handler(settings, stream)
    return stream


def lines_of(stream: io.StringIO, requests: int = 0) -> list[dict[str, Any]]:
    """What was logged, once so many requests are: a caller has its answer a moment before."""
    end = time.monotonic() + 10
    while True:
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        if sum(line["logger"] == "fedsim.access" for line in lines) >= requests:
            return lines
        assert time.monotonic() < end, lines
        time.sleep(0.01)


@pytest.mark.usefixtures("logging_as_before")
def test_a_caller_who_has_gone_is_no_line_for_each_piece(tmp_path: Path) -> None:
    """asyncio itself writes its warning here, to a transport whose other end is closed."""
    stream = written(Settings(home=tmp_path, log_format="json"))

    async def send_to_nobody() -> None:
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        theirs.close()
        for _ in range(100):
            transport.write(b"piece")
        logging.getLogger("asyncio").warning("something else")

    asyncio.run(send_to_nobody())
    assert [line["message"] for line in map(json.loads, stream.getvalue().splitlines())] == ["something else"]


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("form", ["json", "text"])
def test_the_token_is_in_no_log_whatever_happens(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = written(Settings(home=tmp_path, token=TOKEN, log_format=form))

    def broken(job_id: str) -> None:
        raise ZeroDivisionError(f"somebody asked with {TOKEN}")

    with running_service(tmp_path, token=TOKEN) as service, httpx.Client(timeout=60) as http:
        monkeypatch.setattr(service.store, "get", broken)
        right = {"Authorization": f"Bearer {TOKEN}"}
        for headers in (
            {},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": f"Bearer {TOKEN}x"},
            right,
        ):
            http.get(f"{service.url}{JOBS}", headers=headers)
            http.get(f"{service.url}{JOBS}?token={TOKEN}", headers=headers)
            http.get(f"{service.url}{JOBS}/{TOKEN}", headers=headers)
            http.get(f"{service.url}{JOBS}/0000", headers=headers)
            http.get(f"{service.url}{JOBS}", headers={**headers, "X-Request-Id": TOKEN + "!"})
            http.get(f"{service.url}{JOBS}", headers={**headers, "Host": TOKEN, "Origin": TOKEN})
            http.post(f"{service.url}{JOBS}", headers=headers, json={"spec": {TOKEN: TOKEN}})
        logging.getLogger("fedsim.api").error("settings: %r, token %s", service.settings, TOKEN)
    assert "ZeroDivisionError" in stream.getvalue()
    assert HIDDEN in stream.getvalue()
    assert TOKEN not in stream.getvalue()


@pytest.mark.usefixtures("logging_as_before")
def test_passwords_of_urls_are_hidden_in_every_spelling(tmp_path: Path) -> None:
    url = "postgresql://ada:p%22ss@db/fedsim"
    settings = Settings(tmp_path, url, "s3://key:hidden-too@bucket?secret=abc-xyz", log_format="json")
    stream = written(settings)
    logging.getLogger("fedsim.api").warning("cannot reach %s nor %s (%s)", url, settings.storage, 'p"ss')
    [line] = lines_of(stream)
    shown = "cannot reach postgresql://ada:***@db/fedsim nor s3://key:***@bucket?secret=*** (***)"
    assert line["message"] == shown


@pytest.mark.usefixtures("logging_as_before")
def test_where_the_service_answers_is_a_line_of_a_json_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(tmp_path, log_format="json")
    stream = written(settings)
    announce_url(settings, "http://127.0.0.1:1")
    announce_url(Settings(tmp_path), "http://127.0.0.1:2")
    [line] = lines_of(stream)
    assert "fedsim answers at http://127.0.0.1:1 " in line["message"]
    assert capsys.readouterr().err.startswith("fedsim answers at http://127.0.0.1:2 ")


@pytest.fixture
def quiet(logging_as_before: None, tmp_path: Path) -> Iterator[tuple[RunningService, io.StringIO]]:
    stream = written(Settings(home=tmp_path, log_format="json"))
    with running_service(tmp_path) as service:
        yield service, stream


def test_every_request_is_one_line_with_its_id(quiet: tuple[RunningService, io.StringIO]) -> None:
    service, stream = quiet
    answer = httpx.get(f"{service.url}{JOBS}/0000", headers={"X-Request-Id": "my-own.id_7"})
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "my-own.id_7"
    made = httpx.get(f"{service.url}{JOBS}?label=a%0Ab", headers={"X-Request-Id": "not one\tof ours"})
    assert len(made.headers["x-request-id"]) == 16
    httpx.get(f"{service.url}{JOBS}/%0Afake%20line")
    lines = [line for line in lines_of(stream, 3) if line["logger"] == "fedsim.access"]
    assert [line["request_id"] for line in lines[:2]] == ["my-own.id_7", made.headers["x-request-id"]]
    first = lines[0]
    assert first["message"] == f"GET {JOBS}/0000 404"
    assert (first["method"], first["path"], first["status"]) == ("GET", f"{JOBS}/0000", 404)
    assert (first["route"], first["client"], first["level"]) == (
        "/api/v1/jobs/{job_id}",
        "127.0.0.1",
        "INFO",
    )
    assert first["ms"] > 0
    # A query is not logged; a line cannot be forged.
    assert [line["path"] for line in lines[1:]] == [JOBS, f"{JOBS}/%0Afake%20line"]


def test_a_failure_is_found_by_the_id_in_its_answer(
    quiet: tuple[RunningService, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, stream = quiet

    def broken(job_id: str) -> None:
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr(service.store, "get", broken)
    answer = httpx.get(f"{service.url}{JOBS}/0000")
    assert answer.status_code == 500
    assert "deep inside" not in answer.text
    found = [line for line in lines_of(stream, 1) if line.get("request_id") == answer.json()["request_id"]]
    assert [line["logger"] for line in found] == ["fedsim.api", "fedsim.access"]
    assert "deep inside" in found[0]["trace"]
    assert {line["level"] for line in found} == {"ERROR"}


def test_probes_are_not_worth_a_line(quiet: tuple[RunningService, io.StringIO]) -> None:
    service, stream = quiet
    for path in ("/healthz", "/readyz", "/metrics"):
        assert httpx.get(f"{service.url}{path}").is_success
    assert httpx.get(f"{service.url}{JOBS}").is_success
    assert [line["path"] for line in lines_of(stream, 1)] == [JOBS]


def test_the_format_is_one_of_two() -> None:
    assert Settings.from_env({}).log_format == "text"
    assert Settings.from_env({"FEDSIM_LOG_FORMAT": "json"}).log_format == "json"
    with pytest.raises(SettingsError, match="FEDSIM_LOG_FORMAT is 'xml'"):
        Settings.from_env({"FEDSIM_LOG_FORMAT": "xml"})
