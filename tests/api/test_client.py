"""The SDK against a real server; a counting or breaking transport where the network has to misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api import client as client_module
from api import job_handle
from api.calls import ERRORS
from fedsim import FedSimClient, JobSpec
from fedsim.errors import (
    BadPageToken,
    Conflict,
    DataError,
    DoesNotFit,
    FedsimError,
    JobNotFound,
    ServiceError,
    SpecError,
    Unreachable,
)
from jobs.spec import parse_spec
from jobs.states import JobState
from tests.api.service import RunningService, a_round, running_service


@pytest.fixture
def client(service: RunningService) -> Iterator[FedSimClient]:
    with FedSimClient(service.url) as opened:
        yield opened


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PAUSES", (0.0, 0.0, 0.0))


def answering(*answers: int | Exception | dict[str, Any]) -> tuple[FedSimClient, list[httpx.Request]]:
    """Make a client whose network gives these answers, one after the other, and the list of what it asked."""
    asked: list[httpx.Request] = []
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        following = left.pop(0)
        if isinstance(following, Exception):
            raise following
        if isinstance(following, dict):
            return httpx.Response(following.get("status", 200), json=following)
        return httpx.Response(following, json={"detail": "no", "code": "SOME"})

    return FedSimClient("http://service.example", transport=httpx.MockTransport(answer)), asked


@pytest.mark.parametrize("kind", ["mapping", "file", "preset", "JobSpec"])
def test_a_spec_is_given_in_any_form(client: FedSimClient, tmp_path: Path, kind: str) -> None:
    data = {"algorithm": {"name": "fedprox", "mu": 0.1}, "rounds": 9}
    file = tmp_path / "my.yaml"
    file.write_text("algorithm: {name: fedprox, mu: 0.1}\nrounds: 9\n")
    spec: Any = {"mapping": data, "file": file, "preset": "demo", "JobSpec": parse_spec(data)}[kind]
    job = client.submit(spec, set={"rounds": 4, "local.lr": 1e-5, "name": "1e-5"}, labels={"kind": kind})
    assert job.state is JobState.QUEUED
    stored = parse_spec(job.job.spec)
    assert isinstance(stored, JobSpec)
    assert (stored.rounds, stored.local.lr, stored.name) == (4, 1e-5, "1e-5")
    assert stored.algorithm.name == ("fedavg" if kind == "preset" else "fedprox")
    assert [found.id for found in client.jobs(label=f"kind={kind}")] == [job.id]


def test_every_fault_of_a_spec_comes_through(client: FedSimClient) -> None:
    with pytest.raises(SpecError) as caught:
        client.submit({"algorithm": "fedavg", "rounds": 0, "modle": "mlp"})
    faults = {fault.path: fault for fault in caught.value.errors}
    assert set(faults) == {"rounds", "modle"}
    assert faults["rounds"].value == 0
    assert "model" in faults["modle"].hint


def test_one_key_is_one_job(client: FedSimClient) -> None:
    spec = {"algorithm": "fedavg"}
    first = client.submit(spec, idempotency_key="sdk-key")
    assert client.submit(spec, idempotency_key="sdk-key").id == first.id
    assert client.submit(spec).id != first.id
    with pytest.raises(Conflict, match="sdk-key"):
        client.submit(spec, set={"seed": 5}, idempotency_key="sdk-key")


def test_watching_yields_every_round_once(service: RunningService, client: FedSimClient) -> None:
    job = service.running()
    service.store.add_round(job.id, a_round(1))

    def work() -> None:
        for number in (2, 3):
            time.sleep(0.1)
            service.store.add_round(job.id, a_round(number))
        service.store.advance(job.id, JobState.RUNNING, JobState.SUCCEEDED)

    worker = threading.Thread(target=work)
    worker.start()
    handle = client.job(job.id)
    records = list(handle.watch())
    worker.join()
    assert records == [a_round(1), a_round(2), a_round(3)]
    assert handle.state is JobState.SUCCEEDED
    assert list(handle.watch()) == records


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
    monkeypatch.setattr(job_handle, "PATIENCE", 0.3)
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


def test_waiting_ends_with_the_job_or_with_the_time(service: RunningService, client: FedSimClient) -> None:
    handle = client.job(service.running().id)
    with pytest.raises(TimeoutError, match="RUNNING"):
        handle.wait(timeout=0.2)
    service.store.advance(handle.id, JobState.RUNNING, JobState.FAILED, message="no data")
    assert handle.wait(timeout=5) is JobState.FAILED
    assert handle.job.message == "no data"


def test_rounds_are_a_sequence_and_a_file(
    service: RunningService, client: FedSimClient, tmp_path: Path
) -> None:
    rounds = client.job(service.ended(rounds=4).id).rounds()
    assert len(rounds) == 4
    assert rounds[-1] == a_round(4)
    assert list(rounds[1:3]) == [a_round(2), a_round(3)]
    assert rounds.to_csv(tmp_path / "rounds.csv").read_text().count("\n") == 5


def test_long_jobs_come_in_several_pages(service: RunningService, client: FedSimClient) -> None:
    job = service.ended(rounds=1203)
    assert [record.round for record in client.job(job.id).rounds(after=99)] == list(range(100, 1204))


def test_logs_cancel_and_delete(service: RunningService, client: FedSimClient) -> None:
    handle = client.job(service.running().id)
    service.settings.log_path(handle.id).write_text("one\ntwo\nthree\n")
    assert handle.logs(tail=2) == "two\nthree\n"
    with pytest.raises(Conflict):
        handle.delete()
    assert handle.cancel() is JobState.CANCELLING
    service.store.advance(handle.id, JobState.CANCELLING, JobState.CANCELLED)
    assert list(handle.follow_logs(tail=1)) == ["three"]
    handle.delete()
    with pytest.raises(JobNotFound):
        client.job(handle.id)


def test_listing_follows_the_pages(service: RunningService, client: FedSimClient) -> None:
    made = [service.queued(name="many").id for _ in range(60)]
    found = [handle.id for handle in client.jobs(state="QUEUED") if handle.job.name == "many"]
    assert found == made[::-1]


def test_the_catalogue(client: FedSimClient) -> None:
    assert "fedavg" in {entry["name"] for entry in client.algorithms()}
    assert "mlp" in {entry["name"] for entry in client.models()}
    assert "digits" in {entry["name"] for entry in client.datasets()}
    assert "dirichlet" in {entry["name"] for entry in client.partitions()}
    assert "demo" in {entry["name"] for entry in client.presets()}
    assert client.schema()["type"] == "object"
    assert client.version()["api"] == "v1"


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("DOES_NOT_FIT", 422, DoesNotFit),
        ("BAD_DATA", 422, DataError),
        ("JOB_NOT_FOUND", 404, JobNotFound),
        ("CONFLICT", 409, Conflict),
        ("BAD_PAGE_TOKEN", 400, BadPageToken),
        ("FORBIDDEN", 403, ServiceError),
    ],
)
def test_codes_become_the_errors_they_stand_for(code: str, status: int, kind: type[FedsimError]) -> None:
    client, _ = answering({"status": status, "code": code, "detail": "the arithmetic", "hint": "less"})
    with pytest.raises(kind) as caught:
        client.version()
    assert (caught.value.code, caught.value.message, caught.value.hint) == (code, "the arithmetic", "less")
    assert ERRORS.get(code, ServiceError) is type(caught.value)


def test_a_refused_token_says_how_to_give_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_service(tmp_path, token="right") as service:
        with FedSimClient(service.url) as client, pytest.raises(ServiceError, match="FEDSIM_TOKEN") as caught:
            client.version()
        assert caught.value.status == 401
        monkeypatch.setenv("FEDSIM_TOKEN", "right")
        with FedSimClient(service.url) as client:
            assert client.version()["api"] == "v1"
        with FedSimClient(service.url, token="wrong") as client, pytest.raises(ServiceError):
            client.version()


@pytest.mark.usefixtures("_no_pauses")
def test_what_may_be_repeated_is_repeated() -> None:
    client, asked = answering(httpx.ConnectError("no"), 503, httpx.ReadTimeout("late"), {"api": "v1"})
    assert client.version() == {"api": "v1"}
    assert len(asked) == 4


@pytest.mark.usefixtures("_no_pauses")
def test_repeating_ends() -> None:
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


@pytest.mark.usefixtures("_no_pauses")
def test_a_delete_is_not_repeated(service: RunningService) -> None:
    job = service.ended()

    class LosesDeletes(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "DELETE":
                raise httpx.ReadError("lost")
            return super().handle_request(request)

    with FedSimClient(service.url, transport=LosesDeletes()) as client:
        handle = client.job(job.id)
        with pytest.raises(Unreachable):
            handle.delete()


def test_a_stranger_at_the_address_is_recognised() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(404, html="<h1>Not here</h1>"))
    with (
        FedSimClient("http://stranger.example", transport=transport) as client,
        pytest.raises(ServiceError, match="not as fedsim does"),
    ):
        client.version()


def test_the_address_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FedSimClient().url == "http://127.0.0.1:8000"
    monkeypatch.setenv("FEDSIM_URL", "http://cluster.example:9000/")
    assert FedSimClient().url == "http://cluster.example:9000"
    assert FedSimClient("http://other.example").url == "http://other.example"
    assert (
        repr(FedSimClient("http://other.example", token="hidden")) == "FedSimClient('http://other.example')"
    )
