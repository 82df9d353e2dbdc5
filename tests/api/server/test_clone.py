"""Clones: a new job from an old one, by REST, SDK and command line; and the filters of the list."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from fedsim import FedSimClient
from fedsim.errors import Conflict, JobNotFound, SpecError
from jobs.spec import parse_spec
from jobs.spec.cloning import clone_spec
from tests.api.service import JOBS, Fedsim, RunningService, problem


def test_a_clone_has_the_spec_priority_and_labels_of_its_job(
    service: RunningService, http: httpx.Client
) -> None:
    body = {"spec": {"algorithm": "fedavg", "rounds": 3}, "priority": 4, "labels": {"owner": "ada"}}
    first = http.post(JOBS, json=body).json()
    before = service.dispatcher.woken
    answer = http.post(f"{JOBS}/{first['id']}/clone")
    assert answer.status_code == 201, answer.text
    clone = answer.json()
    assert answer.headers["location"] == f"{JOBS}/{clone['id']}"
    assert clone["id"] != first["id"]
    same = ("name", "spec", "priority", "labels", "rounds_total")
    assert {name: clone[name] for name in same} == {name: first[name] for name in same}
    assert (clone["state"], clone["rounds_done"]) == ("QUEUED", 0)
    assert service.dispatcher.woken > before


def test_a_clone_of_a_job_in_any_state_takes_what_is_set(service: RunningService, http: httpx.Client) -> None:
    wishes = {"set": {"seed": 7, "local.steps": 2}, "priority": 0, "labels": {}}
    for job in (service.ended(), service.running()):
        clone = http.post(f"{JOBS}/{job.id}/clone", json=wishes).json()
        assert (clone["spec"]["seed"], clone["priority"], clone["labels"]) == (7, 0, {})
        assert (clone["spec"]["local"]["steps"], clone["spec"]["local"]["epochs"]) == (2, None)


def test_a_clone_is_checked_as_a_submission_is(service: RunningService, http: httpx.Client) -> None:
    job = service.queued()
    url = f"{JOBS}/{job.id}/clone"
    wrong = problem(http.post(url, json={"set": {"rounds": -1, "locel.lr": 1}}), 422, "BAD_SPEC")
    assert {fault["path"] for fault in wrong["errors"]} == {"rounds", "locel"}
    too_large = problem(http.post(url, json={"set": {"resources.workers": 5000}}), 422, "DOES_NOT_FIT")
    assert "5000 workers x 1 CPU asked, 8 fit" in too_large["detail"]
    for path in ("", "a..b", "seed.x"):
        problem(http.post(url, json={"set": {path: 1}}), 422, "BAD_SPEC")
    for body in (
        {"priority": 1001},
        {"priority": "high"},
        {"labels": {"a b": "c"}},
        {"sett": {}},
        [],
        {"set": 3},
    ):
        problem(http.post(url, json=body), 422, "BAD_REQUEST")
    problem(http.post(f"{JOBS}/0000/clone"), 404, "JOB_NOT_FOUND")


def test_clones_with_one_key_are_one_job(service: RunningService, http: httpx.Client) -> None:
    job, key = service.queued(), {"Idempotency-Key": "cloned-once"}
    first = http.post(f"{JOBS}/{job.id}/clone", headers=key)
    again = http.post(f"{JOBS}/{job.id}/clone", headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    other = http.post(f"{JOBS}/{job.id}/clone", headers=key, json={"set": {"seed": 1}})
    assert "cloned-once" in problem(other, 409, "CONFLICT")["detail"]


@pytest.mark.parametrize(
    ("spec", "fields", "expected"),
    [
        ({"algorithm": "fedavg"}, {"algorithm": "fedprox"}, {"name": "fedprox"}),
        ({"algorithm": "fedavg", "name": "mine"}, {"algorithm": "fedprox"}, {"name": "mine"}),
        ({"algorithm": "fedavg"}, {"name": "yours"}, {"name": "yours"}),
        ({"algorithm": "fedavg", "local": {"steps": 3}}, {"local.epochs": 2}, {"epochs": 2, "steps": None}),
        ({"algorithm": "fedavg"}, {"local.steps": 3}, {"epochs": None, "steps": 3}),
        ({"algorithm": "fedavg"}, {"model": {"name": "mlp"}, "local.lr": 0.5}, {"lr": 0.5}),
    ],
)
def test_what_follows_from_a_field_gives_way(
    spec: dict[str, Any], fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    stored = parse_spec(spec).model_dump(mode="json")
    untouched = parse_spec(spec).model_dump(mode="json")
    made = parse_spec(clone_spec(stored, fields)).model_dump(mode="json")
    found = {**made["local"], "name": made["name"]}
    assert {name: found[name] for name in expected} == expected
    assert stored == untouched


def test_a_clone_with_other_weights_forgets_the_hash_of_the_old_ones() -> None:
    weights = {"job": "0123456789ab", "sha256": "5" * 64}
    spec = parse_spec({"algorithm": "fedavg", "model": {"name": "mlp", "init": weights}})
    stored = spec.model_dump(mode="json")
    assert parse_spec(clone_spec(stored, {"seed": 1})).models[0].init == spec.models[0].init
    other = parse_spec(clone_spec(stored, {"model.init.job": "9876543210ab"})).models[0].init
    assert other is not None
    assert (other.job, other.sha256) == ("9876543210ab", None)


def test_a_changed_clone_is_no_run_of_the_sweep(service: RunningService, http: httpx.Client) -> None:
    labels = {"group": "rates", "seed": "1", "owner": "ada"}
    body = {"spec": {"algorithm": "fedavg", "seed": 1, "name": "rates: seed 1"}, "labels": labels}
    job = http.post(JOBS, json=body).json()
    same = http.post(f"{JOBS}/{job['id']}/clone").json()
    assert (same["name"], same["labels"]) == ("rates: seed 1", labels)
    larger = http.post(f"{JOBS}/{job['id']}/clone", json={"set": {"resources.workers": 1}}).json()
    assert (larger["name"], larger["labels"]) == ("rates: seed 1", labels)
    other = http.post(f"{JOBS}/{job['id']}/clone", json={"set": {"seed": 2}}).json()
    assert (other["name"], other["labels"]) == ("fedavg", {})
    named = {"set": {"seed": 2, "name": "mine"}, "labels": {"owner": "ada"}}
    third = http.post(f"{JOBS}/{job['id']}/clone", json=named).json()
    assert (third["name"], third["labels"]) == ("mine", {"owner": "ada"})


def test_the_sdk_clones(service: RunningService) -> None:
    with FedSimClient(service.url) as client:
        job = client.submit({"algorithm": "fedavg"}, priority=2, labels={"a": "b"})
        clone = job.clone(set={"seed": 3, "local.lr": 0.5})
        assert (clone.job.spec["seed"], clone.job.spec["local"]["lr"]) == (3, 0.5)
        assert (clone.job.priority, clone.job.labels) == (2, {"a": "b"})
        assert job.clone(priority=0, labels={}).job.labels == {}
        assert job.clone(idempotency_key="mine").id == job.clone(idempotency_key="mine").id
        with pytest.raises(Conflict):
            job.clone(idempotency_key="mine", priority=9)
        with pytest.raises(SpecError):
            job.clone(set={"rounds": 0})
        gone = job.clone()
        gone.cancel()
        gone.delete()
        with pytest.raises(JobNotFound):
            gone.clone()


def test_the_command_clones(service: RunningService, online: Fedsim) -> None:
    job = service.queued(name="first")
    done = online("clone", job.id, "--set", "seed=5", "--label", "a=b", "--priority", "3")
    assert done.code == 0, done.err
    clone = service.store.get(done.out.strip())
    assert (clone.name, clone.spec["seed"], clone.priority, clone.labels) == ("first", 5, 3, {"a": "b"})
    shown = online("clone", clone.id, "--format", "json")
    assert shown.data["labels"] == {"a": "b"}
    for wrong in ("seed", "rounds=0"):
        refused = online("clone", job.id, "--set", wrong)
        assert (refused.code, refused.out) == (2, "")


def test_a_list_is_narrowed_by_several_filters(service: RunningService, http: httpx.Client) -> None:
    spec = parse_spec({"algorithm": "fedprox", "name": "Narrow 1"})
    labels = {"sweep": "n", "arm": "1"}
    job = service.store.create(spec, labels=labels)[0]
    other = service.store.create(spec, labels={"sweep": "n"})[0]
    assert found(http, label=["sweep=n", "arm"]) == [job.id]
    assert found(http, search="narrow", algorithm="fedprox") == [other.id, job.id]
    assert found(http, search="narrow", algorithm="fedavg") == []
    first = http.get(JOBS, params={"search": "narrow", "limit": 1}).json()
    token = first["next_page_token"]
    assert found(http, search="narrow", page_token=token) == [job.id]
    problem(http.get(JOBS, params={"search": "arrow", "page_token": token}), 400, "BAD_PAGE_TOKEN")
    problem(http.get(JOBS, params={"search": "a\0"}), 422, "BAD_REQUEST")


def found(http: httpx.Client, **query: Any) -> list[str]:
    return [job["id"] for job in http.get(JOBS, params=query).json()["jobs"]]
