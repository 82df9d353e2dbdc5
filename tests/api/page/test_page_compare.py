"""Jobs side by side, and the cluster, in a browser against a real server; skipped without a Chromium."""

from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from api.comparison.compare import compare_runs
from api.comparison.compared_run import ComparedRun
from fedsim.base.costs import ClientTime, ClockReading, Cost
from fedsim.base.statistics import adjust_holm
from fedsim.engine.stopping import RunEnd
from jobs.grid.table import load_table
from jobs.local_ray.cluster import Share
from jobs.spec import parse_spec
from jobs.spec.sweep import members, read_sweep
from jobs.store.records import Job
from jobs.store.states import JobState
from tests.api.axe import violations
from tests.api.browser import COPY, NEEDS_CHROMIUM, Browser, until
from tests.api.service import RunningService, a_round, running_service

pytestmark = NEEDS_CHROMIUM


KEEP_FILE = """
    // Keep the file that the page saves where a test finds it.
    URL.createObjectURL = (blob) => { window.saved = blob; return "#/compare"; };
    HTMLAnchorElement.prototype.click = () => {};
"""


def a_study(service: RunningService) -> list[Job]:
    """Two methods with two seeds each, FedProx the better one."""
    jobs = []
    for algorithm, gain in (("fedavg", 0.0), ("fedprox", 0.05)):
        for seed in (1, 2):
            job = service.running(name=f"{algorithm}-seed{seed}", algorithm=algorithm, seed=seed, rounds=4)
            for number in range(1, 5):
                value = 0.5 + 0.08 * number + gain + 0.01 * seed
                record = a_round(number, global_accuracy=value)
                cost = Cost(updates=10 * seed, flops=70 * seed)
                service.store.add_round(job.id, record.model_copy(update={"cost": cost}))
            service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
            jobs.append(job)
    return jobs


def cells(browser: Browser) -> list[list[str]]:
    script = """return [...document.querySelectorAll("#compared tbody tr")]
        .map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"""
    return browser.script(script)  # type: ignore[no-any-return]


def test_runs_of_a_result_table_have_a_card_of_claims(browser: Browser, service: RunningService) -> None:
    """Of all jobs of the table, though two of them are compared."""
    finals, chosen = {"20 rounds": 0.8, "2 rounds": 0.5, "a tenth of the rate": 0.4}, []
    for member in load_table("demo-claim").runs():
        [method], seed = member.run.cell, member.run.seed
        if method in finals:
            job = service.store.create(member.spec, labels=member.labels)[0]
            service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
            service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
            score = finals[method] + 0.01 * (seed * len(method) % 7)
            service.store.add_round(job.id, a_round(1, global_accuracy=score))
            service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
            chosen += [job.id] * (seed == 1 and method != "2 rounds")
    browser.open(f"{service.url}/#/compare?jobs={','.join(chosen)}")
    script = """return [...document.querySelectorAll("#claims tbody tr")]
        .map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"""
    until(lambda: browser.script(script) != [])
    rows = browser.script(script)
    assert [row[2] for row in rows] == ["held", "reversed", "not run"]
    assert rows[0][:2] == ["FedAvg is better after 20 rounds than after 2.", "20 rounds against 2 rounds"]
    assert rows[0][4].startswith("+")
    assert "9 of 12 runs" in browser.text("#compare-claims")
    assert violations(browser) == []


def test_jobs_with_devices_have_simulated_axes(browser: Browser, service: RunningService) -> None:
    ids = []
    for has_devices in (True, False):
        job = service.running(name="x", algorithm="fedavg", seed=1, rounds=2)
        for number in (1, 2):
            times = (
                ClientTime(4, 30.0 * number - 30, 30.0 * number),
                ClientTime(7, 30.0, 40.0, counts=False),
            )
            reading = ClockReading(total=30.0 * number, round=30.0, joules=5.0, waited_for=4, timeline=times)
            reading = reading if has_devices else None
            service.store.add_round(job.id, a_round(number).model_copy(update={"clock": reading}))
        service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
        ids.append(job.id)
    axes = "return [...document.querySelector('[name=along]')?.options ?? []].map((each) => each.value)"
    browser.open(f"{service.url}/#/compare?jobs={ids[1]}")
    until(lambda: len(cells(browser)) == 1)
    assert browser.script(axes) == ["rounds", "bytes", "seconds", "updates", "flops"]
    browser.open(f"{service.url}/#/compare?jobs={ids[0]}&along=clock")
    until(lambda: browser.text("#compare-chart .xtitle") == "simulated time (s)")
    assert browser.script("return document.getElementById('compare-chart').data[0].x") == [30, 60]
    assert cells(browser)[0][-2:] == ["1 min", "10 J"]
    browser.open(f"{service.url}/#/jobs/{ids[0]}")
    until(lambda: browser.script(axes)[-2:] == ["clock", "joules"])
    browser.choose('[name="along"]', "joules")
    until(lambda: browser.text("#chart .xtitle").startswith("energy of the clients (J)"))
    until(lambda: browser.text("#client-times .ytitle") == "client")
    bars = "return document.getElementById('client-times').data.map(({ name, x, y }) => [name, x, y])"
    assert browser.script(bars) == [
        ["waited for", [0, 30, None, 30, 60, None], ["4", "4", None, "4", "4", None]],
        ["not counted", [30, 40, None, 30, 40, None], ["7", "7", None, "7", "7", None]],
    ]
    assert browser.text("#client-times-words").endswith("Round 2 ended with client 4.")


def test_jobs_are_compared(browser: Browser, service: RunningService) -> None:
    jobs = a_study(service)
    browser.open(f"{service.url}/#/compare?jobs={','.join(job.id for job in jobs)}")
    until(lambda: len(cells(browser)) == 2)
    first, second = cells(browser)
    # 0.83 and 0.84; 0.88 and 0.89: means with the deviations of samples.
    # The mean of the last five is that of all four rounds.
    assert first[:3] == ["fedavg (2 seeds)", "0.8350 ± 0.0071", "0.7150 ± 0.0071"]
    assert first[3:6] == ["baseline", "baseline", "0.8350 ± 0.0071"]
    assert second[:2] == ["fedprox (2 seeds)", "0.8850 ± 0.0071"]
    # The same difference in every seed.
    assert second[3:5] == ["+0.0500 (with all 2 seeds)"] * 2
    assert browser.count("#compared tr.best") == 1
    until(lambda: browser.count("#compare-chart .fills path") >= 2)
    assert violations(browser) == []
    browser.choose('[name="along"]', "flops")
    until(lambda: browser.text("#compare-chart .xtitle") == "training FLOPs, cumulative")
    # 4 rounds of 70 and of 140: the mean of two seeds.
    assert browser.script("return document.getElementById('compare-chart').data[0].x") == [105, 210, 315, 420]
    browser.click('[name="seeds"]')
    until(lambda: len(cells(browser)) == 4)
    same_as_the_command(browser, service, jobs)
    browser.script(COPY)
    browser.script("document.querySelector('.view-compare .title button').click()")
    until(lambda: browser.script("return window.copied === location.href"))
    address = browser.script("return window.copied")
    assert "seeds=0" in address
    browser.open(address)
    until(lambda: len(cells(browser)) == 4)


def same_as_the_command(browser: Browser, service: RunningService, jobs: list[Job]) -> None:
    told = compare_runs([ComparedRun(job.id, job.name, service.store.rounds(job.id)) for job in jobs])
    assert told.target is not None
    assert f"rounds to {told.target:.4f}" in browser.text("#compared thead")
    names = [f"{job.spec['algorithm']['name']}, seed {job.spec['seed']}" for job in jobs]
    for name, row, line in zip(names, cells(browser), told.lines, strict=True):
        assert line.final is not None
        assert line.best is not None
        assert line.cost_to_target is not None
        assert [row[0], row[1], *row[-6:-4]] == [
            name,
            f"{line.final.value:.4f}",
            f"{line.best.value:.4f} at {line.best.round}",
            str(line.cost_to_target.rounds),
        ]


@pytest.mark.slow
def test_a_target_that_cannot_be_read_is_told(browser: Browser, service: RunningService) -> None:
    job = service.ended(name="aims", rounds=4)
    browser.open(f"{service.url}/#/compare?jobs={job.id}")
    until(lambda: "rounds to 0.8000" in browser.text("#compared thead"))
    invalid = "return document.querySelector('[name=target]').getAttribute('aria-invalid')"
    browser.write('[name="target"]', "0,6")
    until(lambda: 'The target "0,6" is not a number' in browser.text("#target-fault"))
    assert browser.script(invalid) == "true"
    assert "rounds to 0.8000" in browser.text("#compared thead")
    assert violations(browser) == []
    browser.write('[name="target"]', "0.6")
    until(lambda: "rounds to 0.6000" in browser.text("#compared thead"))
    assert (browser.script(invalid), browser.text("#target-fault")) == (None, "")


@pytest.mark.slow
def test_jobs_are_found_and_added(browser: Browser, service: RunningService) -> None:
    one, two = service.ended(name="needle one", seed=1), service.ended(name="needle two", seed=2)
    straw = service.ended(name="straw")
    browser.open(f"{service.url}/#/compare")
    until(lambda: "Select jobs" in browser.text("#compare-note"))
    until(lambda: browser.count(f'[data-add="{straw.id}"]'))
    browser.paste("#find", "needle")
    until(lambda: browser.count("#found li") == 2)
    browser.click(f'[data-add="{one.id}"]')
    until(lambda: browser.text("#chosen-number") == "1 job")
    # The search stays as it is, and the next one found is in hand.
    assert browser.script("return document.activeElement.dataset.add") == two.id
    browser.click(f'[data-add="{two.id}"]')
    until(lambda: len(cells(browser)) == 1 and "2 seeds" in cells(browser)[0][0])
    assert browser.script("return location.hash").startswith(f"#/compare?jobs={one.id},{two.id}&")
    browser.driver.back()
    until(lambda: browser.text("#chosen-number") == "1 job")
    browser.open(f"{service.url}/#/compare?jobs={one.id},{two.id},0000")
    until(lambda: len(cells(browser)) == 1)
    assert browser.text("#compare-note") == "No such job: 0000"
    browser.script("""document.querySelector('[aria-label="Remove 0000"]').click()""")
    until(lambda: browser.text("#compare-note") == "")
    assert browser.text("#chosen-number") == "2 jobs: 1 group of 2 seeds"
    assert all("status of 404" in error for error in browser.errors())


def test_removed_jobs_leave_nothing_behind(browser: Browser, service: RunningService) -> None:
    one, two = service.ended(name="one"), service.ended(name="two", local={"lr": 0.2})
    compared(browser, service, one, two)
    section = '[aria-labelledby="differences-head"]'
    until(lambda: browser.visible(section))
    for left in (1, 0):
        browser.script("""document.querySelector('[aria-label^="Remove"]').click()""")
        until(lambda left=left: browser.count('[aria-label^="Remove"]') == left)
    until(lambda: "Select jobs" in browser.text("#compare-note"))
    assert not browser.visible(section)
    browser.open(f"{service.url}/#/jobs/%")
    until(lambda: "%" in browser.text("main"))
    assert all("status of 404" in error for error in browser.errors())


def test_a_baseline_and_a_metric_that_the_jobs_lack_are_told(
    browser: Browser, service: RunningService
) -> None:
    one, two = service.ended(name="one"), service.ended(name="two", local={"lr": 0.2})
    compared(browser, service, one, two, more="&against=kdia")
    until(lambda: 'against "kdia" is no group' in browser.text("body"))
    assert len(cells(browser)) == 2
    compared(browser, service, one, two, more="&metric=global_rmse")
    until(lambda: 'metric "global_rmse" is a metric of no round' in browser.text("body"))
    assert "global_rmse" not in browser.script("return location.hash")
    assert all("status of 422" in error for error in browser.errors())


def test_names_in_the_legend_are_text(browser: Browser, service: RunningService) -> None:
    name = '<a href="https://example.org">best</a> & <b>bold</b>'
    job, other = service.ended(name=name, rounds=2), service.ended(name="plain", rounds=2)
    browser.open(f"{service.url}/#/compare?jobs={job.id},{other.id}&seeds=0")
    until(lambda: browser.text("#compare-chart .legendtext") == f"{name}\nplain")
    assert browser.count("#compare-chart a") == 0
    until(lambda: browser.text("#compare-words").startswith(f"global accuracy of {name}; plain: higher"))


def compared(browser: Browser, service: RunningService, *jobs: Job, more: str = "") -> None:
    """Open the comparison of these jobs."""
    browser.open(f"{service.url}/#/compare?jobs={','.join(job.id for job in jobs)}{more}")
    until(lambda: cells(browser))


def a_sweep(
    service: RunningService, name: str, values: list[Any], seeds: tuple[int, ...] = (1, 2)
) -> list[Job]:
    """The jobs of a sweep over algorithms, each with two rounds."""
    sweep = read_sweep(
        {"name": name, "base": {"rounds": 2}, "axes": {"algorithm": values}, "seeds": [*seeds]}
    )
    found = []
    for member in members(sweep):
        job = service.store.create(member.spec, labels=member.labels)[0]
        service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
        service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
        for number in (1, 2):
            value = 0.1 * number + 0.2 * len(found) + 1 / 30
            service.store.add_round(job.id, a_round(number, global_accuracy=value))
        service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
        found.append(job)
    return found


def test_rows_have_the_names_of_a_sweep_and_no_json(browser: Browser, service: RunningService) -> None:
    values = ["fedavg", {"name": "fedprox", "mu": 0.1}, {"name": "fedprox", "mu": 1}]
    jobs = a_sweep(service, "mus", values)
    compared(browser, service, *jobs)
    names = ["fedavg", "fedprox mu=0.1", "fedprox mu=1"]
    assert [row[0] for row in cells(browser)] == [f"{name} (2 seeds)" for name in names]
    assert browser.text("#chosen-number") == "6 jobs: 3 groups of 2 seeds"
    assert not browser.visible("#chosen")
    browser.unfold("#chosen-number")
    chips = [f"{name}, seed {seed}" for name in names for seed in (1, 2)]
    assert browser.text("#chosen a").split("\n") == chips
    until(lambda: browser.text("#compare-chart .legendtext").startswith("fedavg (2 seeds)\nfedprox mu=0.1"))
    # A seed that waits is named below the table.
    labels = {"group": "mus", "algorithm": "fedavg", "seed": "9"}
    late = service.store.create(parse_spec({**jobs[0].spec, "seed": 9}), labels=labels)[0]
    compared(browser, service, *jobs, late)
    assert browser.text("#compare-remarks").startswith("No results yet: fedavg, seed 9 (queued).\n")


def test_rows_are_named_by_the_fields_that_differ(browser: Browser, service: RunningService) -> None:
    local = [service.ended(name=f"run {lr}", rounds=2, local={"lr": lr}) for lr in (0.05, 0.1)]
    prox = service.ended(name="prox", rounds=3, local={"lr": 0.1}, algorithm={"name": "fedprox", "mu": 0.5})
    compared(browser, service, *local)
    assert [row[0] for row in cells(browser)] == ["lr=0.05", "lr=0.1"]
    assert browser.text("#compare-remarks").startswith("Each row has one seed only")
    compared(browser, service, *local, prox)
    names = ["fedavg, lr=0.05", "fedavg, lr=0.1", "fedprox, lr=0.1"]
    assert [row[0] for row in cells(browser)] == names
    script = """return [...document.querySelectorAll("#differing tr")]
        .map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"""
    table = browser.script(script)
    assert sorted(table[1:]) == [
        ["algorithm", "fedavg", "fedavg", "fedprox"],
        ["algorithm.mu", "–", "–", "0.5"],
        ["local.lr", "0.05", "0.1", "0.1"],
    ]
    assert "The final values are of different rounds: 2 and 3; more rounds" in browser.text(
        "#compare-remarks"
    )
    assert violations(browser) == []


def test_the_final_value_is_of_the_round_of_the_result(browser: Browser, service: RunningService) -> None:
    """With `patience` the result is of the best round, as `fedsim compare` counts it."""
    job = service.running(name="patient", rounds=9)
    for number, value in enumerate([0.5, 0.7, 0.6], start=1):
        end = RunEnd("patience", 3, 2, {"global_accuracy": 0.7}, "no progress") if number == 3 else None
        record = a_round(number, global_accuracy=value).model_copy(update={"end": end})
        service.store.add_round(job.id, record)
    service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
    compared(browser, service, job)
    assert cells(browser)[0][:4] == ["patient", "0.7000", "0.6000", "0.7000 at 2"]


def test_a_comparison_is_saved_as_table_and_picture(browser: Browser, service: RunningService) -> None:
    jobs = a_sweep(service, "saved", ["fedavg", "fedprox"])
    compared(browser, service, *jobs)
    browser.script(KEEP_FILE)
    read = "const done = arguments[0]; window.saved ? window.saved.text().then(done) : done('')"
    browser.click("[data-table=csv]")
    until(lambda: browser.driver.execute_async_script(read) != "")
    first, second = csv.DictReader(io.StringIO(browser.driver.execute_async_script(read)))
    assert (first["group"], first["runs"], first["seeds"]) == (
        "fedavg (2 seeds)",
        f"{jobs[0].id} {jobs[2].id}",
        "1 2",
    )
    finals = [service.store.rounds(job.id)[-1].metrics["global_accuracy"] for job in (jobs[0], jobs[2])]
    assert float(first["final_mean"]) == statistics.fmean(finals)
    assert float(first["final_deviation"]) == pytest.approx(statistics.stdev(finals), rel=1e-12)
    assert (first["bytes_mean"], second["seconds_mean"]) == ("6000.0", "1.0")
    for ending, beginning in (("md", "| global accuracy"), ("tex", "% \\usepackage{booktabs}")):
        browser.script("window.saved = null")
        browser.click(f"[data-table={ending}]")
        until(lambda start=beginning: browser.driver.execute_async_script(read).startswith(start))  # type: ignore[misc]
    until(lambda: browser.count("#compare-chart .main-svg"))
    # The buttons of the table are far below; the header would cover those of the picture.
    browser.script("window.saved = null; scrollTo(0, 0)")
    browser.click("[data-picture=svg]")
    until(lambda: browser.driver.execute_async_script(read).startswith("<svg"))
    browser.click("[data-picture=png]")
    until(lambda: browser.script("return window.saved.type") == "image/png")
    assert browser.script("return window.saved.size") > 1000
    browser.click("[data-picture=pdf]")
    until(lambda: browser.driver.execute_async_script(read).startswith("%PDF"))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_chart_of_many_jobs_is_on_the_first_screen(
    browser: Browser, service: RunningService, width: int, height: int
) -> None:
    jobs = a_sweep(service, "many", ["fedavg", "fedprox", "fedavgm"], (1, 2, 3, 4))
    browser.open(f"{service.url}/#/compare?jobs={','.join(job.id for job in jobs)}", width, height)
    until(lambda: browser.count("#compare-chart .main-svg"))
    bottom = "return document.querySelector('#compare-chart').getBoundingClientRect().bottom"
    assert browser.script(bottom) <= height
    # The table scrolls in its box; its first column stays.
    script = """const box = document.querySelector("#compare-table");
        box.scrollLeft = 60;
        const [cell, room] = [box.querySelector("tbody th"), box.getBoundingClientRect()];
        const left = cell.getBoundingClientRect().left - room.left;
        return [document.documentElement.scrollWidth, Math.round(left)];"""
    assert browser.script(script) == [width, 0]


def test_a_seed_counts_once(browser: Browser, service: RunningService) -> None:
    """A job and its clone are one run made twice, which would make the deviation smaller than it is."""
    jobs = a_study(service)[:2]
    again = service.running(name="fedavg-seed2-clone", algorithm="fedavg", seed=2, rounds=4)
    for number in range(1, 5):
        service.store.add_round(again.id, a_round(number))
    service.store.change_state(again.id, JobState.RUNNING, JobState.SUCCEEDED)
    address = ",".join(job.id for job in [*jobs, again])
    browser.open(f"{service.url}/#/compare?jobs={address}")
    until(lambda: len(cells(browser)) == 2)
    together, alone = cells(browser)
    assert together[:2] == ["fedavg (2 seeds)", "0.8350 ± 0.0071"]
    assert alone[0] == "fedavg-seed2-clone"


def test_two_large_seeds_are_two(browser: Browser, service: RunningService) -> None:
    """JavaScript rounds both to the same number."""
    jobs = [service.ended(name="large", seed=seed, rounds=2) for seed in (2**53, 2**53 + 1)]
    browser.open(f"{service.url}/#/compare?jobs={','.join(job.id for job in jobs)}")
    until(lambda: [row[0] for row in cells(browser)] == ["large (2 seeds)"])


def test_seeds_that_are_not_whole_are_left_out_and_told(browser: Browser, service: RunningService) -> None:
    jobs = a_study(service)[:2]
    failed = service.running(name="fedavg-seed3", algorithm="fedavg", seed=3, rounds=4)
    service.store.add_round(failed.id, a_round(1, global_accuracy=0.1))
    service.store.change_state(failed.id, JobState.RUNNING, JobState.FAILED, message="no memory")
    browser.open(f"{service.url}/#/compare?jobs={','.join(job.id for job in [*jobs, failed])}")
    until(lambda: len(cells(browser)) == 1)
    assert cells(browser)[0][:2] == ["fedavg (2 of 3 seeds, 1 failed)", "0.8350 ± 0.0071"]
    browser.click('[name="seeds"]')
    until(lambda: len(cells(browser)) == 3)
    assert cells(browser)[2][:2] == ["fedavg-seed3, failed, 1 of 4 rounds", "0.1000"]


def test_a_seed_that_was_cancelled_is_called_so(browser: Browser, service: RunningService) -> None:
    jobs = a_study(service)[:2]
    cancelled = service.queued(name="fedavg-seed3", algorithm="fedavg", seed=3, rounds=4)
    service.store.change_state(cancelled.id, JobState.QUEUED, JobState.CANCELLED)
    compared(browser, service, *jobs, cancelled)
    until(lambda: cells(browser)[0][0] == "fedavg (2 of 3 seeds, 1 cancelled)")
    assert browser.text("#compare-remarks").startswith("No results: fedavg, seed 3 (cancelled).\n")
    # A row alone is not the best of several.
    assert browser.count("#compared tr.best") == 0


def test_different_data_are_not_ranked(browser: Browser, service: RunningService) -> None:
    sizes = {"name": "synthetic_images", "classes": 3}
    data = {"one": {"dataset": "digits"}, "two": {"dataset": sizes}}
    jobs = [
        service.ended(name=name, seed=seed, rounds=2 + seed, data=each)
        for name, each in data.items()
        for seed in (1, 2)
    ]
    compared(browser, service, *jobs)
    until(lambda: len(cells(browser)) == 2)
    assert "The rows have different data: digits and synthetic_images." in browser.text("#compare-remarks")
    assert [row[4] for row in cells(browser)] == ["–"] * 2
    assert "difference" not in browser.text("#compared thead")
    assert "rounds to the target" in browser.text("#compared thead")
    assert browser.count("#compared tr.best") == 0
    browser.write('[name="target"]', "0.6")
    until(lambda: [row[4] for row in cells(browser)] == ["2", "2"])
    again = service.ended(name="again", seed=1, rounds=4, data=data["one"])
    compared(browser, service, jobs[0], again, more="&seeds=0")
    until(lambda: browser.count("#compared tr.best") == 1)


def test_swatches_follow_the_colours_of_the_curves(browser: Browser, service: RunningService) -> None:
    jobs = a_study(service)
    browser.colours("light")
    compared(browser, service, *jobs)
    until(lambda: browser.count("#compare-chart .main-svg"))
    found = """return [...document.querySelectorAll("#compared .swatch")]
        .map((each) => getComputedStyle(each).backgroundColor)"""
    drawn = """return document.getElementById("compare-chart").data
        .flatMap(({ name, line }) => (name ? [line.color] : []))"""
    until(lambda: browser.script(found) == browser.script(drawn))
    light = browser.script(found)
    browser.colours("dark")
    until(lambda: browser.script(found) == browser.script(drawn) != light)
    browser.colours("light")


@pytest.mark.slow
def test_rounds_are_asked_for_where_there_are_new_ones(browser: Browser, service: RunningService) -> None:
    """Jobs that have ended are looked at again now and then: somebody may have resumed them."""
    waits, job = service.queued(name="waits", rounds=9), service.running(name="goes on later", rounds=9)
    service.store.add_round(job.id, a_round(1))
    service.store.change_state(job.id, JobState.RUNNING, JobState.FAILED, message="no memory")
    browser.open(f"{service.url}/#/compare?jobs={job.id},{waits.id}&seeds=0")
    until(lambda: "No results yet: waits (queued)" in browser.text("#compare-remarks"))
    assert len(cells(browser)) == 1
    service.store.resume(job.id)
    service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
    service.store.add_round(job.id, a_round(2))
    browser.comes(lambda: cells(browser)[0][:2] == ["goes on later, 2 of 9 rounds", "0.6667"])

    def asked() -> list[str]:
        script = "performance.getEntriesByType('resource').map(({ name }) => name.split('/api/v1')[1] ?? '')"
        return browser.script(f"return {script}")  # type: ignore[no-any-return]

    assert asked().count(f"/jobs/{waits.id}") > 2
    # The figures are asked for anew if a job has changed: at first, after the start, and after the round.
    assert 2 <= sum(name.startswith("/comparison?") for name in asked()) <= 4


def test_jobs_are_compared_by_what_all_of_them_have(browser: Browser, service: RunningService) -> None:
    """Where all models are clients' own there is no global accuracy; nor is there a curve of one point."""
    job = service.running(name="own models", rounds=2)
    for number in (1, 2):
        record = a_round(number).model_copy(update={"metrics": {"personal_accuracy": 0.3 * number}})
        service.store.add_round(job.id, record)
    other = service.running(name="scored once", rounds=1)
    service.store.add_round(other.id, a_round(1, personal_accuracy=0.5))
    browser.open(f"{service.url}/#/compare?jobs={job.id},{other.id}&seeds=0")
    until(lambda: len(cells(browser)) == 2)
    assert [row[1] for row in cells(browser)] == ["0.6000", "0.5000"]
    assert browser.value('[name="metric"]') == "personal_accuracy"
    until(lambda: browser.count("#compare-chart .points path") == 3)
    browser.choose('[name="metric"]', "global_accuracy")
    until(lambda: [row[1] for row in cells(browser)] == ["–", "0.5000"])
    assert "metric=global_accuracy" in browser.script("return location.hash")


def test_the_figures_are_those_of_scipy(browser: Browser, service: RunningService) -> None:
    """Three groups of four seeds: differences from a chosen baseline, adjusted for two tests."""
    finals = {
        "fedavg": [0.70, 0.72, 0.69, 0.73],
        "fedprox": [0.74, 0.73, 0.75, 0.74],
        "scaffold": [0.71, 0.72, 0.70, 0.73],
    }
    jobs = []
    for algorithm, values in finals.items():
        for seed, value in enumerate(values):
            job = service.running(name=f"{algorithm} {seed}", algorithm=algorithm, seed=seed, rounds=1)
            service.store.add_round(job.id, a_round(1, global_accuracy=value))
            service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
            jobs.append(job)
    compared(browser, service, *jobs, more="&against=scaffold&last=1")
    until(lambda: len(cells(browser)) == 3)
    tests = [stats.ttest_rel(finals[name], finals["scaffold"]) for name in ("fedavg", "fedprox")]
    adjusted = adjust_holm([test.pvalue for test in tests])
    for row, name, test, p in zip(cells(browser), finals, tests, adjusted, strict=False):
        interval = test.confidence_interval(0.95)
        gain = statistics.fmean(finals[name]) - statistics.fmean(finals["scaffold"])
        text = f"{gain:+.4f} [{interval.low:.4f}, {interval.high:.4f}], p = {p:.3f}".replace("-", "−")
        assert row[3] == row[4] == text
        assert row[1] == f"{stats.tmean(finals[name]):.4f} ± {stats.tstd(finals[name]):.4f}"
    assert cells(browser)[2][3] == "baseline"
    browser.choose('[name="against"]', "fedavg")
    until(lambda: cells(browser)[0][3] == "baseline")
    assert "against=fedavg" in browser.script("return location.hash")


def test_what_is_in_hand_stays_so_while_figures_come(browser: Browser, service: RunningService) -> None:
    job = service.running(name="goes on", rounds=9)
    service.store.add_round(job.id, a_round(1))
    browser.open(f"{service.url}/#/compare?jobs={job.id}")
    until(lambda: len(cells(browser)) == 1)
    browser.script("document.querySelector('#compared a').focus()")
    service.store.add_round(job.id, a_round(2))
    browser.comes(lambda: cells(browser)[0][1] == "0.6667")
    assert browser.script("return document.activeElement.textContent") == "goes on"


def test_fractions_of_gpus_are_told_by_node_and_by_job(
    browser: Browser, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = service.running(name="on a half")
    plain = service.dispatcher.read_cluster_state()
    gpus = Share(total=2, free=1.5)
    node = plain.nodes[0].model_copy(update={"gpus": gpus})
    actors = plain.jobs[0].model_copy(update={"job_id": job.id, "actors": 2, "gpus": 0.5})
    busy = plain.model_copy(update={"nodes": [node], "gpus": gpus, "jobs": [actors]})
    monkeypatch.setattr(service.dispatcher, "read_cluster_state", lambda: busy)
    browser.open(f"{service.url}/#/cluster")
    until(lambda: "0.5 of 2 GPUs reserved by jobs" in browser.text("#nodes"))
    assert "used by on a half" in browser.text("#nodes")
    [row] = [line for line in browser.text("#owners tr").split("\n") if line.startswith("on a half")]
    assert row.split("\t")[-4:] == ["2", "1", "0.5", "1"]


def test_of_a_long_queue_its_first_jobs_are_shown(browser: Browser, tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        works, old = service.running(name="at work"), service.queued(name="oldest")
        for _ in range(100):
            service.queued()
        service.store.create(parse_spec({"algorithm": "fedavg", "name": "most urgent"}), priority=1)
        browser.open(f"{service.url}/#/cluster")
        until(lambda: browser.count("#queue li") == 101)
        lines = [line.split()[0] for line in browser.text("#queue li").split("\n")]
        assert (lines[:3], lines[-1]) == (["most", old.name, "fedavg"], "more")
        until(lambda: works.name in browser.text("#owners"))
        assert browser.leave() == []


def test_the_cluster_and_its_absence(browser: Browser, service: RunningService) -> None:
    waits = service.queued(name="waits for the cluster")
    browser.open(f"{service.url}/#/cluster")
    until(lambda: "1 of 8 CPUs reserved by jobs" in browser.text("#nodes"))
    assert "12 GB of 32 GB of memory in use" in browser.text("#nodes")
    assert "59 % of 8 CPUs busy, load 4.50 in the last minute" in browser.text("#nodes")
    assert "abc" in browser.text("#owners")
    assert waits.name in browser.text("#queue")
    assert violations(browser) == []
    service.dispatcher.missing = "Ray is being started"
    browser.comes(lambda: browser.text("#cluster-note").startswith("Ray is being started"))
    service.dispatcher.missing = None
    assert all("status of 503" in error for error in browser.leave())
