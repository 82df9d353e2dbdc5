"""Limits: how often somebody may ask, how many streams, how large a body."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest

from api.server.limits import MOST_CALLERS, RateLimit, find_network
from fedsim.errors import SettingsError
from jobs.settings import Limits, Settings
from jobs.store.states import JobState
from tests.api.browser import until
from tests.api.service import running_service

JOBS = "/api/v1/jobs"


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_holds_a_minute_and_fills_at_an_even_pace() -> None:
    clock = Clock()
    limit = RateLimit(6, clock)
    assert [limit.take_request("10.0.0.1") for _ in range(8)] == [0] * 6 + [10, 10]
    assert limit.take_request("10.0.0.2") == 0
    clock.now += 9.9
    assert limit.take_request("10.0.0.1") == 1
    clock.now += 0.1
    assert [limit.take_request("10.0.0.1") for _ in range(2)] == [0, 10]
    clock.now += 3600
    assert [limit.take_request("10.0.0.1") for _ in range(7)] == [0] * 6 + [10]


def test_neighbours_count_for_themselves_and_a_network_for_one() -> None:
    assert find_network("10.0.0.1") == "10.0.0.1"
    assert find_network("2001:db8::1") == find_network("2001:db8::ffff") != find_network("2001:db8:0:1::1")
    assert find_network("somewhere") == find_network("x" * 60_000) == "unknown"
    limit = RateLimit(1, Clock())
    assert [limit.take_request(address) for address in ("2001:db8::1", "2001:db8::2")] == [0, 60]


def test_addresses_of_version_4_are_the_same_on_a_socket_for_both() -> None:
    assert find_network("::ffff:10.0.0.1") == "10.0.0.1"
    limit = RateLimit(1, Clock())
    assert [limit.take_request(f"::ffff:10.0.0.{last}") for last in (1, 2, 1)] == [0, 0, 60]
    assert limit.take_request("10.0.0.2") == 60
    assert [limit.take_request("::ffff:127.0.0.1") for _ in range(3)] == [0] * 3


def test_loopback_is_never_counted_and_zero_is_no_limit() -> None:
    limit = RateLimit(1, Clock())
    assert [limit.take_request("127.0.0.1") for _ in range(100)] == [0] * 100
    assert [limit.take_request("::1") for _ in range(100)] == [0] * 100
    unlimited = RateLimit(0, Clock())
    assert [unlimited.take_request("10.0.0.1") for _ in range(100)] == [0] * 100


def test_what_is_remembered_of_callers_is_limited() -> None:
    limit = RateLimit(1, Clock())
    for number in range(MOST_CALLERS + 100):
        limit.take_request(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(limit._buckets) == MOST_CALLERS


def test_who_asks_too_often_is_told_when_to_come_again(tmp_path: Path) -> None:
    # As a proxy on this machine passes it on; loopback itself is not counted.
    far = {"X-Forwarded-For": "203.0.113.7"}
    with running_service(tmp_path, limits=Limits(requests_per_minute=3)) as service:
        answers = [httpx.get(f"{service.url}{JOBS}", headers=far) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        refusal = answers[-1]
        assert refusal.json()["code"] == "TOO_MANY_REQUESTS"
        assert 1 <= int(refusal.headers["retry-after"]) <= 20
        assert refusal.headers["retry-after"] in refusal.json()["hint"]
        assert httpx.get(f"{service.url}{JOBS}").is_success
        assert httpx.get(f"{service.url}{JOBS}", headers={"X-Forwarded-For": "203.0.113.8"}).is_success
        # Who looks after the service, and the page itself, must not go without an answer.
        for path in ("/healthz", "/readyz", "/", "/static/app.js"):
            assert httpx.get(f"{service.url}{path}", headers=far).is_success


def test_streams_are_limited_and_come_free(tmp_path: Path) -> None:
    with running_service(tmp_path, limits=Limits(streams=2)) as service:
        job = service.running()
        service.settings.log_path(job.id).write_text("begun\n")
        urls = [f"{service.url}{JOBS}/{job.id}/{rest}" for rest in ("events", "logs?follow=true")]
        ready = threading.Barrier(3, timeout=10)

        def watch(url: str) -> None:
            with httpx.stream("GET", url, timeout=20) as response:
                pieces = response.iter_bytes()
                next(pieces)
                ready.wait()
                for _ in pieces:
                    pass

        watchers = [threading.Thread(target=watch, args=(url,)) for url in urls]
        for watcher in watchers:
            watcher.start()
        ready.wait()
        for url in urls:
            refusal = httpx.get(url)
            assert (refusal.status_code, refusal.json()["code"]) == (429, "TOO_MANY_REQUESTS")
            assert refusal.headers["retry-after"] == "5"
        assert "fedsim_streams 2.0" in httpx.get(f"{service.url}/metrics").text
        service.store.change_state(job.id, JobState.RUNNING, JobState.FAILED)
        for watcher in watchers:
            watcher.join(10)
        until(lambda: httpx.get(urls[0], timeout=10).status_code == 200)
        until(lambda: "fedsim_streams 0.0" in httpx.get(f"{service.url}/metrics").text)


def test_the_limit_of_bodies_is_a_setting(tmp_path: Path) -> None:
    with running_service(tmp_path, limits=Limits(body_bytes=1000)) as service:
        body = {"spec": {"algorithm": "fedavg", "name": "x" * 1000}}
        assert httpx.post(f"{service.url}{JOBS}", json=body).status_code == 413


def test_limits_come_from_the_environment() -> None:
    given = {"FEDSIM_RATE_LIMIT": "0", "FEDSIM_MAX_STREAMS": "7", "FEDSIM_MAX_BODY": "5000"}
    assert Settings.from_env(given).limits == Limits(5000, 0, 7)
    assert Settings.from_env({}).limits == Limits()
    given = {"FEDSIM_MAX_CONNECTIONS": "9", "FEDSIM_MAX_CONNECTIONS_PER_ADDRESS": "0"}
    limits = Settings.from_env({**given, "FEDSIM_REQUEST_SECONDS": "3"}).limits
    assert limits == Limits(connections=9, connections_per_address=0, request_seconds=3)
    with pytest.raises(SettingsError, match="FEDSIM_MAX_STREAMS is '0'"):
        Settings.from_env({"FEDSIM_MAX_STREAMS": "0"})
