"""Metrics of which the lower value is better: in the table of jobs, the curves and the comparison."""

from __future__ import annotations

from jobs.store.records import Job, replace_non_finite
from jobs.store.states import JobState
from tests.api.browser import NEEDS_CHROMIUM, Browser, until
from tests.api.service import RunningService, a_round

pytestmark = NEEDS_CHROMIUM


def regression(service: RunningService, name: str, errors: list[float], seed: int = 1) -> Job:
    """A job that has succeeded with these root mean squared errors."""
    job = service.running(name=name, seed=seed, rounds=len(errors), algorithm=name.split()[0])
    for number, error in enumerate(errors, start=1):
        metrics = {"global_rmse": error, "global_mae": error / 2, "global_loss": error / 100}
        record = a_round(number).model_copy(update={"metrics": replace_non_finite(metrics)})
        service.store.add_round(job.id, record)
    service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
    return service.store.get(job.id)


def test_a_regression_shows_its_error(browser: Browser, service: RunningService) -> None:
    job = regression(service, "fedavg one", [70.0, 54.25, 61.5])
    browser.open(service.url)
    cell = f'[data-job="{job.id}"] .c-accuracy'
    until(lambda: browser.text(cell).split("\n") == ["61.5", "RMSE"])
    words = f'return document.querySelector(\'[data-job="{job.id}"] .spark\').getAttribute("aria-label")'
    until(lambda: browser.script(words) == "RMSE from 70 to 61.5, best 54.25")
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: "best global RMSE\n54.25 at round 2" in browser.text("#facts-reached"))
    until(lambda: browser.text("#chart-words") == "global RMSE: 61.5 at round 3, best 54.25 at round 2")
    assert browser.value('[name="what"]') == "rmse"
    assert browser.script("return document.getElementById('chart').layout.yaxis.title.text") == (
        "unit of the target, lower is better"
    )
    assert browser.script("return document.querySelector('[name=\"whole\"]').closest('label').hidden")
    browser.choose('[name="what"]', "mae")
    until(lambda: browser.text("#chart-words").startswith("global MAE: 30.75 at round 3"))


def test_the_lower_error_is_the_best_of_a_comparison(browser: Browser, service: RunningService) -> None:
    good = [regression(service, "fedavg", [70.0, 50.0 + seed], seed) for seed in (1, 2, 3)]
    bad = [regression(service, "fedprox", [70.0, 60.0 + seed], seed) for seed in (1, 2, 3)]
    jobs = ",".join(job.id for job in [*good, *bad])
    browser.open(f"{service.url}/#/compare?jobs={jobs}")
    until(lambda: "lower is better" in browser.text("#compare-words"))
    assert browser.text("#compare-words").startswith("global RMSE of fedavg")
    rows = """return [...document.querySelectorAll("#compared tbody tr")]
        .map((row) => [row.className, row.cells[3].textContent])"""
    until(lambda: browser.script(rows) == [["best", "baseline"], ["", "+10 (with all 3 seeds)"]])
    # The worst final value is the highest: all runs reach it.
    assert "rounds to 63" in browser.text("#compared thead")


def test_a_diverged_seed_is_counted_and_named(browser: Browser, service: RunningService) -> None:
    errors = {1: [70.0, 60.0], 2: [70.0, float("nan")], 3: [70.0, 62.0]}
    jobs = [regression(service, "fedavg", each, seed) for seed, each in errors.items()]
    jobs += [regression(service, "fedprox", [70.0, 64.0], seed) for seed in errors]
    browser.open(f"{service.url}/#/compare?jobs={','.join(job.id for job in jobs)}")
    rows = """return [...document.querySelectorAll("#compared tbody tr")]
        .map((row) => [row.cells[0].innerText.trim(), row.cells[1].textContent])"""
    found = [["fedavg (2 of 3 seeds, 1 not finite)", "61 ± 1.414"], ["fedprox (3 seeds)", "64 ± 0"]]
    until(lambda: browser.script(rows) == found)
    note = (
        "No finite final value of global_rmse, as after divergence, so these runs are left out of all means"
    )
    until(lambda: f"{note}: fedavg, seed 2." in browser.text("#compare-remarks"))
    # The curve is that of the two others.
    script = "return document.getElementById('compare-chart').data?.[0].y"
    until(lambda: browser.script(script) == [70, 61])
