"""Both clients where answers are refusals, late, cut off or of somebody else: one body of tests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from api import calls, connection, flows, following
from api.refusals import ERRORS
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
from tests.api.browser import until
from tests.api.service import RunningService, a_round


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
    ("text", "seconds"), [("7", 7), ("", 0), ("soon", 0), ("-3", 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)]
)
def test_when_to_come_back_is_read_as_seconds_or_as_a_date(text: str, seconds: float) -> None:
    assert connection.retry_after(httpx.Response(429, headers={"Retry-After": text})) == seconds


def test_a_date_to_come_back_at_is_so_many_seconds_from_now() -> None:
    # Made here and not among the parameters: the workers that share the suite must find the same names.
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=9000))
    found = connection.retry_after(httpx.Response(429, headers={"Retry-After": date}))
    assert 8000 <= found <= 9000


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


@pytest.mark.parametrize("status", [200, 404])
def test_a_stranger_at_the_address_is_recognised(answering: Answering, status: int) -> None:
    client, _ = answering(httpx.Response(status, html="<h1>Not here</h1>"))
    with pytest.raises(ServiceError, match=r"not as fedsim does|cannot be read") as caught:
        client.version()
    assert "fedsim" in str(caught.value)


def test_certificates_are_verified_wherever_there_are_any() -> None:
    for url in (
        "http://127.0.0.1:8000",
        "https://127.0.0.1:8000",
        "http://far.example",
        "https://far.example",
    ):
        options = connection.address(url, None, 30.0).options
        assert options["verify"] == (url != "http://127.0.0.1:8000")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_cannot_be_an_address_is_said_at_once(kind: str) -> None:
    with client_maker(kind) as make:
        for url in ("localhost:8000", "ftp://there", "http://", "nonsense"):
            with pytest.raises(SettingsError, match="no address"):
                make(url)
        with pytest.raises(SettingsError, match="token"):
            make(token="not\na token")


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in pieces, for both clients; ends with an error where one is given."""

    def __init__(self, *pieces: bytes, error: Exception | None = None) -> None:
        self.pieces, self.error = pieces, error

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        if self.error is not None:
            raise self.error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def events(first: int, last: int, rest: bytes = b"", error: Exception | None = None) -> httpx.Response:
    """Answer with the events of these ids, each of the round with its number; job ends with the sixth."""
    rounds = {number: a_round(number).model_dump(mode="json") for number in range(first, last + 1)}
    data = [{**record, "terminal": number == 6} for number, record in rounds.items()]
    texts = [f"id: {each['round']}\nevent: round\ndata: {json.dumps(each)}\n\n".encode() for each in data]
    return httpx.Response(200, stream=Pieces(b": hello\n\n", *texts, rest, error=error))


LOST = httpx.ReadError("the line is dead")


def test_a_broken_event_stream_goes_on_where_it_broke(answering: Answering) -> None:
    client, asked = answering(
        a_job().model_dump(mode="json"),
        events(1, 3, b"id: 77\nevent: rou", LOST),
        httpx.ConnectError("nobody there"),
        503,
        events(3, 4, b"event: note\ndata: {}\n\n"),
        events(5, 6),
        a_job().model_dump(mode="json"),
    )
    assert [record.round for record in client.job("some").watch()] == [1, 2, 3, 4, 5, 6]
    last_ids = [request.headers["last-event-id"] for request in asked[1:-1]]
    assert last_ids == ["0", "3", "3", "3", "4"]


def test_a_refused_event_stream_is_not_asked_for_again(answering: Answering) -> None:
    client, asked = answering(a_job().model_dump(mode="json"), 401)
    with pytest.raises(ServiceError) as caught:
        list(client.job("some").events())
    assert (caught.value.status, len(asked)) == (401, 2)


def test_a_watcher_gives_up_after_its_patience(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PATIENCE", 0.2)
    client, _ = answering(a_job().model_dump(mode="json"), *[httpx.ConnectError("nobody there")] * 20)
    with pytest.raises(Unreachable, match="nobody there"):
        list(client.job("some").watch())


@pytest.mark.usefixtures("_no_pauses")
def test_waiting_outlasts_a_service_that_is_away_for_a_while(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "AGAIN", 0.05)
    running = {**a_job().model_dump(mode="json"), "state": "RUNNING"}
    away = [httpx.ConnectError("nobody there")] * 9
    client, _ = answering(running, running, *away, 503, a_job().model_dump(mode="json"))
    assert client.job("some").wait() is JobState.FAILED
    client, asked = answering(running, *away)
    with pytest.raises(Unreachable, match="nobody there"):
        client.job("some").wait(timeout=0)
    assert len(asked) == 5
    client, _ = answering(running, running, {"status": 404, "code": "JOB_NOT_FOUND", "detail": "deleted"})
    with pytest.raises(JobNotFound, match="deleted"):
        client.job("some").wait()


@pytest.mark.usefixtures("_no_pauses")
def test_a_broken_download_begins_again_and_leaves_no_half_file(answering: Answering, tmp_path: Path) -> None:
    job = a_job().model_dump(mode="json")

    def broken() -> httpx.Response:
        return httpx.Response(200, stream=Pieces(b"half", error=LOST))

    client, asked = answering(job, broken(), httpx.Response(200, stream=Pieces(b"wh", b"ole")))
    assert client.job("some").artifact("report.json", tmp_path).read_bytes() == b"whole"
    assert len(asked) == 3
    client, _ = answering(job, *[broken() for _ in range(4)])
    with pytest.raises(Unreachable, match="the line is dead"):
        client.job("some").artifact("report.json", tmp_path / "other.json")
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def log(*pieces: bytes, position: int, error: Exception | None = None) -> httpx.Response:
    """Answer with these pieces of a log."""
    return httpx.Response(200, headers={"Log-Position": str(position)}, stream=Pieces(*pieces, error=error))


def test_a_broken_log_goes_on_where_it_broke(answering: Answering) -> None:
    job = a_job().model_dump(mode="json")
    client, asked = answering(
        *(job, log(b"one\nt", b"wo\nthr", position=40, error=LOST), httpx.ConnectError("nobody there")),
        *(log(b"three\n", position=48), {**job, "state": "RUNNING"}),
        *(log(b"four", position=54), job, log(b"four\n\xc3\xa9nd", position=54), job),
    )
    assert list(client.job("some").follow_logs(9)) == ["one", "two", "three", "four", "énd"]
    queries = [request.url.params.get("from") for request in asked if request.url.path.endswith("/logs")]
    assert queries == [None, "48", "48", "54", "54"]


def test_a_log_that_is_silent_is_asked_for_anew(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nobody on the way, as a proxy, has a silent connection to cut, or has cut it unnoticed."""
    job = service.running(name="thinks for long")
    path = service.settings.log_path(job.id)
    path.write_bytes(b"one\nhal")
    asked: list[httpx.Request] = []
    monkeypatch.setattr(calls, "LOG_SILENCE", 0.3)
    with FedSimClient(service.url) as client:
        client._http.event_hooks["request"].append(asked.append)
        lines = client.job(job.id).follow_logs()
        assert next(lines) == "one"

        def later() -> None:
            until(lambda: len(asked) >= 4)
            path.write_bytes(b"one\nhalf\nend\n")
            service.store.advance(job.id, JobState.RUNNING, JobState.SUCCEEDED)

        thread = threading.Thread(target=later)
        thread.start()
        assert list(lines) == ["half", "end"]
        thread.join()
    # Of the log that is not followed, an answer is waited for as usual.
    assert calls.logs(job.id).patience is None


def test_a_log_of_a_service_that_stays_away_ends_with_an_error(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PATIENCE", 0.1)
    answer = log(b"one\ntwo\n", position=0, error=LOST)
    client, _ = answering(a_job().model_dump(mode="json"), answer, *[httpx.ConnectError("nobody there")] * 9)
    lines = client.job("some").follow_logs()
    assert next(lines) == "one"
    with pytest.raises(Unreachable, match="nobody there"):
        list(lines)
