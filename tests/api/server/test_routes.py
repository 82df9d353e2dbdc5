"""REST, over real HTTP and a real store; the cluster's part is played by the tests."""

from __future__ import annotations

import csv
import io
from typing import Any, get_args

import httpx
import jsonschema
import pytest

from jobs.kinds import Kind
from jobs.store.records import RoundRecord
from jobs.store.states import JobState
from tests.api.browser import until
from tests.api.service import JOBS, RunningService, a_round, problem


def test_submitting_makes_a_job_and_wakes_the_queue(service: RunningService, http: httpx.Client) -> None:
    before = service.dispatcher.woken
    body = {"spec": {"algorithm": "fedavg", "rounds": 3}, "priority": 2, "labels": {"owner": "ada"}}
    response = http.post(JOBS, json=body)
    assert response.status_code == 201, response.text
    job = response.json()
    assert response.headers["location"] == f"{JOBS}/{job['id']}"
    assert (job["state"], job["priority"], job["labels"]) == ("QUEUED", 2, {"owner": "ada"})
    assert job["spec"]["data"]["dataset"] == {"name": "digits"}
    assert service.dispatcher.woken > before
    assert http.get(response.headers["location"]).json() == job


def test_a_submission_may_be_yaml(http: httpx.Client) -> None:
    text = "spec:\n  algorithm: fedavg\n  local: {lr: 1e-1}   # a comment\npriority: 1\n"
    response = http.post(JOBS, content=text, headers={"Content-Type": "application/yaml"})
    assert response.status_code == 201, response.text
    assert response.json()["spec"]["local"]["lr"] == 0.1


def test_the_same_key_and_body_are_one_job_and_another_body_is_refused(http: httpx.Client) -> None:
    key = {"Idempotency-Key": "one-and-only"}
    first = http.post(JOBS, json={"spec": {"algorithm": "fedavg"}}, headers=key)
    again = http.post(JOBS, json={"spec": {"algorithm": "fedavg"}}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = http.post(JOBS, json={"spec": {"algorithm": "fedavg", "seed": 1}}, headers=key)
    assert "one-and-only" in problem(other, 409, "CONFLICT")["detail"]


def test_a_list_is_filtered_and_comes_in_pages(service: RunningService, http: httpx.Client) -> None:
    ids = [service.queued(name=f"page-{number}").id for number in range(5)]
    done = service.ended(name="page-done")
    found: list[str] = []
    query: dict[str, Any] = {"limit": 2, "order_by": "created_at", "state": "QUEUED"}
    while True:
        page = http.get(JOBS, params=query).json()
        found += [job["id"] for job in page["jobs"]]
        if page["next_page_token"] is None:
            break
        query["page_token"] = page["next_page_token"]
    assert [each for each in found if each in ids] == ids
    assert done.id not in found
    both = http.get(JOBS, params={"state": ["QUEUED", "SUCCEEDED"], "limit": 500}).json()["jobs"]
    assert {*ids, done.id} <= {job["id"] for job in both}


@pytest.mark.parametrize("rest", ["", "/rounds", "/events", "/logs"])
def test_an_unknown_job_is_not_found(http: httpx.Client, rest: str) -> None:
    problem(http.get(f"{JOBS}/0000{rest}"), 404, "JOB_NOT_FOUND")
    problem(http.get(f"{JOBS}/%2e%2e%2fx{rest}"), 404, "NOT_FOUND")


def test_cancelling_twice_is_cancelling_once(service: RunningService, http: httpx.Client) -> None:
    waiting, running = service.queued(), service.running()
    assert http.post(f"{JOBS}/{waiting.id}/cancel").json()["state"] == "CANCELLED"
    assert http.post(f"{JOBS}/{waiting.id}/cancel").json()["state"] == "CANCELLED"
    assert http.post(f"{JOBS}/{running.id}/cancel").json()["state"] == "CANCELLING"
    problem(http.post(f"{JOBS}/0000/cancel"), 404, "JOB_NOT_FOUND")


def test_a_job_that_failed_or_was_cancelled_is_resumed(service: RunningService, http: httpx.Client) -> None:
    running = service.running()
    problem(http.post(f"{JOBS}/{running.id}/resume"), 409, "CONFLICT")
    service.store.change_state(running.id, JobState.RUNNING, JobState.FAILED, message="no memory")
    answer = http.post(f"{JOBS}/{running.id}/resume")
    assert answer.status_code == 200
    job = answer.json()
    assert (job["state"], job["resumes"], job["message"], job["finished_at"]) == ("QUEUED", 1, None, None)
    problem(http.post(f"{JOBS}/{running.id}/resume"), 409, "CONFLICT")
    http.post(f"{JOBS}/{running.id}/cancel")
    assert http.post(f"{JOBS}/{running.id}/resume").json()["state"] == "QUEUED"
    problem(http.post(f"{JOBS}/{service.ended().id}/resume"), 409, "CONFLICT")
    problem(http.post(f"{JOBS}/0000/resume"), 404, "JOB_NOT_FOUND")
    http.post(f"{JOBS}/{running.id}/cancel")


def test_only_ended_jobs_are_deleted_and_their_files_go_too(
    service: RunningService, http: httpx.Client
) -> None:
    running, ended = service.running(), service.ended()
    problem(http.delete(f"{JOBS}/{running.id}"), 409, "CONFLICT")
    service.settings.log_path(ended.id).write_text("done\n")
    assert http.delete(f"{JOBS}/{ended.id}").status_code == 204
    assert not (service.settings.home / "jobs" / ended.id).exists()
    problem(http.get(f"{JOBS}/{ended.id}"), 404, "JOB_NOT_FOUND")


def test_rounds_come_in_pages(service: RunningService, http: httpx.Client) -> None:
    job = service.ended(rounds=5)
    first = http.get(f"{JOBS}/{job.id}/rounds", params={"limit": 3}).json()
    assert [each["round"] for each in first["rounds"]] == [1, 2, 3]
    assert first["next_after"] == 3
    rest = http.get(f"{JOBS}/{job.id}/rounds", params={"after": 3}).json()
    assert [RoundRecord.model_validate(each) for each in rest["rounds"]] == [a_round(4), a_round(5)]
    assert rest["next_after"] is None


def test_large_records_take_more_pages(
    service: RunningService, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = service.running(rounds=9)
    for number in range(1, 8):
        values = {"quantiles": [0.25] * 60_000}
        service.store.add_round(job.id, a_round(number).model_copy(update={"method": values}))
    found, after = list[int](), 0
    while after is not None:
        page = http.get(f"{JOBS}/{job.id}/rounds", params={"limit": 100, "after": after})
        assert len(page.content) < 1_100_000
        found += [each["round"] for each in page.json()["rounds"]]
        after = page.json()["next_after"]
    assert found == [*range(1, 8)]
    compared = http.get("/api/v1/comparison", params={"job": job.id})
    assert compared.status_code == 200
    monkeypatch.setattr("api.server.stored_rounds.MOST_RECORD_BYTES", 200_000)
    refused = problem(http.get(f"{JOBS}/{job.id}/method-curves"), 422, "BAD_REQUEST")
    as_csv = {"Accept": "text/csv"}
    assert http.get(f"{JOBS}/{job.id}/rounds", headers=as_csv).status_code == 200, "CSV keeps no records"
    monkeypatch.setattr("api.server.routes.jobs.MOST_CSV_BYTES", 200_000)
    problem(http.get(f"{JOBS}/{job.id}/rounds", headers=as_csv), 422, "BAD_REQUEST")
    assert "more than 0.2 MB of records, which is the most here (7 rounds)" in refused["errors"][0]["message"]


def test_rounds_as_csv_have_every_metric_of_any_round(service: RunningService, http: httpx.Client) -> None:
    job = service.running()
    service.store.add_round(job.id, a_round(1))
    service.store.add_round(job.id, a_round(2, personal_accuracy=0.25))
    response = http.get(f"{JOBS}/{job.id}/rounds", headers={"Accept": "text/csv"})
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [row["metrics.personal_accuracy"] for row in rows] == ["", "0.25"]
    assert [float(row["metrics.global_accuracy"]) for row in rows] == [1 - 1 / 2, 1 - 1 / 3]
    assert [row["bytes.up"] for row in rows] == ["2000", "2000"]


def test_the_log_is_read_from_a_position(service: RunningService, http: httpx.Client) -> None:
    job = service.queued()
    service.settings.log_path(job.id).write_text("one\ntwo\n")
    for query, text, position in (
        ("tail=1", "two\n", 4),
        ("from=4", "two\n", 4),
        (f"from={2**53}", "", 2**53),
    ):
        answer = http.get(f"{JOBS}/{job.id}/logs?{query}")
        assert (answer.text, answer.headers["Log-Position"]) == (text, str(position))


def test_the_log_is_read_from_its_end(service: RunningService, http: httpx.Client) -> None:
    job = service.ended()
    assert http.get(f"{JOBS}/{job.id}/logs").text == ""
    lines = [f"line {number} ä\n" for number in range(20_000)]
    service.settings.log_path(job.id).write_text("".join(lines) + "the last, unended", encoding="utf-8")
    response = http.get(f"{JOBS}/{job.id}/logs", params={"tail": 3})
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text == "".join(lines[-2:]) + "the last, unended"
    assert http.get(f"{JOBS}/{job.id}/logs", params={"tail": 0}).text == ""
    assert http.get(f"{JOBS}/{job.id}/logs", params={"tail": 100_000}).text.startswith("line 0 ")
    problem(http.get(f"{JOBS}/{job.id}/logs", params={"tail": -1}), 422, "BAD_REQUEST")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_catalogue_has_a_schema_for_every_entry(http: httpx.Client, kind: str) -> None:
    entries = http.get(f"/api/v1/{kind}").json()
    assert len(entries) >= 2
    for entry in entries:
        jsonschema.Draft202012Validator.check_schema(entry["parameters"])
        assert entry["summary"]


def test_algorithms_by_purpose(http: httpx.Client) -> None:
    entries = http.get("/api/v1/algorithms", params={"for": "Personalization"}).json()
    assert {"fedper", "ace_pfl"} <= {entry["name"] for entry in entries}
    assert all("personalisation" in entry["purposes"] for entry in entries)
    [scaffold] = [each for each in http.get("/api/v1/algorithms").json() if each["name"] == "scaffold"]
    assert (scaffold["citation"], scaffold["year"]) == ("Karimireddy et al., ICML 2020", 2020)
    assert (scaffold["costs"]["traffic"], scaffold["costs"]["up"]) == (2.0, ["control", "params"])
    refused = http.get("/api/v1/algorithms", params={"for": "speed"})
    assert problem(refused, 422, "BAD_REQUEST")["errors"][0]["path"] == "for"


def test_presets_satisfy_the_schema(http: httpx.Client) -> None:
    import yaml

    schema = http.get("/api/v1/schema").json()
    presets = http.get("/api/v1/presets").json()
    assert {"demo", "fmnist-fedavg"} <= {preset["name"] for preset in presets}
    for preset in presets:
        jsonschema.validate(yaml.safe_load(preset["text"]), schema)


def test_health_readiness_and_version(service: RunningService, http: httpx.Client) -> None:
    assert http.get("/healthz").json()["service"] == "fedsim"
    assert http.get("/readyz").json() == {"status": "ready"}
    versions = http.get("/version").json()
    assert {"fedsim", "api", "python", "ray", "torch", "plugins"} == set(versions)
    assert all(isinstance(version, str) for version in versions["plugins"].values())
    service.dispatcher.missing = "Ray is being started"
    try:
        assert problem(http.get("/readyz"), 503, "NOT_READY")["detail"] == "Ray is being started"
        assert http.get("/healthz").status_code == 200
    finally:
        service.dispatcher.missing = None


def test_what_answers_get_answers_head(service: RunningService, http: httpx.Client) -> None:
    job = service.running(name="asked for its head")
    for path in ("/", "/static/app.js", "/healthz", JOBS, f"{JOBS}/{job.id}"):
        got, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-type", "content-length", "content-security-policy"):
            assert head.headers.get(name) == got.headers.get(name)
    # A stream without an end: its head comes at once, and it is given up.
    assert (
        http.head(f"{JOBS}/{job.id}/events", timeout=5)
        .headers["content-type"]
        .startswith("text/event-stream")
    )
    until(lambda: service.app.state.streams.open == 0)
    assert http.head(f"{JOBS}/0000").status_code == 404
    assert http.head("/api/v1/check").status_code == 405


def test_the_description_is_complete(http: httpx.Client) -> None:
    description = http.get("/api/v1/openapi.json").json()
    models = description["components"]["schemas"]

    def references(part: Any) -> list[str]:
        if isinstance(part, dict):
            own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            return own + [each for inner in part.values() for each in references(inner)]
        return [each for inner in part for each in references(inner)] if isinstance(part, list) else []

    assert {each.removeprefix("#/components/schemas/") for each in references(description)} <= set(models)
    operations = [operation for path in description["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert {"submit_job", "list_jobs", "follow_events", "get_health"} <= set(names)
    submission = description["paths"][JOBS]["post"]
    assert set(submission["requestBody"]["content"]) == {"application/json", "application/yaml"}
    assert {"200", "201", "401", "403", "409", "413", "415", "422"} <= set(submission["responses"])
    for operation in operations:
        for status, answer in operation["responses"].items():
            if status >= "400":
                assert list(answer["content"]) == ["application/problem+json"], operation["operationId"]


def test_answers_are_as_described(service: RunningService, http: httpx.Client) -> None:
    description = http.get("/api/v1/openapi.json").json()
    job = service.ended()
    for path in (JOBS, f"{JOBS}/{job.id}", f"{JOBS}/{job.id}/rounds", "/api/v1/presets", "/version"):
        template = path.replace(job.id, "{job_id}")
        answer = description["paths"][template]["get"]["responses"]["200"]
        schema = answer["content"]["application/json"]["schema"]
        full = {**schema, "components": description["components"]}
        jsonschema.validate(http.get(path).json(), full)
    refusal = {"$ref": "#/components/schemas/Problem", "components": description["components"]}
    jsonschema.validate(http.get(f"{JOBS}/0000").json(), refusal)


def test_a_job_that_waits_says_why(service: RunningService, http: httpx.Client) -> None:
    job = service.queued()
    service.store.write_waiting_reasons({job.id: "1 job is ahead of it"})
    found = http.get(f"{JOBS}/{job.id}").json()
    assert (found["state"], found["waiting"]) == (JobState.QUEUED, "1 job is ahead of it")


def test_a_finished_job_is_given_more_rounds(service: RunningService, http: httpx.Client) -> None:
    job = service.ended(rounds=5)
    url = f"{JOBS}/{job.id}/resume"
    woken = service.dispatcher.woken
    for body, path in (({"rounds": 0}, "rounds"), ({"rounds": "many"}, "rounds"), ({"round": 9}, "round")):
        wrong = problem(http.post(url, json=body), 422, "BAD_REQUEST")
        assert [fault["path"] for fault in wrong["errors"]] == [path]
    same = problem(http.post(url, json={"rounds": 5}), 422, "BAD_REQUEST")
    assert "has 5 rounds already" in same["errors"][0]["message"]
    more = http.post(url, json={"rounds": 8})
    assert more.status_code == 200, more.text
    assert (more.json()["state"], more.json()["rounds_total"], more.json()["rounds_done"]) == ("QUEUED", 8, 5)
    assert service.dispatcher.woken > woken
    problem(http.post(url, json={"rounds": 9}), 409, "CONFLICT")
    problem(http.post(f"{JOBS}/0000/resume", json={"rounds": 9}), 404, "JOB_NOT_FOUND")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"algorithm": "gone"}, "algorithm.name"),
        ({"attack": "gone"}, "attack.name"),
        ({"clients": {"sampler": {"name": "uniform", "gone": 1}}}, "clients.sampler.gone"),
        ({"local": {"schedule": "gone"}}, "local.schedule.name"),
    ],
)
def test_more_rounds_for_a_job_whose_plugin_is_gone_are_refused_by_its_name(
    fields: dict[str, Any], path: str, service: RunningService, http: httpx.Client
) -> None:
    job = service.ended(rounds=5, **fields)
    wrong = problem(http.post(f"{JOBS}/{job.id}/resume", json={"rounds": 8}), 422, "BAD_SPEC")
    assert [fault["path"] for fault in wrong["errors"]] == [path]


def test_a_job_that_ended_after_a_round_goes_on_until_another(
    service: RunningService, http: httpx.Client
) -> None:
    # The length of the schedule is that of the run, which stays the same.
    job = service.ended(rounds=2, stop={"round": 2}, local={"schedule": "cosine"})
    more = http.post(f"{JOBS}/{job.id}/resume", json={"rounds": 4}).json()
    assert (more["state"], more["spec"]["rounds"], more["spec"]["stop"]["round"]) == ("QUEUED", 5, 4)


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"curriculum": {"clients": {}}}, "--set rounds=8"),
        ({"local": {"schedule": "cosine"}}, "--set rounds=8"),
        ({"stop": {"max_seconds": 60}}, "without `stop`"),
    ],
)
def test_a_job_whose_end_its_spec_decides_takes_no_more_rounds(
    fields: dict[str, Any], hint: str, service: RunningService, http: httpx.Client
) -> None:
    job = service.ended(rounds=5, **fields)
    wrong = problem(http.post(f"{JOBS}/{job.id}/resume", json={"rounds": 8}), 422, "BAD_REQUEST")
    [fault] = wrong["errors"]
    assert (fault["path"], hint in fault["hint"]) == ("rounds", True)
    assert service.store.get(job.id).state == "SUCCEEDED"
