"""The page with nothing played: a job submitted by the form runs on real actors, and a plan is measured."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.api.browser import NEEDS_CHROMIUM, Browser, until
from tests.e2e.server import Server, wait_for

# On a machine that does other things too, the plan alone takes minutes.
pytestmark = [NEEDS_CHROMIUM, pytest.mark.weekly, pytest.mark.timeout(1400)]

SPEC = """name: by hand
algorithm: {name: layer_schedule, every: 2}
rounds: 400
clients: {total: 20, fraction: 0.2}
model: {name: mlp, layers: 2}
local: {epochs: 30, batch_size: 16, lr: 0.01}
"""
"""Rounds long enough for a browser on a busy machine to come before the job's end."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def test_a_job_is_planned_submitted_watched_and_cancelled(
    server: Server, http: httpx.Client, browser: Browser
) -> None:
    browser.open(f"{server.url}/#/new")
    until(lambda: "This spec is valid" in browser.text("#verdict"), seconds=300)
    fill = """
        const area = document.querySelector("#yaml");
        area.value = arguments[0];
        area.dispatchEvent(new Event("input"));
    """
    browser.script(fill, SPEC)
    until(lambda: browser.value('[name="rounds"]') == "400", seconds=300)
    until(lambda: "This spec is valid" in browser.text("#verdict"), seconds=300)
    browser.click("#plan-start")
    until(lambda: "The job fits the cluster." in browser.text("#plan"), seconds=310)
    browser.click("#submit")
    until(lambda: browser.text("#job-head") == "by hand", seconds=300)
    job = browser.script("return location.hash").rsplit("/", 1)[1]
    # The curve grows while the job runs; the marks are where its blocks open, after 2 rounds and no more.
    until(lambda: "at round" in browser.text("#chart-words"), seconds=300)
    first = browser.text("#job-rounds")
    until(lambda: browser.text("#job-rounds") != first, seconds=300)
    until(lambda: "open blocks: fc1, fc2" in browser.text("#chart .annotation"), seconds=300)
    browser.click('[data-action="cancel"]')
    until(lambda: browser.text("#job-state") == "cancelled", seconds=300)
    found = wait_for(http, job, {"CANCELLED"})
    assert 0 < found["rounds_done"] < 400
    until(lambda: browser.visible('[data-action="resume"]'))
    browser.click('[data-action="resume"]')
    until(lambda: browser.text("#job-state") in ("queued", "starting", "running"), seconds=300)
    more = found["rounds_done"]
    until(lambda: http.get(f"/jobs/{job}").json()["rounds_done"] > more, seconds=300)
    http.post(f"/jobs/{job}/cancel")
    wait_for(http, job, {"CANCELLED", "SUCCEEDED"})
    browser.open(f"{server.url}/#/cluster")
    until(lambda: "reserved by jobs" in browser.text("#nodes"), seconds=300)
    assert browser.errors() == []
