"""Jobs side by side, by REST."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from scipy import stats

from jobs.spec import parse_spec
from jobs.store.records import Job
from jobs.store.states import JobState
from tests.api.service import RunningService, a_round, problem

ROUTE = "/api/v1/comparison"
SCORES = {"fedavg": [0.70, 0.72, 0.69], "fedprox": [0.74, 0.73, 0.75]}


def a_study(service: RunningService) -> list[Job]:
    """Two methods with three seeds each."""
    jobs = []
    for algorithm, finals in SCORES.items():
        for seed, final in enumerate(finals):
            job = service.running(name=f"{algorithm}-{seed}", algorithm=algorithm, seed=seed, rounds=2)
            for number, score in ((1, 0.5), (2, final)):
                service.store.add_round(job.id, a_round(number, global_accuracy=score))
            service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
            jobs.append(job)
    return jobs


def test_the_figures_are_those_of_scipy(http: httpx.Client, service: RunningService) -> None:
    jobs = a_study(service)
    asked: dict[str, Any] = {"job": [job.id for job in jobs], "last": 2, "along": "bytes"}
    found = http.get(ROUTE, params=asked).json()
    assert (found["metric"], found["baseline"], found["target"]) == ("global_accuracy", "fedavg", 0.69)
    first, second = found["groups"]
    assert (second["name"], second["note"], second["seeds"]) == ("fedprox", " (3 seeds)", [0, 1, 2])
    measure = second["final"]
    assert (measure["mean"], measure["deviation"]) == pytest.approx(
        (stats.tmean(SCORES["fedprox"]), stats.tstd(SCORES["fedprox"]))
    )
    test = stats.ttest_rel(SCORES["fedprox"], SCORES["fedavg"])
    interval = test.confidence_interval(0.95)
    difference = measure["difference"]
    assert (difference["p_value"], difference["low"], difference["high"]) == pytest.approx(
        (test.pvalue, interval.low, interval.high)
    )
    assert first["curve"]["x"] == [3000, 6000]
    assert first["curve"]["mean"] == pytest.approx([0.5, stats.tmean(SCORES["fedavg"])])
    assert found["differences"] == [{"field": "algorithm", "values": ["fedavg", "fedprox"]}]


def test_the_table_in_three_formats(http: httpx.Client, service: RunningService) -> None:
    asked = {"job": [job.id for job in a_study(service)]}
    for kind, beginning in (
        ("text/csv", "group,runs,seeds"),
        ("text/markdown", "| global accuracy | seeds |"),
        ("application/x-latex", "% \\usepackage{booktabs}"),
    ):
        answer = http.get(ROUTE, params=asked, headers={"Accept": kind})
        assert answer.headers["content-type"].startswith(kind)
        assert answer.text.startswith(beginning)


def test_the_curves_as_pdf(http: httpx.Client, service: RunningService) -> None:
    answer = http.get(ROUTE, params={"job": a_study(service)[0].id}, headers={"Accept": "application/pdf"})
    assert answer.headers["content-type"] == "application/pdf"
    assert answer.content.startswith(b"%PDF")
    waiting = service.queued(name="without rounds")
    answer = http.get(ROUTE, params={"job": waiting.id}, headers={"Accept": "application/pdf"})
    assert "no round has a finite value" in problem(answer, 422, "BAD_REQUEST")["errors"][0]["message"]


def test_jobs_are_found_by_label(http: httpx.Client, service: RunningService) -> None:
    service.queued(name="unlabelled")
    spec = parse_spec({"algorithm": "fedavg", "name": "labelled"})
    labelled = service.store.create(spec, labels={"group": "mine", "owner": "ada"})[0]
    found = http.get(ROUTE, params={"label": ["group=mine", "owner"]}).json()
    assert [line["run"] for line in found["lines"]] == [labelled.id]
    # A job without rounds has a group, and no figures.
    assert found["groups"][0]["final"] is None
    assert found["notes"] == [f"No results yet: {labelled.name} (queued)."]


def test_what_cannot_be_asked(http: httpx.Client, service: RunningService) -> None:
    job = service.ended()
    problem(http.get(ROUTE, params={"job": "nobody"}), 404, "JOB_NOT_FOUND")
    for asked in (
        {},
        {"label": "group=nobody"},
        {"job": job.id, "metric": "global_acuracy"},
        {"job": job.id, "against": "kdia"},
        {"job": job.id, "target": "nan"},
        {"job": job.id, "last": 0},
        {"job": job.id, "along": "hours"},
    ):
        problem(http.get(ROUTE, params=asked), 422, "BAD_REQUEST")


def test_jobs_with_too_large_records_are_refused(
    http: httpx.Client, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rounds are in memory at once, and the service has other callers."""
    jobs = a_study(service)
    size = service.store.count_record_bytes(jobs[0].id)
    monkeypatch.setattr("api.server.stored_rounds.MOST_RECORD_BYTES", 6 * size - 1)
    refused = problem(http.get(ROUTE, params={"job": [job.id for job in jobs]}), 422, "BAD_REQUEST")
    [fault] = refused["errors"]
    assert "which is the most here (12 rounds)" in fault["message"]
    assert "fedsim compare" in fault["hint"]
    assert http.get(ROUTE, params={"job": [job.id for job in jobs[1:]]}).status_code == 200


@pytest.mark.parametrize(
    ("kind", "paths"),
    [
        (
            "round_lookups",
            ["comparison?job={}", "jobs/{}/method-curves", "jobs/{}/rounds?limit=10000", "jobs?limit=500"],
        ),
        ("page_lookups", ["jobs/{}/rounds"]),
        ("curve_lookups", ["curves?job={}"]),
    ],
)
def test_few_comparisons_and_pages_run_at_once(
    http: httpx.Client, service: RunningService, monkeypatch: pytest.MonkeyPatch, kind: str, paths: list[str]
) -> None:
    job, lookups = service.ended(), getattr(service.app.state.service, kind)
    every = [
        "comparison?job={}",
        "jobs/{}/rounds",
        "curves?job={}",
        "jobs/{}/rounds?limit=10000",
        "jobs",
        "jobs/{}",
    ]
    monkeypatch.setattr(lookups, "threads", 0)
    monkeypatch.setattr(lookups, "waiting", 0)
    for path in paths:
        problem(http.get(f"/api/v1/{path.format(job.id)}"), 503, "NOT_READY")
    for path in set(every) - set(paths):
        assert http.get(f"/api/v1/{path.format(job.id)}").status_code == 200
