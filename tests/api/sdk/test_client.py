"""Both clients, by one body of tests: one over a socket, the asynchronous one in process, on one store."""

from __future__ import annotations

import inspect
import json
import math
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.sdk.async_client import AsyncFedSimClient, AsyncJobHandle
from api.sdk.client import JobHandle
from api.sdk.rounds import Rounds
from api.sdk.sweep_handle import AsyncSweepHandle, SweepHandle
from fedsim import FedSimClient, JobSpec
from fedsim.errors import (
    ArtifactNotFound,
    Conflict,
    JobNotFound,
    RequestError,
    ServiceError,
    SpecError,
)
from jobs.spec import parse_spec
from jobs.store.states import JobState
from tests.api.blocking import client_of
from tests.api.service import RunningService, a_round, running_service


@pytest.fixture(params=["sync", "async"])
def client(service: RunningService, request: pytest.FixtureRequest) -> Iterator[FedSimClient]:
    with client_of(request.param, service) as opened:
        yield opened


@pytest.mark.parametrize("kind", ["mapping", "file", "preset", "JobSpec"])
def test_a_spec_is_given_in_any_form(client: FedSimClient, tmp_path: Path, kind: str) -> None:
    data = {"algorithm": {"name": "fedprox", "mu": 0.1}, "rounds": 9}
    file = tmp_path / "my.yaml"
    file.write_text("algorithm: {name: fedprox, mu: 0.1}\nrounds: 9\n")
    spec: Any = {"mapping": data, "file": file, "preset": "demo", "JobSpec": parse_spec(data)}[kind]
    # The clients before this one had other jobs in the same service.
    form = secrets.token_hex(4)
    labels = {"form": form}
    job = client.submit(spec, set={"rounds": 4, "local.lr": 1e-5, "name": "1e-5"}, labels=labels)
    assert job.state is JobState.QUEUED
    stored = parse_spec(job.job.spec)
    assert isinstance(stored, JobSpec)
    assert (stored.rounds, stored.local.lr, stored.name) == (4, 1e-5, "1e-5")
    assert stored.algorithm.name == ("fedavg" if kind == "preset" else "fedprox")
    assert [found.id for found in client.jobs(label=f"form={form}")] == [job.id]


def test_every_fault_of_a_spec_comes_through(client: FedSimClient) -> None:
    with pytest.raises(SpecError) as caught:
        client.submit({"algorithm": "fedavg", "rounds": 0, "modle": "mlp"})
    faults = {fault.path: fault for fault in caught.value.errors}
    assert set(faults) == {"rounds", "modle"}
    assert faults["rounds"].value == 0
    assert "model" in faults["modle"].hint


@pytest.mark.parametrize(
    ("spec", "more", "path"),
    [
        ("demo", {"set": {"seed": np.int64(1)}}, "seed"),
        ("demo", {"set": {"local.lr": math.nan}}, "local.lr"),
        ({"algorithm": "fedavg", "local": {"lr": np.float32(0.1)}}, {}, "local.lr"),
        ({"algorithm": "fedavg", "local": {"lr": math.inf}}, {}, "local.lr"),
        (None, {}, "spec"),
        ("demo", {"labels": {"seed": np.int64(1)}}, "labels.seed"),
        ("demo", {"labels": {1: "one"}}, "labels"),
        ("demo", {"priority": 0.5}, "priority"),
        ("demo", {"idempotency_key": "ä"}, "Idempotency-Key"),
    ],
)
def test_a_value_that_cannot_be_sent_is_named(client: FedSimClient, spec: Any, more: Any, path: str) -> None:
    with pytest.raises((SpecError, RequestError)) as caught:
        client.submit(spec, **more)
    assert [fault.path for fault in caught.value.errors] == [path]


def test_a_file_with_faults_of_all_kinds_is_told_them_at_once(client: FedSimClient, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("algorithm: fedawg\nrounds: 0\nlokal: {}\n")
    for ask in (client.submit, client.plan):
        with pytest.raises(SpecError) as caught:
            ask(file)
        assert {fault.path for fault in caught.value.errors} == {"algorithm.name", "rounds", "lokal"}


def test_one_key_is_one_job(client: FedSimClient) -> None:
    spec, key = {"algorithm": "fedavg"}, f"sdk-key-{secrets.token_hex(4)}"
    first = client.submit(spec, idempotency_key=key)
    assert client.submit(spec, idempotency_key=key).id == first.id
    assert client.submit(spec).id != first.id
    with pytest.raises(Conflict, match=key):
        client.submit(spec, set={"seed": 5}, idempotency_key=key)


def test_watching_yields_every_round_once(service: RunningService, client: FedSimClient) -> None:
    job = service.running()
    service.store.add_round(job.id, a_round(1))

    def work() -> None:
        for number in (2, 3):
            time.sleep(0.1)
            service.store.add_round(job.id, a_round(number))
        service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)

    worker = threading.Thread(target=work)
    worker.start()
    handle = client.job(job.id)
    records = list(handle.watch())
    worker.join()
    assert records == [a_round(1), a_round(2), a_round(3)]
    assert handle.state is JobState.SUCCEEDED
    assert list(handle.watch()) == records


def test_waiting_ends_with_the_job_or_with_the_time(service: RunningService, client: FedSimClient) -> None:
    handle = client.job(service.running().id)
    with pytest.raises(TimeoutError, match="RUNNING"):
        handle.wait(timeout=0.2)
    service.store.change_state(handle.id, JobState.RUNNING, JobState.FAILED, message="no data")
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


def test_rounds_are_a_data_frame_where_pandas_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds([a_round(1), a_round(2)])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="needs pandas"):
        rounds.to_pandas()
    monkeypatch.undo()
    pytest.importorskip("pandas")
    frame = rounds.to_pandas()
    assert list(frame.index) == [1, 2]
    assert list(frame["metrics.global_accuracy"]) == [0.5, 1 - 1 / 3]


@pytest.fixture(scope="module")
def long_job(service: RunningService) -> str:
    return service.ended(rounds=1003).id


def test_long_jobs_come_in_several_pages(long_job: str, client: FedSimClient) -> None:
    assert [record.round for record in client.job(long_job).rounds(after=2)] == list(range(3, 1004))


def test_logs_cancel_and_delete(service: RunningService, client: FedSimClient) -> None:
    handle = client.job(service.running().id)
    service.settings.log_path(handle.id).write_text("one\ntwo\nthree\n")
    assert handle.logs(tail=2) == "two\nthree\n"
    with pytest.raises(Conflict):
        handle.delete()
    assert handle.cancel() is JobState.CANCELLING
    service.store.change_state(handle.id, JobState.CANCELLING, JobState.CANCELLED)
    assert list(handle.follow_logs(tail=1)) == ["three"]
    handle.delete()
    with pytest.raises(JobNotFound):
        client.job(handle.id)


def test_a_resumed_job_is_watched_past_its_first_end(service: RunningService, client: FedSimClient) -> None:
    handle = client.job(service.running().id)
    service.store.add_round(handle.id, a_round(1))
    service.store.change_state(handle.id, JobState.RUNNING, JobState.FAILED, message="no memory")
    assert [record.round for record in handle.watch()] == [1]
    assert handle.resume() is JobState.QUEUED
    with pytest.raises(Conflict):
        handle.resume()
    for source, target in pairwise([JobState.QUEUED, JobState.STARTING, JobState.RUNNING]):
        service.store.change_state(handle.id, source, target)
    service.store.add_round(handle.id, a_round(2))
    service.store.change_state(handle.id, JobState.RUNNING, JobState.SUCCEEDED)
    assert [record.round for record in handle.watch()] == [1, 2]


def test_a_clone_is_another_job(service: RunningService, client: FedSimClient) -> None:
    handle = client.job(service.ended(rounds=1).id)
    clone = handle.clone(set={"seed": 9}, priority=2, labels={"of": handle.id})
    assert (clone.state, clone.job.spec["seed"], clone.job.priority) == (JobState.QUEUED, 9, 2)
    assert [found.id for found in client.jobs(label=f"of={handle.id}", search="FEDAVG")] == [clone.id]


@pytest.fixture(scope="module")
def many_jobs(service: RunningService) -> list[str]:
    return [service.queued(name="one of many").id for _ in range(105)]


def test_listing_follows_the_pages(many_jobs: list[str], client: FedSimClient) -> None:
    found = [handle.id for handle in client.jobs(state="QUEUED", search="one of many")]
    assert found == many_jobs[::-1]
    assert [handle.id for handle in client.jobs(search="one of many", limit=103)] == found[:103]
    assert list(client.jobs(limit=0)) == []
    states = {handle.state for handle in client.jobs(state=["QUEUED", "SUCCEEDED"])}
    assert states <= {"QUEUED", "SUCCEEDED"}


def test_a_job_is_found_by_the_beginning_of_its_id(service: RunningService, client: FedSimClient) -> None:
    job = service.queued(name=f"short-{secrets.token_hex(4)}")
    time.sleep(0.04)  # ids share what they say of the time
    other = service.queued()
    assert client.job(job.id[:8]).id == job.id
    with pytest.raises(JobNotFound, match="jobs begin with") as caught:
        client.job(job.id[:3])
    assert other.id in caught.value.hint
    wrong = job.id[:-1] + ("0" if job.id[-1] != "0" else "1")
    with pytest.raises(JobNotFound, match=f"did you mean '{job.id}'"):
        client.job(wrong)
    with pytest.raises(JobNotFound, match=f"is a name.*{job.id}"):
        client.job(job.name)
    for nothing in ("nothing-like-it", "nothinglikeit", "", "..", "a/b", "a b", "x" * 200):
        with pytest.raises(JobNotFound, match="fedsim list"):
            client.job(nothing)


def test_the_catalogue(client: FedSimClient) -> None:
    assert "fedavg" in {entry["name"] for entry in client.algorithms()}
    assert "fedavg" not in {entry["name"] for entry in client.algorithms("label-skew")}
    with pytest.raises(RequestError, match="one of: client-drift"):
        client.algorithms("speed")
    assert "mlp" in {entry["name"] for entry in client.models()}
    assert "digits" in {entry["name"] for entry in client.datasets()}
    assert "dirichlet" in {entry["name"] for entry in client.partitions()}
    assert "adamw" in {entry["name"] for entry in client.optimizers()}
    assert "oort" in {entry["name"] for entry in client.samplers()}
    assert "cosine" in {entry["name"] for entry in client.schedules()}
    assert "demo" in {entry["name"] for entry in client.presets()}
    assert client.schema()["type"] == "object"
    assert client.version()["api"] == "v1"


def test_artifacts_are_listed_and_fetched(
    service: RunningService, client: FedSimClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = client.job(service.ended(rounds=2).id)
    sizes = {artifact.name: artifact.bytes for artifact in handle.artifacts()}
    assert set(sizes) == {"spec.yaml", "report.json"}
    path = handle.artifact("report.json", tmp_path)
    assert path == tmp_path / "report.json"
    assert len(json.loads(path.read_text())["rounds"]) == 2
    assert handle.artifact("spec.yaml", tmp_path / "other.yaml").read_text().startswith("name: fedavg")
    monkeypatch.chdir(tmp_path)
    assert handle.artifact("spec.yaml") == Path("spec.yaml")
    with pytest.raises(ArtifactNotFound, match="model"):
        handle.artifact("modle.safetensors")
    for name in "..", "a/..", "":
        with pytest.raises(ArtifactNotFound, match="not the name of a file"):
            handle.artifact(name, tmp_path / "other.yaml")
    assert {file.name for file in tmp_path.iterdir()} == {"report.json", "other.yaml", "spec.yaml"}


def test_jobs_are_compared(service: RunningService, client: FedSimClient) -> None:
    jobs = [service.ended(rounds=rounds).id for rounds in (1, 4)]
    found = client.compare([jobs[0], jobs[1][:11]])
    assert (found.metric, found.target) == ("global_accuracy", 0.5)
    assert [(line.run, line.final and line.final.value) for line in found.lines] == [
        (jobs[0], 0.5),
        (jobs[1], 0.8),
    ]
    with pytest.raises(RequestError, match="did you mean"):
        client.compare(jobs, metric="global_los")


def test_the_cluster_is_shown(client: FedSimClient) -> None:
    assert [node.cpus.total for node in client.cluster().nodes] == [8]


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


def test_the_address_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FedSimClient().url == "http://127.0.0.1:8000"
    monkeypatch.setenv("FEDSIM_URL", "http://cluster.example:9000/")
    assert FedSimClient().url == "http://cluster.example:9000"
    assert FedSimClient("http://other.example").url == "http://other.example"
    assert (
        repr(FedSimClient("http://other.example", token="hidden")) == "FedSimClient('http://other.example')"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [(FedSimClient, AsyncFedSimClient), (JobHandle, AsyncJobHandle), (SweepHandle, AsyncSweepHandle)],
)
def test_the_two_clients_have_the_same_methods_with_the_same_words(one: type, other: type) -> None:
    found = [dict(inspect.getmembers(kind, inspect.isfunction)) for kind in (one, other)]
    names = [{name for name in methods if not name.startswith("_")} for methods in found]
    assert names[0] == names[1]
    assert inspect.signature(FedSimClient) == inspect.signature(AsyncFedSimClient)
    for name in names[0]:
        blocking, awaited = (inspect.signature(methods[name]) for methods in found)
        assert blocking.parameters == awaited.parameters
        assert blocking.return_annotation == awaited.return_annotation.replace("Async", "")
        assert inspect.getdoc(getattr(one, name)) == inspect.getdoc(getattr(other, name)) is not None
