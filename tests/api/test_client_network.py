"""The SDK where the network or the service misbehaves: refusals, lost answers, broken streams."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from api import connection, following
from api.calls import ERRORS
from fedsim import FedSimClient
from fedsim.errors import (
    ArtifactNotFound,
    BadPageToken,
    Conflict,
    DataError,
    DoesNotFit,
    FedsimError,
    JobNotFound,
    RayUnavailable,
    ServiceError,
    SettingsError,
    Unreachable,
)
from jobs.records import Job
from jobs.states import JobState
from tests.api.blocking import client_maker
from tests.api.service import RunningService, a_round, running_service


def a_job() -> Job:
    fields = {"id": "0123456789ab", "name": "x", "state": "FAILED", "spec": {}, "rounds_total": 3}
    return Job.model_validate({**fields, "created_at": datetime.now(UTC)})


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PAUSES", (0.0, 0.0, 0.0))


Answer = int | Exception | dict[str, Any] | httpx.Response
Answering = Callable[..., tuple[FedSimClient, list[httpx.Request]]]


@pytest.fixture(params=["sync", "async"])
def answering(request: pytest.FixtureRequest) -> Iterator[Answering]:
    """Make a client whose network gives these answers, one after the other, and the list of what it asked."""
    with client_maker(request.param) as make:

        def made(*answers: Answer) -> tuple[FedSimClient, list[httpx.Request]]:
            asked: list[httpx.Request] = []
            left = list(answers)

            def answer(request: httpx.Request) -> httpx.Response:
                asked.append(request)
                return _response(left.pop(0))

            return make("http://service.example", transport=httpx.MockTransport(answer)), asked

        yield made


def _response(answer: Answer) -> httpx.Response:
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, httpx.Response):
        return answer
    if isinstance(answer, dict):
        return httpx.Response(answer.get("status", 200), json=answer)
    return httpx.Response(answer, json={"detail": "no", "code": "SOME"})


class BreakingTransport(httpx.BaseTransport):
    """Hangs up in the middle of every event stream, a few times."""

    def __init__(self, breaks: int) -> None:
        self.inner, self.breaks, self.streams = httpx.HTTPTransport(), breaks, 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self.inner.handle_request(request)
        if request.url.path.endswith("/events"):
            self.streams += 1
            if self.breaks > 0:
                self.breaks -= 1
                return httpx.Response(200, headers=response.headers, stream=self._half(response))
        return response

    def _half(self, response: httpx.Response) -> httpx.SyncByteStream:
        class Half(httpx.SyncByteStream):
            def __iter__(self) -> Iterator[bytes]:
                data = b"".join(iter(response.stream))  # type: ignore[arg-type]
                # Three whole events, and a piece of the fourth.
                whole = b"\n\n".join(data.split(b"\n\n")[:3]) + b"\n\n"
                yield whole + b"id: 77\nevent: rou"
                raise httpx.ReadError("the line is dead")

            def close(self) -> None:
                response.close()

        return Half()

    def close(self) -> None:
        self.inner.close()


def test_a_broken_stream_goes_on_where_it_broke(service: RunningService) -> None:
    job = service.ended(rounds=6)
    transport = BreakingTransport(breaks=2)
    with FedSimClient(service.url, transport=transport) as client:
        events = list(client.job(job.id).events())
    assert [event.id for event in events] == list(range(1, 11))
    assert transport.streams == 3


@pytest.mark.usefixtures("_no_pauses")
def test_a_broken_download_begins_again_and_leaves_no_half_file(
    service: RunningService, tmp_path: Path
) -> None:
    job = service.ended(rounds=1)
    whole = json.dumps({"weights": [0.5] * 100}).encode()

    class BreaksOff(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield whole[:10]
            raise httpx.ReadError("the line is dead")

    class Breaking(httpx.HTTPTransport):
        breaks = 1

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if "/artifacts/" not in request.url.path:
                return super().handle_request(request)
            self.breaks -= 1
            return (
                httpx.Response(200, stream=BreaksOff())
                if self.breaks >= 0
                else httpx.Response(200, content=whole)
            )

    transport = Breaking()
    with FedSimClient(service.url, transport=transport) as client:
        handle = client.job(job.id)
        assert handle.artifact("report.json", tmp_path).read_bytes() == whole
        transport.breaks = 99
        with pytest.raises(Unreachable):
            handle.artifact("report.json", tmp_path / "other.json")
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def test_a_service_that_stays_away_is_unreachable(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PATIENCE", 0.3)
    job = service.running()

    class Dead(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/events"):
                raise httpx.ConnectError("nobody there")
            return super().handle_request(request)

    with FedSimClient(service.url, transport=Dead()) as client, pytest.raises(Unreachable, match="nobody"):
        list(client.job(job.id).watch())


def test_watching_survives_another_server_in_its_place(tmp_path: Path) -> None:
    with running_service(tmp_path) as first:
        job = first.running()
        first.store.add_round(job.id, a_round(1))
        client = FedSimClient(first.url)
        rounds = client.job(job.id).watch()
        assert next(rounds) == a_round(1)
        port = first.port
    with running_service(tmp_path, port=port) as second:
        second.store.add_round(job.id, a_round(2))
        second.store.advance(job.id, JobState.RUNNING, JobState.SUCCEEDED)
        assert list(rounds) == [a_round(2)]
        client.close()


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("DOES_NOT_FIT", 422, DoesNotFit),
        ("BAD_DATA", 422, DataError),
        ("JOB_NOT_FOUND", 404, JobNotFound),
        ("ARTIFACT_NOT_FOUND", 404, ArtifactNotFound),
        ("CONFLICT", 409, Conflict),
        ("BAD_PAGE_TOKEN", 400, BadPageToken),
        ("RAY_UNAVAILABLE", 503, RayUnavailable),
        ("FORBIDDEN", 403, ServiceError),
    ],
)
def test_codes_become_the_errors_they_stand_for(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, code: str, status: int, kind: type[FedsimError]
) -> None:
    monkeypatch.setattr(connection, "PAUSES", ())
    client, _ = answering({"status": status, "code": code, "detail": "the arithmetic", "hint": "less"})
    with pytest.raises(kind) as caught:
        client.version()
    assert (caught.value.code, caught.value.message, caught.value.hint) == (code, "the arithmetic", "less")
    assert ERRORS.get(code, ServiceError) is type(caught.value)


@pytest.mark.usefixtures("_no_pauses")
def test_what_may_be_repeated_is_repeated(answering: Answering) -> None:
    client, asked = answering(httpx.ConnectError("no"), 503, httpx.ReadTimeout("late"), {"api": "v1"})
    assert client.version() == {"api": "v1"}
    assert len(asked) == 4


def test_a_service_that_says_when_to_come_back_is_obeyed(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PAUSES", (0.05, 0.0))
    later = httpx.Response(429, headers={"Retry-After": "1"}, json={"detail": "slower", "code": "SLOW"})
    client, asked = answering(503, later, {"api": "v1"})
    began = time.monotonic()
    assert client.version() == {"api": "v1"}
    assert time.monotonic() - began > 1
    assert len(asked) == 3
    tomorrow = httpx.Response(503, headers={"Retry-After": "86400"}, json={"detail": "closed", "code": "NO"})
    client, asked = answering(tomorrow)
    with pytest.raises(ServiceError, match="closed"):
        client.version()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("7", 7, 7),
        ("", 0, 0),
        ("soon", 0, 0),
        ("-3", 0, 0),
        (format_datetime(datetime.now(UTC) + timedelta(seconds=3000)), 2900, 3000),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
    ],
)
def test_when_to_come_back_is_read_as_seconds_or_as_a_date(text: str, least: float, most: float) -> None:
    found = connection.retry_after(httpx.Response(429, headers={"Retry-After": text}))
    assert least <= found <= most


@pytest.mark.usefixtures("_no_pauses")
def test_what_may_not_be_repeated_is_sent_once(answering: Answering) -> None:
    for name in ("resume", "delete"):
        job = a_job().model_dump(mode="json")
        client, asked = answering(job, httpx.ReadError("lost"), 200)
        handle = client.job("some")
        with pytest.raises(Unreachable):
            getattr(handle, name)()
        assert len(asked) == 2


@pytest.mark.usefixtures("_no_pauses")
def test_repeating_ends(answering: Answering) -> None:
    client, asked = answering(*[httpx.ConnectError("no")] * 9)
    with pytest.raises(Unreachable, match="no service answers at"):
        client.version()
    assert len(asked) == 4
    client, asked = answering(*[503] * 9)
    with pytest.raises(ServiceError) as caught:
        client.version()
    assert (caught.value.status, len(asked)) == (503, 4)


@pytest.mark.usefixtures("_no_pauses")
def test_a_submission_is_repeated_with_one_key(service: RunningService) -> None:
    keys: list[str] = []

    class LosesTheFirstAnswer(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = super().handle_request(request)
            keys.append(request.headers["idempotency-key"])
            if len(keys) == 1:
                response.read()
                raise httpx.ReadError("lost")
            return response

    with FedSimClient(service.url, transport=LosesTheFirstAnswer()) as client:
        job = client.submit({"algorithm": "fedavg", "name": "only once"})
    assert len(keys) == 2
    assert len(set(keys)) == 1
    named = [each.id for each in service.store.list(limit=500).jobs if each.name == "only once"]
    assert named == [job.id]


@pytest.mark.parametrize("status", [200, 404])
def test_a_stranger_at_the_address_is_recognised(answering: Answering, status: int) -> None:
    client, _ = answering(httpx.Response(status, html="<h1>Not here</h1>"))
    with pytest.raises(ServiceError, match=r"not as fedsim does|cannot be read") as caught:
        client.version()
    assert "fedsim" in str(caught.value)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_cannot_be_an_address_is_said_at_once(kind: str) -> None:
    with client_maker(kind) as make:
        for url in ("localhost:8000", "ftp://there", "http://", "nonsense"):
            with pytest.raises(SettingsError, match="no address"):
                make(url)
        with pytest.raises(SettingsError, match="token"):
            make(token="not\na token")


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FedSimClient(service.url) as client:
        assert client.version()["api"] == "v1"
