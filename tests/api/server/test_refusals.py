"""What refusals say and how long they are: of specs, bodies and queries that are wrong, and of bugs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import TimeoutError as NoConnection

from api.server.dependencies import SubmissionRequest, _read_as
from fedsim.errors import RequestError, StoreUnusable
from tests.api.service import JOBS, RunningService, problem, submit


def the_fault(response: httpx.Response, code: str = "BAD_REQUEST") -> dict[str, Any]:
    (fault,) = problem(response, 422, code)["errors"]
    found: dict[str, Any] = fault
    return found


def test_a_long_list_of_faults_is_cut_short(http: httpx.Client) -> None:
    spec = {"algorithm": {"name": "fedavg", **{f"p{number}": 1 for number in range(300)}}}
    answer = submit(http, spec)
    body = problem(answer, 422, "BAD_SPEC")
    assert (len(body["errors"]), len(answer.content) < 50_000) == (100, True)
    assert body["detail"] == "the spec has 300 errors; the first 100 are listed"
    checked = http.post("/api/v1/check", json=spec).json()
    assert (len(checked["errors"]), checked["errors"][-1]["message"]) == (101, "has 200 more errors")


def test_a_spec_that_is_too_long_to_be_listed_is_refused(http: httpx.Client) -> None:
    """A list of jobs holds 500 specs; this one takes 0.9 MB, and all of its fields are fine."""
    spec = {"algorithm": "fedavg", "model": {"name": "mlp", "blocks": {"all": ["*" * 9900] * 90}}}
    (fault,) = problem(submit(http, spec), 422, "BAD_SPEC")["errors"]
    assert (fault["path"], fault["hint"]) == ("spec", "shorten its longest lists and texts")
    assert fault["message"].endswith("and the most for a job is 100,000")
    assert http.post("/api/v1/check", json=spec).json()["errors"] == [fault]


def test_too_many_labels_are_one_fault(service: RunningService, http: httpx.Client) -> None:
    labels = {f"a label {number}": "" for number in range(9_000)}
    job = service.queued()
    for url, body in ((JOBS, {"spec": {}}), (f"{JOBS}/{job.id}/clone", {})):
        answer = http.post(url, json={**body, "labels": labels})
        fault = the_fault(answer)
        assert (fault["path"], fault["message"], fault["hint"]) == (
            "labels",
            "9,000 are too many",
            "at most 32",
        )
        assert len(answer.content) < 1000


def test_too_many_fields_are_one_fault(service: RunningService, http: httpx.Client) -> None:
    unknown = {f"f{number}": 0 for number in range(9_000)}
    for url in (JOBS, f"{JOBS}/{service.queued().id}/clone"):
        fault = the_fault(http.post(url, json=unknown))
        assert (fault["path"], fault["message"]) == ("body", "9,000 fields are too many")
        assert fault["hint"].startswith("at most 50; a ")
        few = problem(http.post(url, json=dict(list(unknown.items())[:49])), 422, "BAD_REQUEST")["errors"]
        assert [fault["message"] for fault in few].count("unknown field") == 49


def test_the_event_loop_has_no_work_with_the_faults_of_a_body() -> None:
    """They are made where the body was read; what is large is cut short there, too."""
    labels = {"a" * 70: "x" * 5000, "b b": 3}
    with pytest.raises(RequestError) as caught:
        _read_as(
            SubmissionRequest, json.dumps({"spec": {}, "labels": labels, "other": ["y" * 5000]}).encode()
        )
    assert [fault.path for fault in caught.value.errors][-1] == "other"
    assert all(len(str(fault.value)) < 1000 for fault in caught.value.errors)


def test_a_clone_is_read_as_a_submission_is(service: RunningService, http: httpx.Client) -> None:
    url = f"{JOBS}/{service.queued().id}/clone"
    yaml = {"Content-Type": "application/yaml"}
    clone = http.post(url, content="set: {local.lr: 1e-2}\nlabels: {a: b}\n", headers=yaml)
    assert (clone.status_code, clone.json()["spec"]["local"]["lr"]) == (201, 0.01)
    text = {"Content-Type": "text/plain"}
    problem(http.post(url, content="{}", headers=text), 415, "UNSUPPORTED_MEDIA_TYPE")
    broken = the_fault(
        http.post(url, content='{"set": ', headers={"Content-Type": "application/json"}), "BAD_SPEC"
    )
    assert broken["path"] == "spec"
    assert "a clone is {set:" in the_fault(http.post(url, json={"sett": {}}))["hint"]
    deep = ".".join("a" * 1001)
    assert "1,001 parts" in the_fault(http.post(url, json={"set": {deep: 1}}), "BAD_SPEC")["message"]

    def endless() -> Iterator[bytes]:
        for _ in range(12):
            yield b" " * 1_000_000

    problem(http.post(url, content=endless()), 413, "TOO_LARGE")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (JOBS, "GET, HEAD, POST"),
        (f"{JOBS}/0000", "DELETE, GET, HEAD"),
        ("/api/v1/check", "POST"),
        ("/healthz", "GET, HEAD"),
    ],
)
def test_every_method_of_an_address_is_allowed(http: httpx.Client, path: str, allowed: str) -> None:
    answer = http.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_unknown_parameters_are_refused(http: httpx.Client) -> None:
    fault = the_fault(http.get(JOBS, params={"stat": "QUEUED"}))
    assert (fault["path"], fault["value"], fault["hint"]) == ("stat", "QUEUED", "did you mean 'state'?")
    assert the_fault(http.get("/api/v1/models?limit=3"))["hint"] == "this address has no parameters"
    assert the_fault(http.get(f"{JOBS}/0000?x=1"))["message"] == "unknown query parameter"
    assert http.get(JOBS, params={"state": "QUEUED", "limit": 3}).status_code == 200


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ({"limit": 0}, "is too small", "at least 1"),
        ({"limit": "few"}, "is not a whole number", "write a whole number"),
        ({"order_by": "colour"}, "is not an allowed value", "one of 'created_at', "),
        ({"label": "a\0"}, "is not a text", "use printable characters"),
    ],
)
def test_a_wrong_query_is_told_the_way_out(
    http: httpx.Client, query: dict[str, Any], message: str, hint: str
) -> None:
    answer = http.get(JOBS, params=query)
    fault = the_fault(answer)
    assert (fault["path"], fault["message"]) == (next(iter(query)), message)
    assert fault["hint"].startswith(hint)
    assert answer.json()["detail"] == "the request has 1 error"


def test_a_wrong_submission_is_told_the_way_out(http: httpx.Client) -> None:
    key = the_fault(
        http.post(JOBS, json={"spec": {"algorithm": "fedavg"}}, headers={"Idempotency-Key": "a b"})
    )
    assert (key["path"], key["message"]) == ("Idempotency-Key", "is not a key")
    empty = the_fault(http.post(JOBS))
    assert (empty["message"], empty["hint"][:15]) == (
        "must be an object, such as {name: value}",
        "a submission is",
    )
    label = the_fault(http.post(JOBS, json={"spec": {}, "labels": {"a b": ""}}))
    assert "[A-Za-z0-9]" in label["hint"]
    data = {"dataset": {"name": "npz", "path": "/etc"}}
    outside = the_fault(submit(http, {"algorithm": "fedavg", "data": data}), "BAD_SPEC")
    assert "under a data root" in outside["hint"]


def test_a_submission_that_comes_again_is_not_checked_again(
    service: RunningService, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"Idempotency-Key": "before-the-nodes-went"}
    first = submit(http, {"algorithm": "fedavg"}, **key)
    monkeypatch.setattr(service.dispatcher, "nodes", list)
    again = submit(http, {"algorithm": "fedavg"}, **key)
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    problem(submit(http, {"algorithm": "fedavg"}), 422, "DOES_NOT_FIT")
    problem(submit(http, {"algorithm": "fedavg", "seed": 1}, **key), 409, "CONFLICT")


def test_every_fault_of_a_spec_comes_back_at_once(http: httpx.Client) -> None:
    spec = {"algorithm": "fedavg", "rounds": -3, "clients": {"fracton": 0.1}, "local": {"lr": "fast"}}
    body = problem(submit(http, spec), 422, "BAD_SPEC")
    faults = {fault["path"]: fault for fault in body["errors"]}
    assert set(faults) == {"rounds", "clients.fracton", "local.lr"}
    assert faults["rounds"]["value"] == -3
    assert "fraction" in faults["clients.fracton"]["hint"]


def test_names_that_do_not_exist_are_refused_with_a_hint(http: httpx.Client) -> None:
    body = problem(submit(http, {"algorithm": "fedawg", "model": "mpl"}), 422, "BAD_SPEC")
    hints = {fault["path"]: fault["hint"] for fault in body["errors"]}
    assert set(hints) == {"algorithm.name", "model.name"}
    assert "fedavg" in hints["algorithm.name"]


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        ("{", "application/json", 422, "BAD_SPEC"),
        ("spec: [", "application/yaml", 422, "BAD_SPEC"),
        ("spec: !!python/object:os.system {}", "application/yaml", 422, "BAD_SPEC"),
        ("spec: {a: 1, a: 2}", "application/yaml", 422, "BAD_SPEC"),
        ("[]", "application/json", 422, "BAD_REQUEST"),
        ("", "application/json", 422, "BAD_REQUEST"),
        ('{"spec": 3}', "application/json", 422, "BAD_REQUEST"),
        ('{"spec": {}, "priority": "high"}', "application/json", 422, "BAD_REQUEST"),
        ('{"spec": {}, "labels": {"a b": "c"}}', "application/json", 422, "BAD_REQUEST"),
        (b"\xff\xfe", "application/yaml", 400, "BAD_REQUEST"),
        ("spec=1", "application/x-www-form-urlencoded", 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("spec: {}", "text/plain", 415, "UNSUPPORTED_MEDIA_TYPE"),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused(
    http: httpx.Client, content: str | bytes, kind: str, status: int, code: str
) -> None:
    problem(http.post(JOBS, content=content, headers={"Content-Type": kind}), status, code)


def test_a_bare_spec_is_told_where_it_belongs(http: httpx.Client) -> None:
    body = problem(http.post(JOBS, json={"algorithm": "fedavg"}), 422, "BAD_REQUEST")
    faults = {fault["path"]: fault for fault in body["errors"]}
    assert faults["spec"]["message"] == "is missing"
    assert "spec:" in faults["algorithm"]["hint"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("page_token=nonsense", 400, "BAD_PAGE_TOKEN"),
        ("state=ASLEEP", 422, "BAD_REQUEST"),
        ("limit=0", 422, "BAD_REQUEST"),
        ("order_by=colour", 422, "BAD_REQUEST"),
    ],
)
def test_a_wrong_query_is_refused(http: httpx.Client, query: str, status: int, code: str) -> None:
    problem(http.get(f"{JOBS}?{query}"), status, code)


def test_a_store_without_room_is_said(
    service: RunningService, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreUnusable("the store's disk is full", "make room")

    monkeypatch.setattr(service.app.state.service.store, "create", full)
    answer = problem(submit(http, {"algorithm": "fedavg"}), 503, "STORAGE_FAILED")
    assert (answer["detail"], answer["hint"]) == ("the store's disk is full", "make room")


def test_a_store_whose_connections_are_all_taken_does_not_answer(
    service: RunningService, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(_: str) -> None:
        raise NoConnection("QueuePool limit of size 5 overflow 40 reached, connection timed out")

    monkeypatch.setattr(service.app.state.service.store, "get", taken)
    answer = problem(http.get(f"{JOBS}/0000"), 503, "NOT_READY")
    assert answer["detail"] == "the database does not answer"


def test_what_the_router_refuses_is_a_problem_too(http: httpx.Client) -> None:
    problem(http.get("/api/v1/nothing"), 404, "NOT_FOUND")
    problem(http.put(JOBS), 405, "METHOD_NOT_ALLOWED")


def test_a_bug_is_answered_without_a_trace(
    service: RunningService,
    http: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(job_id: str) -> None:
        raise ZeroDivisionError("a secret of the inside")

    monkeypatch.setattr(service.store, "get", broken)
    response = http.get(f"{JOBS}/0000")
    assert "secret" not in response.text
    problem(response, 500, "INTERNAL")
    assert "a secret of the inside" in caplog.text


@pytest.mark.skipif("FEDSIM_TEST_STORE" in os.environ, reason="damages the file of SQLite")
def test_a_store_that_is_damaged_while_it_is_used_is_said(
    service: RunningService, http: httpx.Client
) -> None:
    job = service.running()
    file = Path(service.store._engine.url.database or "")
    service.store._engine.dispose()
    for each in file.parent.glob(f"{file.name}*"):
        each.write_bytes(each.read_bytes()[:100].ljust(each.stat().st_size, b"\xff"))
    for answer in (http.get(f"{JOBS}/{job.id}"), submit(http, {"algorithm": "fedavg"}), http.get("/readyz")):
        said = problem(answer, 503, "STORAGE_FAILED")
        assert "the store is damaged" in said["detail"]
        assert "fedsim recover" in said["hint"]


@pytest.mark.parametrize(
    "spec",
    [
        b'{"algorithm": "fedavg", "name": "\\ud800"}',
        b'{"algorithm": "\\ud800"}',
        b'{"algorithm": {"name": "fedprox", "\\ud800": 1}}',
        b'{"algorithm": "fedavg", "data": {"dataset": {"name": "npz", "path": "\\ud800"}}}',
    ],
)
def test_half_characters_are_an_error_of_the_spec(http: httpx.Client, spec: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    checked = http.post("/api/v1/check", content=spec, headers=headers)
    assert checked.status_code == 200, checked.text
    assert not checked.json()["valid"]
    assert checked.json()["data"] is None
    problem(http.post("/api/v1/jobs", content=b'{"spec": %b}' % spec, headers=headers), 422, "BAD_SPEC")


def test_thousands_of_wrong_fields_get_the_first_messages(http: httpx.Client) -> None:
    spec = {"algorithm": "fedavg", **{f"k{number}": 1 for number in range(5000)}}
    assert len(http.post("/api/v1/check", json=spec).json()["errors"]) <= 101


def test_a_number_that_no_client_reads_is_not_sent_back(http: httpx.Client) -> None:
    checked = http.post("/api/v1/check", json={"algorithm": "fedavg", "rounds": 10**1000}).json()
    assert checked["data"] is None
    assert [fault["value"] for fault in checked["errors"]] == ["a whole number of 3322 bits"]
    kept = http.post("/api/v1/check", json={"algorithm": "fedavg", "seed": 2**62}).json()
    assert kept["data"]["seed"] == 2**62


def test_thousands_of_unknown_query_parameters_look_for_a_hundred_names(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = list[str]()
    monkeypatch.setattr("difflib.get_close_matches", lambda word, *_, **__: searches.append(word) or [])
    query = "&".join(f"k{number}" for number in range(5000))
    assert len(problem(http.get(f"{JOBS}?{query}"), 422, "BAD_REQUEST")["errors"]) == 100
    assert len(searches) == 101
