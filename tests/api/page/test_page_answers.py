"""Answers that come to the page late, out of order or not at all; skipped without a Chromium."""

from __future__ import annotations

import pytest

from tests.api.browser import NEEDS_CHROMIUM, Browser, until
from tests.api.service import RunningService, a_round

pytestmark = [NEEDS_CHROMIUM, pytest.mark.slow]

HOLD = """
    // Of the answers to requests whose address has this in it, the first is held back until `release()`.
    const [part, real] = [arguments[0], window.fetch];
    const held = new Promise((resolve) => { window.release = resolve; });
    window.asked = [];
    window.held = false;
    window.fetch = async (url, options) => {
        if (!url.includes(part)) return real(url, options);
        const isFirst = window.asked.push(options.body ?? url) === 1;
        const answer = await real(url, options);
        if (!isFirst) return answer;
        // Whole, so that nothing of it is still to come once it is let go.
        const whole = new Response(await answer.text(), answer);
        window.held = true;
        await held;
        return whole;
    };
"""
BUSY = """
    // The service is busy for requests to this address, until `answer()`.
    const [path, real] = [arguments[0], window.fetch];
    window.fetch = async (url, options) =>
        url.endsWith(path) ? new Response('{"detail": "busy"}', { status: 503 }) : real(url, options);
    window.answer = () => { window.fetch = real; };
"""
LOSE = """
    // The service handles so many submissions whose answers do not arrive.
    const [most, real] = [arguments[0], window.fetch];
    window.lost = 0;
    window.fetch = async (url, options) => {
        const answer = await real(url, options);
        if (!url.endsWith("/jobs") || options.method !== "POST" || window.lost === most) return answer;
        window.lost += 1;
        throw new TypeError("Failed to fetch");
    };
"""
HASTE = """
    // The page loses its patience sooner: what takes it half a minute or more takes half a second.
    const slow = window.setTimeout;
    window.setTimeout = (work, time, ...rest) => slow(work, time < 30000 ? time : 500, ...rest);
"""
HANG = """
    // From now on requests are taken and not answered, until `answer()`.
    const real = window.fetch;
    window.answer = () => { window.fetch = real; };
    window.fetch = (url, { signal }) => new Promise((_, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason));
    });
"""
COUNT = """
    // How often something is asked for whose address ends so.
    const [end, real] = [arguments[0], window.fetch];
    window.counted = 0;
    window.fetch = (url, options) => {
        window.counted += url.endsWith(end);
        return real(url, options);
    };
"""
WATCH = """
    // Rows that come to the table from now on.
    window.seen = [];
    const note = ({ addedNodes }) => addedNodes.forEach((row) => window.seen.push(row.dataset.job));
    new MutationObserver((changes) => changes.forEach(note))
        .observe(document.querySelector("#job-table tbody"), { childList: true });
"""
LONGER = 500
"""Milliseconds; longer than any view waits after what is typed."""


def rest(browser: Browser, milliseconds: int = LONGER) -> None:
    """Let a time pass by the page's own clock, after which it has done what it was to do sooner."""
    browser.driver.execute_async_script("setTimeout(arguments[1], arguments[0])", milliseconds)


def held_back(browser: Browser) -> bool:
    return browser.script("return window.held") is True


def row(job_id: str) -> str:
    return f'tr[data-job="{job_id}"]'


def test_one_look_at_a_spec_is_asked_for_at_a_time(browser: Browser, service: RunningService) -> None:
    """While one is not answered the others wait, and of those only the last is asked for."""
    browser.open(f"{service.url}/#/new")
    until(lambda: browser.text("#verdict"), seconds=40)
    browser.script(HOLD, "/check")
    texts = [f"algorithm: fedavg\nrounds: {rounds}\n" for rounds in (3, 4, 5)]
    for text in texts:
        browser.paste("#yaml", text)
        rest(browser)
    assert browser.script("return window.asked") == texts[:1]
    browser.script("window.release()")
    until(lambda: browser.value('[name="rounds"]') == "5")
    assert browser.script("return window.asked") == [texts[0], texts[2]]


def test_the_preset_that_was_chosen_last_fills_the_form(browser: Browser, service: RunningService) -> None:
    browser.open(f"{service.url}/#/new")
    until(lambda: browser.text("#verdict"), seconds=40)
    browser.script(HOLD, "/check")
    browser.choose('[name="preset"]', "fmnist-fedavg")
    until(lambda: held_back(browser))
    browser.choose('[name="preset"]', "")
    until(lambda: browser.value("#yaml") == "algorithm: fedavg\n")
    browser.script("window.release()")
    rest(browser)
    assert browser.value("#yaml") == "algorithm: fedavg\n"


def test_a_submission_whose_answer_is_lost_is_one_job(browser: Browser, service: RunningService) -> None:
    browser.open(f"{service.url}/#/new")
    until(lambda: browser.text("#verdict"), seconds=40)
    browser.script(LOSE, 2)
    ready = "return document.querySelector('#submit').ariaDisabled === null"
    # Other labels are another submission, whatever became of the one before.
    for number, labels in enumerate(("lost=once", "lost=twice"), start=1):
        browser.write('[name="labels"]', labels)
        browser.click("#submit")
        until(lambda wanted=number: browser.script("return window.lost") == wanted)
        until(lambda: browser.script(ready))
    assert "does not answer" in browser.text(".notice")
    browser.click("#submit")
    until(lambda: browser.script("return location.hash").startswith("#/jobs/"))
    late, early = service.store.list(label="lost").jobs
    assert (early.labels, late.labels) == ({"lost": "once"}, {"lost": "twice"})
    assert browser.script("return location.hash") == f"#/jobs/{late.id}"


def test_the_last_search_for_jobs_wins(browser: Browser, service: RunningService) -> None:
    early, late = service.queued(name="asked early"), service.queued(name="asked late")
    browser.open(f"{service.url}/#/jobs?search=asked")
    until(lambda: browser.visible(row(early.id)))
    browser.script(HOLD, "search=asked+early")
    browser.paste('[name="search"]', early.name)
    until(lambda: held_back(browser))
    browser.paste('[name="search"]', late.name)
    until(lambda: browser.visible(row(late.id)) and not browser.visible(row(early.id)))
    browser.script(WATCH)
    browser.script("window.release()")
    rest(browser)
    assert browser.script("return window.seen") == []


def test_the_last_search_for_jobs_to_compare_wins(browser: Browser, service: RunningService) -> None:
    early, late = service.queued(name="found early"), service.queued(name="found late")
    browser.open(f"{service.url}/#/compare")
    until(lambda: browser.count(f'[data-add="{early.id}"]'))
    browser.script(HOLD, "search=found+early")
    browser.paste("#find", early.name)
    until(lambda: held_back(browser))
    browser.paste("#find", late.name)
    until(lambda: browser.text("#found button") == "+ found late")
    browser.script("window.release()")
    rest(browser)
    assert browser.text("#found button") == "+ found late"


def test_a_service_that_hangs_does_not_answer(browser: Browser, service: RunningService) -> None:
    job = service.ended(name="hangs")
    browser.open(f"{service.url}/#/jobs?search=hangs")
    until(lambda: browser.visible(row(job.id)))
    until(lambda: browser.text("#connection") == "Connected")
    browser.script(HASTE + HANG)
    browser.comes(lambda: "No connection" in browser.text("#connection"))
    browser.script("window.answer()")
    browser.comes(lambda: browser.text("#connection") == "Connected")


def test_a_busy_service_is_asked_about_a_job_again(browser: Browser, service: RunningService) -> None:
    job = service.running(name="busy")
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: browser.text("#connection") == "Connected")
    browser.script(BUSY, f"/jobs/{job.id}")
    browser.comes(lambda: "No connection" in browser.text("#connection"))
    browser.script("window.answer()")
    browser.comes(lambda: browser.text("#connection") == "Connected")


def test_a_busy_service_is_asked_for_a_check_again(browser: Browser, service: RunningService) -> None:
    browser.open(f"{service.url}/#/new")
    until(lambda: browser.text("#verdict") == "This spec is valid.", seconds=40)
    browser.script(BUSY, "/check")
    browser.write('[name="rounds"]', "7")
    until(lambda: browser.text("#verdict") == "busy")
    assert "No connection" in browser.text("#connection")
    browser.script("window.answer()")
    until(lambda: browser.text("#verdict") == "This spec is valid.")
    assert browser.text("#connection") == "Connected"


def test_a_stream_that_falls_silent_is_opened_again(browser: Browser, service: RunningService) -> None:
    """The network went without a word: nobody ends the connection."""
    job = service.running(rounds=9)
    service.store.add_round(job.id, a_round(1))
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: "at round 1" in browser.text("#chart-words"))
    browser.script(HASTE)
    browser.script(COUNT, "/events")
    service.store.add_round(job.id, a_round(2))
    until(lambda: "at round 2" in browser.text("#chart-words"))
    # A quiet stream would say after 15 s that it is there.
    until(lambda: browser.script("return window.counted") >= 2, seconds=10)
    service.store.add_round(job.id, a_round(3))
    until(lambda: "at round 3" in browser.text("#chart-words"))
