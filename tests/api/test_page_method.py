"""What a method says of its rounds, as the page draws it, in a browser; skipped without a Chromium."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from jobs.records import Job
from tests.api.axe import violations
from tests.api.browser import NEEDS_CHROMIUM, Browser, until
from tests.api.said import CUT_SHORT, CUT_SHORT_MARKS, PHASE_CURVES, PHASE_MARKS, PHASES
from tests.api.service import RunningService, a_round

pytestmark = NEEDS_CHROMIUM


def a_job(service: RunningService, said: list[dict[str, Any]], **spec: Any) -> Job:
    job = service.running(rounds=len(said), **spec)
    for number, method in enumerate(said, start=1):
        record = a_round(number, open_share=number / len(said))
        service.store.add_round(job.id, record.model_copy(update={"method": method}))
    return job


def asked(browser: Browser, name: str, said: list[dict[str, Any]], *more: Any) -> Any:
    """What a function of method.js makes of these records; of a curve its values."""
    # As JSON, because the driver sorts the keys of what it is handed.
    script = """const [name, methods, more, done] = arguments;
        const all = JSON.parse(methods).map((method, index) => ({ round: index + 1, method, metrics: {} }));
        import("/static/method.js").then((module) => {
          const found = module[name]({ all }, ...more);
          const values = ({ name: text, read }) => [text, all.map((record) => read(record) ?? null)];
          const drawn = ([key, { lines }]) => [key, lines.map(values)];
          done(name === "methodCurves" ? Object.fromEntries(Object.entries(found).map(drawn)) : found);
        }, (error) => done(String(error)));"""
    return browser.driver.execute_async_script(script, name, json.dumps(said), list(more))


@pytest.fixture
def page(browser: Browser, service: RunningService) -> Browser:
    browser.open(f"{service.url}/#/cluster")
    return browser


def test_phases_and_freezes_are_marks_and_curves(page: Browser) -> None:
    told = asked(page, "marks", PHASES)
    assert [(mark["index"], mark["text"], mark["lasting"]) for mark in told] == PHASE_MARKS
    told = asked(page, "marks", CUT_SHORT)
    assert [(mark["index"], mark["text"], mark["lasting"]) for mark in told] == CUT_SHORT_MARKS
    curves = asked(page, "methodCurves", PHASES)
    lines = {name: [(line, values) for line, values in lines] for name, lines in curves.items()}
    assert lines == {f"method.{name}": lines for name, lines in PHASE_CURVES.items()}


def test_what_changes_in_every_round_is_no_mark_and_hides_none(page: Browser) -> None:
    said = [
        {"open": ["head"] if number < 30 else ["head", "conv1"], "seen": [number]} for number in range(40)
    ]
    assert asked(page, "marks", said) == [
        {"index": 0, "text": "open: head", "lasting": "open: head"},
        {"index": 30, "text": "open: head, conv1", "lasting": "open: head, conv1"},
    ]
    assert asked(page, "methodCurves", said) == {}
    grown = [{"pace": {"a": 0.8, "share": number / 10, "times": [1] * number}} for number in range(3)]
    assert asked(page, "marks", [{"b": False}, {}, {"b": False}, {"b": True}])[-1] == {
        "index": 3,
        "text": "b: true",
        "lasting": "b: true",
    }
    # What stays as it is is no curve; a list without a count of its own is counted.
    assert asked(page, "methodCurves", grown) == {
        "method.pace.share": [["pace: share", [0, 0.1, 0.2]]],
        "method.pace.times": [["pace: times, how many", [0, 1, 2]]],
    }


def test_words_at_marks_stand_beside_one_another(page: Browser) -> None:
    script = """const [marks, width, done] = arguments;
        const x = Array.from({ length: 30 }, (_, index) => index + 1);
        import("/static/views/marks.js").then(({ placed }) => done(placed(marks, x, width, 30)));"""
    every = [
        {"index": index, "text": f"frozen: + {index}", "lasting": ""} for index in range(30) if index % 10
    ]
    every += [
        {"index": index, "text": f"phase: {index}; frozen: none", "lasting": f"phase: {index}"}
        for index in (0, 10, 20)
    ]
    for width in (1000, 220):
        found = page.driver.execute_async_script(script, every, width)
        # What goes on is never left out, even for what only passes; on a phone that has no words at all.
        assert sum("phase" in place["text"] for place in found) == 3
        assert (len(found) > 3) == (width > 500)
        assert all(place["from"] >= 0 and place["to"] <= width for place in found)
        for row in range(3):
            mine = sorted((place["from"], place["to"]) for place in found if place["row"] == row)
            assert all(one[1] < other[0] for one, other in itertools.pairwise(mine))


def test_clusters_are_found_however_they_are_written(page: Browser) -> None:
    assert asked(
        page, "clusters", [{"clusters": [0, 1, 1], "temperature": 3.0}, {"temperature": 2.0}], 3
    ) == [0, 1, 1]
    assert asked(page, "clusters", [{"inner": {"cluster_of": {"0": 1, "1": 0}}}], 2) == [1, 0]
    # Sizes of clusters are fewer than the clients.
    assert asked(page, "clusters", [{"cluster_sizes": [2, 1], "clusters": 2}], 3) is None


def test_a_temperature_runs_beside_the_accuracy(browser: Browser, service: RunningService) -> None:
    job = a_job(
        service,
        [{"temperature": 5 / number, "phase": "warm" if number < 3 else "cold"} for number in range(1, 5)],
    )
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: "temperature: 5 at round 1, 1.25 at round 4" in browser.text("#chart-words"))
    assert browser.text("#chart .y2title") == "temperature"
    assert "phase: cold" in browser.text("#chart .annotation")
    browser.click("#marks summary")
    assert browser.text(".marks").split("\n") == ["round 1 phase: warm", "round 3 phase: cold"]
    # A metric that is no score, as a curriculum's pace, can stand there too.
    browser.choose('[name="beside"]', "open_share")
    until(lambda: "open share: 0.25 at round 1, 1 at round 4" in browser.text("#chart-words"))
    browser.choose('[name="beside"]', "")
    until(lambda: "temperature" not in browser.text("#chart-words"))
    assert "0.8000 at round 4" in browser.text("#chart-words")
    assert browser.text("#chart .y2title") == ""
    assert violations(browser) == []


def test_clusters_colour_the_map_of_clients(browser: Browser, service: RunningService) -> None:
    clusters = [0, 1, 1, 0, 2, 0, 1, 2]
    job = a_job(
        service, [{"clusters": clusters}], clients={"total": 8, "fraction": 0.5}, data={"dataset": "digits"}
    )
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: "at round 1" in browser.text("#chart-words"))
    browser.click(".clients summary")
    until(lambda: browser.count("#class-map .hm image") == 3, seconds=40)
    assert "Clusters of the method: 0 with 3, 1 with 3, 2 with 2." in browser.text("#class-map-words")
    assert browser.text("#class-map .legendtext").split("\n") == ["cluster 0", "cluster 1", "cluster 2"]
    assert browser.text("#class-map .xtitle") == "clients, by cluster"
