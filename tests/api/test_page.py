"""The page in a real browser, against a real server; skipped where there is no Chromium."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.states import FailureReason, JobState
from tests.api.service import RunningService, a_round, running_service

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
)

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no chromium and chromedriver on the path (apt-get install chromium-driver)",
)


class Browser:
    """What the tests do with a browser."""

    def __init__(self, profile: Path) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver: Any = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))

    def open(self, url: str, width: int = 1600) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        # A fragment alone would not load the page again.
        self.driver.get("about:blank")
        self.driver.get(url)

    def text(self, selector: str) -> str:
        found = self.driver.find_elements("css selector", selector)
        return "\n".join(each.text for each in found)

    def visible(self, selector: str) -> bool:
        return any(each.is_displayed() for each in self.driver.find_elements("css selector", selector))

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def errors(self) -> list[str]:
        log = self.driver.get_log("browser")
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.driver.quit()


def until(condition: Callable[[], object], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.05)


def test_an_empty_service_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        browser.open(service.url)
        until(lambda: "fedsim submit demo" in browser.text("#jobs-note"))
        assert browser.text("#connection") == "Connected"
    assert browser.errors() == []


def test_the_curve_grows_while_the_job_runs(browser: Browser, service: RunningService) -> None:
    job = service.running(name="<b>bold</b> & live", rounds=4)
    service.store.add_round(job.id, a_round(1))
    browser.open(f"{service.url}/#job={job.id}")
    until(lambda: "0.5000 at round 1" in browser.text("#chart-words"))
    assert browser.text("#job-head") == "<b>bold</b> & live"
    assert browser.text("#job-state") == "running"
    for number in (2, 3, 4):
        service.store.add_round(job.id, a_round(number))
        until(lambda at=number: f"at round {at}" in browser.text("#chart-words"), seconds=5)
    drawn = "return document.querySelectorAll('#chart .points path').length"
    until(lambda: browser.driver.execute_script(drawn) == 4)
    assert browser.text("#job-rounds") == "4 of 4 rounds"
    service.store.advance(job.id, JobState.RUNNING, JobState.SUCCEEDED)
    until(lambda: browser.text("#job-state") == "succeeded")
    until(lambda: "0.8" in browser.text("#job-metrics"))
    assert browser.errors() == []


@pytest.mark.parametrize("width", [360, 1600])
def test_nothing_is_wider_than_the_window(browser: Browser, service: RunningService, width: int) -> None:
    job = service.ended(name="a-name-without-any-place-to-break-" * 2, rounds=5)
    browser.open(f"{service.url}/#job={job.id}", width)
    until(lambda: "at round 5" in browser.text("#chart-words"))
    assert browser.driver.execute_script("return document.documentElement.scrollWidth") <= width
    chart = browser.driver.find_element("css selector", "#chart .main-svg").size["width"]
    assert chart > 0.6 * min(width, 1100)


def test_choosing_another_job_shows_that_one(browser: Browser, service: RunningService) -> None:
    first = service.ended(name="first of two", rounds=2)
    second = service.running(name="second of two")
    message = "the file train-images is truncated"
    service.store.advance(
        second.id, JobState.RUNNING, JobState.FAILED, reason=FailureReason.BAD_DATA, message=message
    )
    browser.open(f"{service.url}/#job={first.id}")
    until(lambda: browser.text("#job-head") == "first of two")
    until(lambda: browser.visible(f'li[data-job="{second.id}"] button'))
    browser.click(f'li[data-job="{second.id}"] button')
    until(lambda: browser.text("#job-head") == "second of two")
    until(lambda: browser.text("#job-message") == message)
    assert browser.text("#job-state") == "failed"
    until(lambda: browser.text("#chart-words") == "No round has been scored yet.")
    browser.driver.back()
    until(lambda: browser.text("#job-head") == "first of two")


def test_an_unknown_job_is_said_to_be_unknown(browser: Browser, service: RunningService) -> None:
    browser.open(f"{service.url}/#job=0000")
    until(lambda: "0000" in browser.text("#detail-note"))
    assert not browser.visible("#job")


def test_a_lost_connection_is_said_and_found_again(browser: Browser, tmp_path: Path) -> None:
    with running_service(tmp_path) as first:
        job = first.running(name="survivor", rounds=3)
        first.store.add_round(job.id, a_round(1))
        browser.open(f"{first.url}/#job={job.id}")
        until(lambda: "at round 1" in browser.text("#chart-words"))
        port = first.port
    until(lambda: "lost" in browser.text("#connection"))
    with running_service(tmp_path, port=port) as second:
        second.store.add_round(job.id, a_round(2))
        until(lambda: "at round 2" in browser.text("#chart-words"))
        until(lambda: browser.text("#connection") == "Connected")
    browser.errors()


def test_a_token_is_asked_for_when_it_is_required(browser: Browser, tmp_path: Path) -> None:
    with running_service(tmp_path, token="the right token") as service:
        service.ended(name="secret job")
        browser.open(service.url)
        until(lambda: browser.visible("#token-dialog"))
        assert "secret" not in browser.driver.page_source
        browser.driver.find_element("id", "token").send_keys("the wrong token")
        browser.click("#token-form button")
        until(lambda: "did not accept" in browser.text("#token-note"))
        until(lambda: browser.visible("#token-dialog"))
        browser.driver.find_element("id", "token").send_keys("the right token")
        browser.click("#token-form button")
        until(lambda: "secret job" in browser.text("#job-list"))
        until(lambda: browser.text("#job-state") == "succeeded")
        assert not browser.visible("#token-dialog")
    browser.errors()


def test_a_job_of_many_rounds_is_drawn_soon(browser: Browser, service: RunningService) -> None:
    job = service.ended(rounds=1500)
    began = time.monotonic()
    browser.open(f"{service.url}/#job={job.id}")
    until(lambda: "at round 1500" in browser.text("#chart-words"))
    assert time.monotonic() - began < 10
    assert threading.active_count() < 60
