"""The page's shell and its table of jobs in a browser, against a real server; skipped without a Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.store.states import JobState
from tests.api.axe import violations
from tests.api.browser import NEEDS_CHROMIUM, Browser, until
from tests.api.service import RunningService, a_round, running_service

pytestmark = NEEDS_CHROMIUM


def row(job_id: str, column: str = "") -> str:
    return f'tr[data-job="{job_id}"]' + (f" .c-{column}" if column else "")


def test_an_empty_service_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        browser.open(service.url)
        until(lambda: "fedsim submit demo" in browser.text("#jobs-note"))
        until(lambda: browser.text("#connection") == "Connected")
        assert browser.leave() == []


def test_the_table_is_live(browser: Browser, service: RunningService) -> None:
    name = "<b>bold</b> & live"
    job = service.running(name=name, rounds=4)
    browser.open(service.url)
    until(lambda: browser.text(row(job.id, "state")) == "running")
    assert name in browser.text(row(job.id, "name"))
    for number in (1, 2, 3):
        service.store.add_round(job.id, a_round(number))
    browser.comes(lambda: browser.text(row(job.id, "progress")) == "3 / 4")
    assert browser.text(row(job.id, "accuracy")) == "0.7500"
    words = f"return document.querySelector('{row(job.id)} .spark').getAttribute(\"aria-label\")"
    until(lambda: browser.script(words) == "accuracy from 0.5000 to 0.7500, best 0.7500")
    assert violations(browser) == []


def test_clients_own_models_stand_for_a_job_that_has_no_other(
    browser: Browser, service: RunningService
) -> None:
    job = service.running(name="everybody's own", rounds=3)
    for number in (1, 2):
        metrics = {"personal_accuracy": 0.3 * number, "personal_accuracy_mean": 0.1}
        service.store.add_round(job.id, a_round(number).model_copy(update={"metrics": metrics}))
    browser.open(service.url)
    until(lambda: browser.text(row(job.id, "accuracy")).split("\n") == ["0.6000", "personal models"])
    words = f"return document.querySelector('{row(job.id)} .spark').getAttribute(\"aria-label\")"
    until(lambda: browser.script(words) == "accuracy from 0.3000 to 0.6000, best 0.6000")
    browser.click(f"{row(job.id)} a")
    until(lambda: "best personal accuracy\n0.6000 at round 2" in browser.text("#facts-reached"))


def test_filters_stand_in_the_address_and_keep_the_focus(browser: Browser, service: RunningService) -> None:
    waits = service.queued(name="a job that waits")
    ended = service.ended(name="a job that ended")
    browser.open(service.url)
    until(lambda: browser.visible(row(ended.id)))
    browser.click('[data-filter="QUEUED"]')
    until(lambda: browser.visible(row(waits.id)) and not browser.visible(row(ended.id)))
    assert browser.script("return location.hash") == "#/jobs?state=QUEUED"
    assert browser.script("return document.activeElement.dataset.filter") == "QUEUED"
    browser.driver.back()
    until(lambda: browser.visible(row(ended.id)))
    browser.open(f"{service.url}/#/jobs?label=nobody=has-it")
    until(lambda: browser.text("#jobs-note") == "No job matches these filters.")


def test_ticks_outlive_filters_and_all_are_ticked_at_once(browser: Browser, service: RunningService) -> None:
    one, two, other = (service.ended(name=name, rounds=1) for name in ("tick a", "tick b", "apart"))
    browser.open(service.url)
    until(lambda: browser.visible(row(other.id)))
    browser.click(f"{row(other.id)} .c-select input")
    assert browser.text("#compare-chosen") == "Compare 1"
    assert browser.script("return document.querySelector('[name=every]').indeterminate")
    # While it is typed, without leaving the field.
    browser.find('[name="search"]').send_keys("tick")
    until(lambda: browser.script("return location.hash") == f"#/jobs?chosen={other.id}&search=tick")
    until(lambda: browser.count("#job-table tbody tr") == 2)
    browser.click('[name="every"]')
    assert browser.text("#compare-chosen") == "Compare 3"
    browser.click('[data-filter="SUCCEEDED"]')
    assert "state=SUCCEEDED" in browser.script("return location.hash")
    assert browser.text("#compare-chosen") == "Compare 3"
    browser.click("#compare-chosen")
    until(lambda: all(name in browser.text("#compared") for name in ("tick a", "tick b", "apart")))
    browser.driver.back()
    until(lambda: browser.text("#compare-chosen") == "Compare 3")
    assert browser.find(f"{row(one.id)} .c-select input").is_selected()
    browser.click(f'{row(two.id)} [data-action="delete"]')
    until(lambda: browser.visible("#confirm-yes"))
    browser.click("#confirm-yes")
    until(lambda: browser.text("#compare-chosen") == "Compare 2")


def test_jobs_are_cancelled_resumed_and_deleted_from_their_rows(
    browser: Browser, service: RunningService
) -> None:
    job = service.running(name="to be stopped")
    browser.open(service.url)
    cancel, resume, delete = (
        f'{row(job.id)} [data-action="{name}"]' for name in ("cancel", "resume", "delete")
    )
    browser.comes(lambda: browser.visible(cancel))
    assert not browser.visible(delete)
    browser.click(cancel)
    browser.comes(lambda: service.store.get(job.id).state is JobState.CANCELLING)
    # The button is gone, and what is in hand is still of this job.
    browser.comes(lambda: not browser.visible(cancel))
    assert browser.script(f"return document.activeElement.closest('{row(job.id)}') !== null")
    service.store.change_state(job.id, JobState.CANCELLING, JobState.CANCELLED)
    browser.comes(lambda: browser.visible(resume))
    browser.click(resume)
    browser.comes(lambda: browser.text(row(job.id, "state")) == "queued")
    service.store.request_cancel(job.id)
    browser.comes(lambda: browser.visible(delete))
    browser.click(delete)
    until(lambda: browser.text("#confirm-head") == "Delete to be stopped?")
    assert browser.script("return document.activeElement.id") == "confirm-no"
    browser.click("#confirm-yes")
    browser.comes(lambda: not browser.visible(row(job.id)))


def test_a_finished_job_is_given_more_rounds(browser: Browser, service: RunningService) -> None:
    job = service.ended(rounds=5, name="to go on")
    browser.open(service.url)
    more = f'{row(job.id)} [data-action="more"]'
    browser.comes(lambda: browser.visible(more))
    assert not browser.visible(f'{row(job.id)} [data-action="resume"]')
    browser.click(more)
    until(lambda: browser.text("#confirm-head") == "More rounds for to go on")
    number = browser.find("#confirm-number")
    assert number.get_attribute("value") == "10"
    assert number.accessible_name == "Number of rounds, with those before"
    number.clear()
    number.send_keys("5")
    browser.click("#confirm-yes")
    assert browser.visible("#confirm-yes")  # 5 is not more
    number.clear()
    number.send_keys("8")
    browser.click("#confirm-yes")
    browser.comes(lambda: browser.text(row(job.id, "state")) == "queued")
    assert service.store.get(job.id).rounds_total == 8
    service.store.request_cancel(job.id)


def test_long_lists_come_in_pages(browser: Browser, tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        jobs = [service.queued(name=f"job {number}") for number in range(53)]
        browser.open(service.url)
        until(lambda: browser.count("#job-table tbody tr") == 50)
        browser.click("#page-on")
        until(lambda: browser.count("#job-table tbody tr") == 3)
        assert browser.visible(row(jobs[0].id))
        browser.click("#page-back")
        until(lambda: browser.visible(row(jobs[-1].id)))
        # Of two quick clicks the second one is ignored.
        browser.script("for (const _ of [1, 2]) document.querySelector('#page-on').click()")
        until(lambda: browser.count("#job-table tbody tr") == 3)
        browser.script("for (const _ of [1, 2]) document.querySelector('#page-back').click()")
        until(lambda: browser.visible(row(jobs[-1].id)))
        browser.click("#page-on")
        until(lambda: browser.visible(row(jobs[0].id)))
        browser.click("#page-back")
        until(lambda: browser.visible(row(jobs[-1].id)))
        assert browser.leave() == []


@pytest.fixture
def views(service: RunningService) -> dict[str, str]:
    """The address of each view, and what is there when it is."""
    job = service.running(name="a-name-without-any-place-to-break-" * 2, rounds=5)
    for number, method in enumerate([{"phase": "one"}, {"phase": "two", "temperature": 0.5}], start=1):
        record = a_round(number, personal_accuracy=0.4).model_copy(update={"method": method})
        service.store.add_round(job.id, record)
    service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
    found = {f"jobs/{job.id}": "#chart .main-svg", "jobs": row(job.id), "new": "#yaml"}
    return {**found, "cluster": "#nodes article", f"compare?jobs={job.id}": "#compared"}


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1600])
def test_no_view_is_wider_than_the_window(
    browser: Browser, service: RunningService, views: dict[str, str], width: int
) -> None:
    for address, sign in views.items():
        browser.open(f"{service.url}/#/{address}", width)
        until(lambda at=sign: browser.visible(at))
        assert browser.script("return document.documentElement.scrollWidth") <= width, address


def test_the_table_needs_no_scrolling_to_its_buttons(browser: Browser, service: RunningService) -> None:
    """A row as wide as they come: three buttons, minutes, a long name and method."""
    job = service.running(name="digits-layer-schedule, 600 rounds", algorithm="layer_schedule", rounds=2000)
    service.store.request_cancel(job.id)
    service.store.change_state(job.id, JobState.CANCELLING, JobState.CANCELLED)
    room = """const table = document.querySelector("#job-table");
        document.querySelector(arguments[0]).textContent = "59 min 59 s";
        return table.parentElement.clientWidth - table.parentElement.scrollWidth;"""
    for width in (1600, 1561, 1441, 1301, 1300):
        browser.open(f"{service.url}/#/jobs?search=digits-layer", width)
        until(lambda: browser.visible(row(job.id)))
        assert browser.script(room, row(job.id, "time")) >= 0, width


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_keeps_anybody_out(
    browser: Browser, service: RunningService, views: dict[str, str], width: int, scheme: str
) -> None:
    """No violation that axe-core finds; other tests look at what is seen on the way."""
    browser.colours(scheme)
    for address, sign in views.items():
        browser.open(f"{service.url}/#/{address}", width)
        until(lambda at=sign: browser.visible(at))
        browser.script("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
        assert violations(browser) == [], address
    browser.colours("light")


def test_light_and_dark_by_choice_and_by_the_system(browser: Browser, service: RunningService) -> None:
    service.ended()
    shade = "return getComputedStyle(document.querySelector('header')).backgroundColor"
    browser.colours("light")
    browser.open(service.url)
    assert browser.script(shade) == "rgb(255, 255, 255)"
    browser.colours("dark")
    until(lambda: browser.script(shade) == "rgb(22, 27, 34)")
    until(lambda: browser.visible("#job-table"))
    assert violations(browser) == []
    browser.click("#theme")
    until(lambda: browser.script(shade) == "rgb(255, 255, 255)")
    browser.script("localStorage.clear()")
    browser.colours("light")


def test_a_lost_connection_is_said_and_found_again(browser: Browser, tmp_path: Path) -> None:
    with running_service(tmp_path) as first:
        job = first.running(name="survivor", rounds=3)
        first.store.add_round(job.id, a_round(1))
        browser.open(f"{first.url}/#/jobs/{job.id}")
        until(lambda: "at round 1" in browser.text("#chart-words"))
        port = first.port
    until(lambda: "No connection" in browser.text("#connection"))
    with running_service(tmp_path, port=port) as second:
        second.store.add_round(job.id, a_round(2))
        until(lambda: "at round 2" in browser.text("#chart-words"))
        until(lambda: browser.text("#connection") == "Connected")
        # The browser itself tells of each request that found nobody; the page of none.
        assert all("net::ERR" in error for error in browser.leave())


def test_a_token_is_asked_for_when_it_is_required(browser: Browser, tmp_path: Path) -> None:
    with running_service(tmp_path, token="the right token") as service:
        service.ended(name="secret job")
        browser.open(service.url)
        until(lambda: browser.visible("#token-dialog"))
        assert "secret" not in browser.driver.page_source
        browser.find("#token").send_keys("the wrong token")
        browser.click("#token-form button")
        until(lambda: "did not accept" in browser.text("#token-note"))
        until(lambda: browser.visible("#token-dialog"))
        # Pasted with what is not seen, or with a curly quote: no request can carry it.
        for mispasted in ("the right\u200b token", "\u2018the right token\u2019"):
            browser.write("#token", mispasted)
            browser.click("#token-form button")
            until(lambda: "character that tokens cannot contain" in browser.text("#token-note"))
            assert browser.visible("#token-dialog")
        browser.write("#token", "the right token ")
        browser.click("#token-form button")
        until(lambda: "secret job" in browser.text("#job-table"))
        assert not browser.visible("#token-dialog")
        assert all("status of 401" in error for error in browser.leave())


def test_the_page_is_used_by_keyboard(browser: Browser, service: RunningService) -> None:
    """Every step by keys alone, each place that is reached marked."""
    tab, enter, escape, space = "\ue004", "\ue007", "\ue00c", " "
    job = service.ended(name="by hand", rounds=2)
    held = "const held = document.activeElement; return "

    def walk(condition: str) -> None:
        for _ in range(80):
            browser.press(tab)
            if browser.script(f"{held}{condition}"):
                assert browser.script(f"{held}getComputedStyle(held).outlineStyle !== 'none'"), condition
                return
        raise AssertionError(f"no tab comes to {condition}")

    browser.open(f"{service.url}/#/jobs?search=by+hand")
    until(lambda: browser.visible(row(job.id)))
    walk("held.matches('.skip') && held.getBoundingClientRect().top >= 0")
    browser.press(enter)
    assert browser.script(f"{held}held.id") == "main"
    walk("held.dataset.filter === 'all'")
    walk(f"held.closest('[data-job=\"{job.id}\"] .c-select') !== null")
    browser.press(space)
    until(lambda: browser.text("#compare-chosen") == "Compare 1")
    walk("held.closest('.c-name') !== null")
    browser.press(enter)
    until(lambda: browser.visible("#downloads button"))
    assert browser.script(f"{held}held.id") == "main"
    walk("held.dataset.action === 'delete'")
    browser.press(enter)
    until(lambda: browser.visible("#confirm"))
    assert browser.script(f"{held}held.id") == "confirm-no"
    browser.press(escape)
    until(lambda: not browser.visible("#confirm"))
    assert browser.script(f"{held}held.dataset.action") == "delete"
    walk("held.name === 'along'")
    walk("held.matches('summary') && held.textContent === 'Spec'")
    browser.press(enter)
    until(lambda: "name: by hand" in browser.text("#spec"))
