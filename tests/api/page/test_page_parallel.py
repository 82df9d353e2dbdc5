"""The lines of runs: an axis for each field that differs, and the score; skipped without a Chromium."""

from __future__ import annotations

from typing import Any

import yaml

from jobs.spec import parse_spec
from jobs.store.records import Job
from jobs.store.states import JobState
from tests.api.axe import violations
from tests.api.browser import COPY, NEEDS_CHROMIUM, Browser, until
from tests.api.service import RunningService, a_round

pytestmark = NEEDS_CHROMIUM

AXES = """return [...document.querySelectorAll(".parallel .axis")].map((axis) => {
    const [, ...texts] = [...axis.querySelectorAll("text")].map(({ textContent }) => textContent);
    return `${axis.querySelector("title").textContent}: ${texts.filter(Boolean).join(", ")}`;
})"""
"""The field of each axis, the second line of its name, and its values."""


def a_run(service: RunningService, number: int, score: float | None, **fields: Any) -> Job:
    """Make a run of a group, with a score on the validation set and a flattering one on the test set."""
    spec = parse_spec({"algorithm": "fedavg", "name": f"run {number}", "rounds": 2, **fields})
    job = service.store.create(spec, labels={"group": "lines"})[0]
    service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
    if score is not None:
        metrics = {"global_accuracy": 1 - score, "global_validation_accuracy": score}
        service.store.add_round(job.id, a_round(1, **metrics))
    service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
    return job


def a_group(service: RunningService) -> list[Job]:
    runs: list[tuple[float | None, dict[str, Any]]] = [
        (0.5, {"local": {"lr": 0.001, "momentum": 0.5}}),
        (0.9, {"local": {"lr": 0.1, "momentum": 0.0}, "algorithm": {"name": "fedprox", "mu": 0.1}}),
        (0.7, {"local": {"lr": 1.0, "momentum": 0.9}, "seed": 4}),
        (None, {"local": {"lr": 0.01}}),
    ]
    return [a_run(service, number, score, **fields) for number, (score, fields) in enumerate(runs)]


def test_each_run_is_a_line_through_its_values(browser: Browser, service: RunningService) -> None:
    jobs = a_group(service)
    browser.open(f"{service.url}/#/compare?jobs={','.join(job.id for job in jobs)}")
    until(lambda: browser.count(".parallel .run") == 3)
    *fields, score = browser.script(AXES)
    assert set(fields) == {
        "algorithm: fedavg, fedprox",
        "algorithm.mu: –, 0.1",
        "local.lr: log scale, 0.001, 0.1, 1",
        "local.momentum: 0, 0.5, 0.9",
    }
    assert score == "global validation accuracy: accuracy, 0.5000, 0.7000, 0.9000"
    assert violations(browser) == []


def test_the_best_run_is_named_and_its_spec_is_one_click_away(
    browser: Browser, service: RunningService
) -> None:
    jobs = a_group(service)
    browser.open(f"{service.url}/#/compare?jobs={','.join(job.id for job in jobs)}")
    until(lambda: browser.count(".parallel .best.chosen") == 1)
    words = browser.text("#parallel-words")
    assert words.startswith("global validation accuracy of 3 runs; higher is better. Best: ")
    assert "lr 0.1" in words
    assert words.endswith("global validation accuracy 0.9000. Runs without a score are left out: 1.")
    browser.script(COPY)
    browser.click("#parallel-yaml")
    until(lambda: browser.script("return window.copied !== undefined"))
    copied = parse_spec(yaml.safe_load(browser.script("return window.copied")))
    assert copied.model_dump(mode="json") == jobs[1].spec
    # Another run is chosen by the keyboard or by a click on its line.
    browser.choose("#parallel select", jobs[2].id)
    until(lambda: browser.count(".parallel .chosen:not(.best)") == 1)
    assert browser.script("return document.querySelector('#parallel-job').hash") == f"#/jobs/{jobs[2].id}"
    browser.script("document.querySelector('.parallel .run').dispatchEvent(new MouseEvent('click'))")
    until(lambda: browser.value("#parallel select") == jobs[0].id)


def test_runs_that_differ_by_their_seeds_have_no_lines(browser: Browser, service: RunningService) -> None:
    jobs = [a_run(service, 0, 0.5, seed=seed) for seed in (1, 2)]
    browser.open(f"{service.url}/#/compare?jobs={','.join(job.id for job in jobs)}")
    until(lambda: browser.count("#compared tbody tr") == 1)
    assert not browser.visible("#parallel")
