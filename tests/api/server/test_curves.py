"""Curves of many jobs at once, in a few points each."""

from __future__ import annotations

import httpx
import pytest

from tests.api.service import RunningService, a_round


def test_a_few_evenly_spaced_rounds_and_the_last(
    http: httpx.Client, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = service.running(rounds=100)
    for number in range(1, 24):
        service.store.add_round(job.id, a_round(number))
    other = service.ended(rounds=2)
    asked = {"job": [other.id, job.id, "nobody", other.id], "points": 5}
    answer = http.get("/api/v1/curves", params=asked).json()["curves"]
    assert [curve["job_id"] for curve in answer] == [other.id, job.id]
    # Each round of these takes half a second, and sends 1,000 bytes down and 2,000 up.
    sums = {"bytes": 6000, "seconds": 1.0}
    assert answer[0] == {"job_id": other.id, "rounds": [1, 2], "values": [1 - 1 / 2, 1 - 1 / 3], **sums}
    # 23 rounds in 5 points: every fifth.
    assert answer[1]["rounds"] == [5, 10, 15, 20, 23]
    # All jobs share the points of an answer: here each of four gets three.
    monkeypatch.setattr("api.server.routes.curves.MOST_ANSWERED_POINTS", 12)
    answer = http.get("/api/v1/curves", params={**asked, "points": 500}).json()["curves"]
    assert [curve["rounds"] for curve in answer] == [[1, 2], [8, 16, 23]]


def test_rounds_without_a_score_are_left_out(http: httpx.Client, service: RunningService) -> None:
    job = service.running(rounds=10, evaluation={"every": 3})
    for number in range(1, 9):
        record = a_round(number)
        scored = record if number % 3 == 0 else record.model_copy(update={"metrics": {"train_loss": None}})
        service.store.add_round(job.id, scored)
    asked = {"job": job.id, "metric": "global_loss"}
    assert http.get("/api/v1/curves", params=asked).json()["curves"][0]["rounds"] == [3, 6]
    asked["metric"] = "train_loss"
    assert http.get("/api/v1/curves", params=asked).json()["curves"][0]["values"] == []


def test_what_cannot_be_asked(http: httpx.Client) -> None:
    for asked in ({}, {"job": "../etc"}, {"job": "a", "metric": "a'b"}, {"job": "a", "points": 1}):
        assert http.get("/api/v1/curves", params=asked).status_code == 422, asked
