"""The SDK where the network or the service misbehaves: refusals, lost answers, broken streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from api.sdk.transport import followers
from api.sdk.transport.followers import EventFollower
from fedsim import FedSimClient
from fedsim.errors import Unreachable
from jobs.store.records import Job
from jobs.store.states import JobState
from tests.api.service import RunningService, a_round, running_service


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


def test_a_service_that_stays_away_is_unreachable(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "PATIENCE", 0.3)
    job = service.running()

    class Dead(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/events"):
                raise httpx.ConnectError("nobody there")
            return super().handle_request(request)

    with (
        FedSimClient(service.url, transport=Dead()) as client,
        pytest.raises(Unreachable, match="nobody"),
    ):
        list(client.job(job.id).watch())


def test_a_service_that_says_that_it_is_there_has_not_stayed_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two breaks with two quiet minutes in between are not two minutes of silence."""
    now = 0.0
    monkeypatch.setattr(followers.time, "monotonic", lambda: now)
    watcher = EventFollower("http://here", "some", after=0)
    watcher.note_failure(httpx.ReadError("the line is dead"))
    watcher.next_pause()
    watcher.begin_answer(httpx.Response(200))
    for _ in range(8):
        now += 15.0
        assert list(watcher.read_block(b": keep-alive\n")) == []
    watcher.note_failure(httpx.ReadError("the line is dead"))
    assert watcher.next_pause() == pytest.approx(0.1)
    now += 61.0
    watcher.note_failure(httpx.ReadError("the line is dead"))
    with pytest.raises(Unreachable, match="has not answered for 60 s"):
        watcher.next_pause()


@pytest.mark.usefixtures("_no_pauses")
def test_a_store_that_is_away_for_a_moment_is_waited_for(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PostgreSQL when it is started again: that is 503, and whoever asks for the job asks once more."""
    job, away = service.ended(rounds=2), 2
    get = service.store.get

    def sometimes(job_id: str) -> Job:
        nonlocal away
        if away:
            away -= 1
            raise OperationalError("SELECT", {}, Exception("the connection is closed"))
        return get(job_id)

    monkeypatch.setattr(service.store, "get", sometimes)
    answer = httpx.get(f"{service.url}/api/v1/jobs/{job.id}")
    assert (answer.status_code, answer.json()["code"]) == (503, "NOT_READY")
    with FedSimClient(service.url) as client:
        assert [record.round for record in client.job(job.id).watch()] == [1, 2]
    assert away == 0


def test_watching_survives_another_server_in_its_place(tmp_path: Path) -> None:
    with running_service(tmp_path) as first:
        job = first.running()
        first.store.add_round(job.id, a_round(1))
        client = FedSimClient(first.url)
        rounds, log = client.job(job.id).watch(), client.job(job.id).follow_logs()
        assert next(rounds) == a_round(1)
        path = first.settings.log_path(job.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one\ntwo\n")
        assert next(log) == "one"
        port = first.port
    with running_service(tmp_path, port=port) as second:
        second.store.add_round(job.id, a_round(2))
        second.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
        path.write_text("one\ntwo\nthree\n")
        assert list(rounds) == [a_round(2)]
        assert list(log) == ["two", "three"]
        client.close()


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


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FedSimClient(service.url) as client:
        assert client.version()["api"] == "v1"
