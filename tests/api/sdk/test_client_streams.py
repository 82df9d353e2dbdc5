"""Both clients where events, downloads and logs break off, fall silent or stay away: one body of tests."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from api.cli import job_progress
from api.sdk import calls, waiting
from api.sdk.transport import followers
from fedsim import FedSimClient
from fedsim.errors import JobNotFound, ServiceError, Unreachable
from jobs.store.states import JobState
from tests.api.blocking import Answering
from tests.api.browser import until
from tests.api.service import RunningService, a_job, a_round


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
    monkeypatch.setattr(followers, "PATIENCE", 0.2)
    client, _ = answering(a_job().model_dump(mode="json"), *[httpx.ConnectError("nobody there")] * 20)
    with pytest.raises(Unreachable, match="nobody there"):
        list(client.job("some").watch())


@pytest.mark.usefixtures("_no_pauses")
def test_waiting_outlasts_a_service_that_is_away_for_a_while(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "RETRY_SECONDS", 0.05)
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
    # A refusal of the moment is asked again after a pause, any other is told.
    client, asked = answering(job, 503, 429, httpx.Response(200, stream=Pieces(b"late")))
    assert client.job("some").artifact("report.json", tmp_path).read_bytes() == b"late"
    assert len(asked) == 4
    client, asked = answering(job, 404)
    with pytest.raises(ServiceError):
        client.job("some").artifact("report.json", tmp_path)
    assert len(asked) == 2


@pytest.mark.usefixtures("_no_pauses")
def test_a_watcher_outlasts_a_service_that_goes_after_the_last_event(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "RETRY_SECONDS", 0.05)
    job = a_job().model_dump(mode="json")
    away = [httpx.ConnectError("nobody there")] * 9
    client, _ = answering({**job, "state": "RUNNING"}, events(1, 6), *away, job)
    handle = client.job("some")
    assert len(list(handle.watch())) == 6
    assert handle.state is JobState.FAILED


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("answering", ["sync"], indirect=True)
def test_whoever_shows_a_job_outlasts_it_too(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "RETRY_SECONDS", 0.05)
    job = a_job().model_dump(mode="json")
    away = [httpx.ConnectError("nobody there")] * 9
    client, _ = answering({**job, "state": "RUNNING"}, events(1, 6), *away, job)
    handle = client.job("some")
    job_progress.follow_job(handle, job_progress.ProgressLines("x", 6))
    assert handle.state is JobState.FAILED


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
        client._connection.sender.http.event_hooks["request"].append(asked.append)
        lines = client.job(job.id).follow_logs()
        assert next(lines) == "one"

        def later() -> None:
            until(lambda: len(asked) >= 4)
            with path.open("ab") as file:
                file.write(b"f\nend\n")
            service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)

        thread = threading.Thread(target=later)
        thread.start()
        assert list(lines) == ["half", "end"]
        thread.join()
    # Of the log that is not followed, an answer is waited for as usual.
    assert calls.logs(job.id).patience is None


def test_a_log_of_a_service_that_stays_away_ends_with_an_error(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "PATIENCE", 0.1)
    answer = log(b"one\ntwo\n", position=0, error=LOST)
    client, _ = answering(a_job().model_dump(mode="json"), answer, *[httpx.ConnectError("nobody there")] * 9)
    lines = client.job("some").follow_logs()
    assert next(lines) == "one"
    with pytest.raises(Unreachable, match="nobody there"):
        list(lines)
