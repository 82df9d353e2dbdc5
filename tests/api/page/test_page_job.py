"""The view of one job in a real browser, against a real server; skipped without a Chromium."""

from __future__ import annotations

import time

import pytest

from fedsim.base.costs import Cost
from fedsim.uploads.attacks import SignFlip, draw_attackers
from jobs.run.artifacts import save_personal_scores
from jobs.store.states import JobState
from tests.api.axe import violations
from tests.api.browser import COPY, NEEDS_CHROMIUM, NO_CLIPBOARD, Browser, until
from tests.api.service import RunningService, a_round

pytestmark = NEEDS_CHROMIUM

HIDE = """
    Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
"""
POINTS = "return document.querySelectorAll('#chart .points path').length"


def test_the_curve_grows_while_the_job_runs(browser: Browser, service: RunningService) -> None:
    job = service.running(name="<b>bold</b> & live", rounds=4)
    service.store.add_round(job.id, a_round(1))
    # An address of the first page still leads here.
    browser.open(f"{service.url}/#job={job.id}")
    until(lambda: "0.5000 at round 1" in browser.text("#chart-words"))
    assert browser.text("#job-head") == "<b>bold</b> & live"
    assert browser.text("#job-state") == "running"
    for number in (2, 3, 4):
        service.store.add_round(job.id, a_round(number))
        until(lambda at=number: f"at round {at}" in browser.text("#chart-words"))
    until(lambda: browser.script(POINTS) == 4)
    assert browser.text("#job-rounds") == "4 of 4 rounds"
    service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
    until(lambda: browser.text("#job-state") == "succeeded")
    assert "0.8000 at round 4" in browser.text("#facts-reached")
    assert "12 kB" in browser.text("#facts-cost")
    assert violations(browser) == []


@pytest.mark.slow
def test_a_hidden_page_gives_its_stream_back(browser: Browser, service: RunningService) -> None:
    """Six tabs with streams would take every connection that a browser opens to the service."""
    job = service.running(rounds=9)
    service.store.add_round(job.id, a_round(1))
    open_streams = service.app.state.streams
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: "at round 1" in browser.text("#chart-words"))
    until(lambda: open_streams.open == 1)
    browser.script(HIDE, True)
    until(lambda: open_streams.open == 0)
    service.store.add_round(job.id, a_round(2))
    # What it asks for now and then moves its title still.
    browser.comes(lambda: browser.driver.title.startswith("2/9"))
    assert open_streams.open == 0
    assert "at round 1" in browser.text("#chart-words")
    browser.script(HIDE, False)
    until(lambda: "at round 2" in browser.text("#chart-words"))
    assert (open_streams.open, browser.text("#connection")) == (1, "Connected")


def test_a_job_that_was_resumed_unseen_is_followed_again(browser: Browser, service: RunningService) -> None:
    """It failed before and fails now: between two questions of the page it was at work."""
    job = service.running(rounds=9)
    service.store.add_round(job.id, a_round(1))
    service.store.change_state(job.id, JobState.RUNNING, JobState.FAILED, message="no memory")
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: "at round 1" in browser.text("#chart-words") and browser.text("#job-state") == "failed")
    until(lambda: service.app.state.streams.open == 0)
    service.store.resume(job.id)
    service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
    service.store.add_round(job.id, a_round(2))
    service.store.change_state(job.id, JobState.RUNNING, JobState.FAILED, message="no memory")
    browser.comes(lambda: "at round 2" in browser.text("#chart-words"))


@pytest.mark.slow
def test_what_is_drawn_against_what(browser: Browser, service: RunningService) -> None:
    job = service.running(rounds=6)
    for number in range(1, 7):
        record = a_round(number, personal_accuracy=0.9)
        method = {"phase": "first" if number < 4 else "second", "inner": {"temperature": 1 / number}}
        cost = Cost(updates=10, flops=70 * number)
        service.store.add_round(job.id, record.model_copy(update={"method": method, "cost": cost}))
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: "personal accuracy: 0.9000 at round 6" in browser.text("#chart-words"))
    until(lambda: "phase: second" in browser.text("#chart .annotation"))
    browser.choose('[name="along"]', "bytes")
    until(lambda: browser.text("#chart .xtitle") == "simulated traffic, down and up")
    until(lambda: browser.count('[name="what"] option[value="method.inner.temperature"]'))
    browser.choose('[name="what"]', "method.inner.temperature")
    until(lambda: "inner: temperature: 0.1667 at round 6" in browser.text("#chart-words"))
    browser.choose('[name="what"]', "flops")
    until(lambda: "FLOPs: 420 FLOP at round 6" in browser.text("#chart-words"))
    browser.choose('[name="what"]', "flops_so_far")
    until(lambda: "FLOPs, cumulative: 1" in browser.text("#chart-words"))
    assert "FLOPs, cumulative: 1.47 kFLOP at round 6" in browser.text("#chart-words")
    browser.choose('[name="along"]', "updates")
    until(lambda: browser.text("#chart .xtitle") == "parameter updates, cumulative")
    assert browser.script("return document.getElementById('chart').data[0].x.at(-1)") == 60
    assert "parameter updates\n60\nFLOPs\n1.47 kFLOP" in browser.text("#facts-cost")
    browser.choose('[name="what"]', "loss")
    until(lambda: "best 0.1667 at round 6" in browser.text("#chart-words"))


@pytest.mark.slow
def test_scores_before_fine_tuning_are_a_choice_of_their_own(
    browser: Browser, service: RunningService
) -> None:
    job = service.running(rounds=2)
    service.store.add_round(job.id, a_round(1))
    service.store.add_round(job.id, a_round(2, personal_accuracy=0.9, personal_accuracy_before=0.4))
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: "personal accuracy: 0.9000 at round 2" in browser.text("#chart-words"))
    assert "before" not in browser.text("#chart-words")
    browser.choose('[name="what"]', "accuracy_before")
    until(lambda: browser.text("#chart-words").startswith("personal accuracy before: 0.4000 at round 2"))


def test_replaced_actors_and_failed_clients_are_told(browser: Browser, service: RunningService) -> None:
    job = service.running(rounds=6, resources={"gpus_per_worker": 0.25})
    record = a_round(1)
    engine = record.engine.model_copy(update={"restarts": 2})
    service.store.add_round(job.id, record.model_copy(update={"engine": engine, "failed": [4, 7]}))
    service.store.add_warning(job.id, "the disk is nearly full")
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: "the disk is nearly full" in browser.text("#events"))
    assert "2 workers with 1 CPU, 0.25 GPU each" in browser.text("#events")
    assert "2 workers replaced" in browser.text("#events")
    assert "because they failed: 4, 7" in browser.text("#events")
    until(lambda: "1 of these rounds had a failure and recovered" in browser.text("#time-words"))


def test_the_log_the_spec_and_the_downloads(browser: Browser, service: RunningService) -> None:
    job = service.ended(name="123", rounds=2)
    service.settings.log_path(job.id).write_text("first line\nlast line\n")
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: browser.visible("#downloads button"))
    for summary in browser.driver.find_elements("css selector", "summary:has(h2)"):
        # By the keyboard: what is still loading above may move a line away from under the mouse.
        summary.send_keys("\n")
    until(lambda: browser.text("#log") == "first line\nlast line\n")
    until(lambda: 'name: "123"\n' in browser.text("#spec"))
    assert "partition: {kind: dirichlet, beta: 0.5, min_size: 1}" in browser.text("#spec")
    browser.script(COPY)
    browser.script("document.querySelector('#copy-spec').click()")
    until(lambda: str(browser.script("return window.copied")).startswith('name: "123"\n'))
    saved = """
        const done = arguments[0];
        URL.createObjectURL = (blob) => { blob.text().then(done); return "#"; };
        document.querySelector('[data-file="rounds.csv"]').click();
    """
    csv = browser.driver.execute_async_script(saved)
    assert csv.splitlines()[0].startswith("round,")
    assert len(csv.splitlines()) == 3
    assert violations(browser) == []


@pytest.mark.slow
def test_a_spec_is_copied_without_a_clipboard(browser: Browser, service: RunningService) -> None:
    job = service.ended(name="123", rounds=1, seed=2**53 + 1)
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: browser.visible("#downloads button"))
    browser.script("document.querySelector('#spec').closest('details').open = true")
    until(lambda: 'name: "123"\n' in browser.text("#spec"))
    browser.script(NO_CLIPBOARD)
    copy = browser.find("#copy-spec")
    copy.send_keys("\n")
    until(lambda: str(browser.script("return window.copied")).startswith('name: "123"\n'))
    until(lambda: browser.text(".notice") == "The spec is copied")
    assert f"seed: {2**53 + 1}\n" in browser.script("return window.copied")
    assert browser.script("return document.activeElement.id") == "copy-spec"
    # Where nothing helps the text is marked.
    browser.script("document.execCommand = () => false")
    copy.send_keys("\n")
    until(lambda: browser.script("return getSelection().toString()").startswith('name: "123"\n'))
    assert "blocked copying" in browser.text(".notice.bad")


@pytest.mark.slow
def test_the_log_goes_on_with_a_resumed_job(browser: Browser, service: RunningService) -> None:
    """The page asks for it while it is open, and for the job itself no more often than before."""
    job = service.running()
    log = service.settings.log_path(job.id)
    log.write_text("it fails\n")
    service.store.change_state(job.id, JobState.RUNNING, JobState.FAILED, message="no memory")
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: browser.text("#job-state") == "failed")
    browser.script("document.getElementById('log').closest('details').open = true")
    until(lambda: browser.text("#log") == "it fails\n")
    for _ in range(3):
        service.store.resume(job.id)
        until(lambda: browser.text("#job-state") == "queued")
        service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
        service.store.change_state(job.id, JobState.STARTING, JobState.FAILED)
        until(lambda: browser.text("#job-state") == "failed")
    service.store.resume(job.id)
    service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    until(lambda: browser.text("#job-state") == "starting")
    with log.open("a") as file:
        file.write("it goes on\n")
    until(lambda: browser.text("#log") == "it fails\nit goes on\n")
    counted = f"""return [performance.now(), performance.getEntriesByType('resource')
        .filter(({{ name }}) => name.endsWith('/jobs/{job.id}')).length]"""
    began, before = browser.script(counted)
    time.sleep(6.5)
    ended, after = browser.script(counted)
    # Every 3 s, by the page's own clock.
    assert after - before <= (ended - began) / 3000 + 1


def test_the_clients_and_what_they_hold(browser: Browser, service: RunningService) -> None:
    job = service.ended(clients={"total": 25, "fraction": 0.5}, data={"dataset": "digits"})
    rows = [f"{client},25,{client},0.5" for client in range(25)]
    save_personal_scores(service.settings, job.id, "\n".join(["client,tests,correct,loss", *rows]))
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: browser.visible('[data-file="personal.csv"]'))
    browser.unfold(".clients summary")
    until(lambda: "Each client holds" in browser.text("#class-map-words"), seconds=40)
    until(lambda: browser.count("#class-map .hm image") == 1)
    # The colours have a legend, with the most examples that a client has of a class.
    largest = "return Math.max(...document.getElementById('class-map').data[0].z.flat())"
    assert browser.text(".scale").split() == ["0", str(browser.script(largest)), "examples"]
    # The clients have 0.00, 0.04, ... 0.96; a tenth of 25 clients is 2.5, which Python rounds to 2.
    words = (
        "Mean over all clients 0.4800; mean over the worst 10 % of clients (red bars) 0.0200; "
        "worst client 0.0000, best client 0.9600."
    )
    until(lambda: browser.text("#client-scores-words") == words)
    assert violations(browser) == []


@pytest.mark.slow
def test_a_job_of_many_rounds_is_drawn(browser: Browser, service: RunningService) -> None:
    job = service.ended(rounds=600)
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: "at round 600" in browser.text("#chart-words"))


@pytest.mark.slow
def test_attackers_and_what_changes_uploads_are_shown(browser: Browser, service: RunningService) -> None:
    job = service.ended(
        clients={"total": 10, "fraction": 0.5},
        data={"dataset": "digits"},
        attack={"name": "sign_flip", "share": 0.2},
        aggregation="median",
        compression={"name": "top_k", "share": 0.5},
    )
    browser.open(f"{service.url}/#/jobs/{job.id}")
    words = "attack sign_flip (share 0.2) · aggregation median · compression top_k (share 0.5)"
    until(lambda: words in browser.text(".view"))
    browser.unfold(".clients summary")
    attackers = draw_attackers(SignFlip(share=0.2), job.spec["seed"], 10).tolist()
    said = f"Malicious clients: {', '.join(map(str, attackers))}."
    until(lambda: said in browser.text("#class-map-words"), seconds=40)
    until(lambda: browser.text("#class-map .legendtext").split("\n") == ["other clients", "attackers"])
    assert browser.text("#class-map .xtitle") == "clients, attackers last"
    assert violations(browser) == []
