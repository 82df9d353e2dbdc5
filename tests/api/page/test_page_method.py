"""Values that an algorithm reports, as the page draws them, in a browser; skipped without a Chromium."""

from __future__ import annotations

import itertools

import pytest

from api.reports.figures import PHASES
from api.reports.formatting import format_metric
from fedsim.learning_tasks.metrics import (
    METRICS,
    find_kind,
    find_metric,
    is_lower_better,
    main_metric_names,
)
from jobs.spec.fields import Clients
from tests.api.axe import violations
from tests.api.browser import NEEDS_CHROMIUM, Browser, until
from tests.api.real_runs import SPECS, RealJob, real_job
from tests.api.service import RunningService

pytestmark = [NEEDS_CHROMIUM, pytest.mark.slow]

LOSSES = ("global loss", "teacher loss", "train loss")


@pytest.fixture(scope="module")
def real(service: RunningService) -> dict[str, RealJob]:
    return {name: real_job(service, name) for name in SPECS}


def look(browser: Browser, service: RunningService, real: RealJob) -> None:
    """Open the job's page, and wait until its last round is drawn."""
    browser.open(f"{service.url}/#/jobs/{real.job.id}")
    until(lambda: f"at round {len(real.records)}" in browser.text("#chart-words"))
    # The page reads the values of the algorithm after the rounds, and draws them with the next frame.
    until(lambda: browser.text("#facts-method"))
    browser.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    browser.driver.execute_async_script("setTimeout(arguments[0], 300)")


def drawn(browser: Browser) -> dict[str, list[float]]:
    """The curves of the chart as they are, the values of each."""
    script = """const named = document.getElementById("chart").data.filter(({ name }) => name);
        return Object.fromEntries(named.map(({ name, y }) => [name, y]));"""
    found: dict[str, list[float]] = browser.script(script)
    return found


def marked(browser: Browser) -> list[str]:
    """The marks in words, as they stand in the list below the curves."""
    script = "return [...document.querySelectorAll('.marks li')].map((each) => each.textContent)"
    found: list[str] = browser.script(script)
    return found


def lines_at(browser: Browser) -> list[tuple[float, bool]]:
    """Where the chart has the marks, and whether as a line of its whole height."""
    script = "return document.getElementById('chart').layout.shapes.map(({ x0, y1 }) => [x0, y1 === 1])"
    return [(place, whole) for place, whole in browser.script(script)]


@pytest.fixture
def page(browser: Browser, service: RunningService) -> Browser:
    browser.open(f"{service.url}/#/cluster")
    return browser


def test_the_page_and_the_report_use_the_same_names(page: Browser) -> None:
    script = """const [metric, done] = arguments;
        Promise.all([import("/static/records.js"), import("/static/formatting.js")]).then(([one, other]) =>
            done([Object.fromEntries(one.PHASES), other.formatMetricName(metric)]));"""
    for metric in ("personal_accuracy_worst10", "global_mean_iou", "train_loss", "open_share"):
        assert page.driver.execute_async_script(script, metric) == [PHASES, format_metric(metric)]


def test_the_page_and_the_reports_have_the_same_metrics(page: Browser) -> None:
    script = """const [names, done] = arguments;
        import("/static/metrics.js").then((page) => done([page.METRICS, page.MAIN_METRICS,
            names.map((name) => [page.findKind(name), page.isLowerBetter(name), page.isShare(name)])]));"""
    names = ["global_rmse", "personal_mean_iou_worst10", "train_loss", "personal_rmse_std", "open_share"]
    table = {
        name: {"title": metric.title, "unit": metric.unit, "higher": metric.higher_is_better}
        for name, metric in METRICS.items()
    }
    found = [
        [
            find_kind(name),
            is_lower_better(name),
            (metric := find_metric(name)) is not None and metric.unit == "share",
        ]
        for name in names
    ]
    assert page.driver.execute_async_script(script, names) == [table, list(main_metric_names()), found]


def test_the_page_rounds_like_python(page: Browser) -> None:
    script = """const [values, sizes, done] = arguments;
        import("/static/formatting.js").then(({ roundHalfEven, cohortOf }) => done([values.map(roundHalfEven),
            sizes.map(([total, fraction]) => cohortOf({ clients: { total, fraction } }))]));"""
    values = [0.0, 0.4, 0.5, 0.6, 1.5, 2.5, 3.5, 0.1 * 25, 1e6 + 0.5]
    sizes = [(5, 0.1), (50, 0.05), (10, 0.25), (10, 0.35), (30, 0.1)]
    cohorts = [Clients(total=total, fraction=fraction).cohort_size for total, fraction in sizes]
    found = page.driver.execute_async_script(script, values, sizes)
    assert found == [[round(value) for value in values], cohorts]


def test_words_at_marks_stand_beside_one_another(page: Browser) -> None:
    script = """const [changes, width, done] = arguments;
        const x = Array.from({ length: 30 }, (_, index) => index + 1);
        import("/static/views/method_changes.js")
            .then(({ placeLabels }) => done(placeLabels(changes, x, width, 30)));"""
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
    # Where there is no room for all of it, what goes on is not cut short for the rest.
    both = [{"index": 0, "text": "phase: 1 of 3; newly frozen: 10, 11", "lasting": "phase: 1 of 3"}]
    for width, part in ((1000, "text"), (220, "lasting")):
        (place,) = page.driver.execute_async_script(script, both, width)
        assert place["text"] == both[0][part]


def test_kdias_student_and_teacher_are_curves(
    browser: Browser, service: RunningService, real: dict[str, RealJob]
) -> None:
    kdia = real["kdia"]
    look(browser, service, kdia)
    beside = {"generator loss": pytest.approx(kdia.said("generator_loss"))}
    accuracies = {
        "global accuracy": pytest.approx(kdia.scored("global_accuracy")),
        "teacher accuracy": pytest.approx(kdia.scored("teacher_accuracy")),
    }
    assert drawn(browser) == accuracies | beside
    assert kdia.scored("teacher_accuracy") != kdia.scored("global_accuracy")
    assert browser.text("#chart .y2title") == "generator loss"
    assert f"teacher accuracy\n{kdia.scored('teacher_accuracy')[-1]:.4f}" in browser.text("#facts-reached")
    assert f"teacher accuracy: {kdia.scored('teacher_accuracy')[-1]:.4f} at round 4" in browser.text(
        "#chart-words"
    )
    browser.choose('[name="what"]', "loss")
    until(lambda: "teacher loss" in browser.text("#chart-words"))
    losses = {name: pytest.approx(kdia.scored(name.replace(" ", "_"))) for name in LOSSES}
    assert drawn(browser) == losses | beside
    assert marked(browser) == []
    assert violations(browser) == []


def test_the_opening_of_a_block_is_a_line(
    browser: Browser, service: RunningService, real: dict[str, RealJob]
) -> None:
    look(browser, service, real["layer_schedule"])
    opened = {1: "fc1", 2: "fc1, fc2", 4: "fc1, fc2, fc3"}
    assert marked(browser) == [f"round {place} open blocks: {blocks}" for place, blocks in opened.items()]
    assert lines_at(browser) == [(place, True) for place in opened]
    words = browser.text("#chart .annotation")
    assert all(f"open blocks: {blocks}" in words for blocks in opened.values())
    assert f"open blocks\n{opened[4]}" in browser.text("#facts-method")


def test_fedcls_phases_are_lines_and_its_freezes_ticks(
    browser: Browser, service: RunningService, real: dict[str, RealJob]
) -> None:
    fedcl = real["fedcl"]
    expected, phases = dict[int, str](), list[int]()
    for number, (before, record) in enumerate(itertools.pairwise([None, *fedcl.records]), start=1):
        assert record is not None
        now, then = record.method, before.method if before else {}
        parts = [f"phase: {now['phase']}"] if now["phase"] != then.get("phase") else []
        phases += [number] if parts else []
        # No more than four come to a round: all of them are named.
        newly = now["newly_frozen"]
        assert isinstance(newly, list)
        parts += [f"newly frozen: {', '.join(map(str, newly))}"] if newly else []
        parts += [f"left: {now['left']}"] if now["left"] and now["left"] != then.get("left") else []
        expected |= {number: "; ".join(parts)} if parts else {}
    assert len(phases) == 3
    assert sum("newly frozen" in text for text in expected.values()) >= 2
    look(browser, service, fedcl)
    assert marked(browser) == [f"round {number} {text}" for number, text in expected.items()]
    assert lines_at(browser) == [(number, number in phases) for number in expected]
    assert "phase: over" in browser.text("#chart .annotation")
    # How many are frozen comes before the level of the phase, which its mark says already.
    assert browser.text("#chart .y2title") == "frozen clients"
    assert drawn(browser)["frozen clients"] == fedcl.said("frozen_clients")
    browser.choose('[name="beside"]', "method.quantiles")
    until(lambda: "quantiles 2" in browser.text("#chart-words"))
    quantiles = list(zip(*fedcl.said("quantiles"), strict=True))
    shown = drawn(browser)
    assert [shown["quantiles 1"], shown["quantiles 2"]] == [pytest.approx(list(each)) for each in quantiles]
    assert violations(browser) == []


def test_ace_pfls_temperature_runs_beside_the_accuracy(
    browser: Browser, service: RunningService, real: dict[str, RealJob]
) -> None:
    ace = real["ace_pfl"]
    temperatures = ace.said("temperature")
    look(browser, service, ace)
    assert browser.text("#chart .y2title") == "temperature"
    assert drawn(browser)["temperature"] == pytest.approx(temperatures)
    # A stage ends with every third round.
    steps = [abs(after - before) > 1 for before, after in itertools.pairwise(temperatures)]
    assert steps == [False, False, True, False, False, True]
    assert drawn(browser)["personal accuracy"] == pytest.approx(ace.scored("personal_accuracy"))
    words = f"temperature: {temperatures[0]:.2f} at round 1, {temperatures[-1]:.2f} at round 7"
    assert words in browser.text("#chart-words")
    browser.choose('[name="beside"]', "")
    until(lambda: "temperature" not in browser.text("#chart-words"))
    assert f"{ace.scored('personal_accuracy')[-1]:.4f} at round 7" in browser.text("#chart-words")
    assert browser.text("#chart .y2title") == ""
    assert violations(browser) == []


def test_ace_pfls_clusters_colour_the_map_of_clients(
    browser: Browser, service: RunningService, real: dict[str, RealJob]
) -> None:
    ace = real["ace_pfl"]
    cluster_of = ace.records[0].method["cluster_of"]
    assert isinstance(cluster_of, list)
    groups = {each: [k for k in range(8) if cluster_of[k] == each] for each in range(3)}
    assert ace.said("clusters") == [[len(who) for who in groups.values()]] * 7
    look(browser, service, ace)
    browser.unfold(".clients summary")
    sizes = ", ".join(f"{each} ({len(who)} client{'s' * (len(who) != 1)})" for each, who in groups.items())
    until(
        lambda: f"Clusters found by the algorithm: {sizes}." in browser.text("#class-map-words"), seconds=40
    )
    until(lambda: browser.count("#class-map .hm image") == 3)
    assert browser.text("#class-map .legendtext").split("\n") == [f"cluster {each}" for each in groups]
    assert browser.text("#class-map .xtitle") == "clients, by cluster"
    script = """return document.getElementById("class-map").data.map(
        ({ customdata: [first] }) => first.map(([client]) => client));"""
    assert browser.script(script) == [[f"client {each}" for each in who] for who in groups.values()]


def test_a_curriculums_clients_and_amount_of_data_are_drawn(
    browser: Browser, service: RunningService, real: dict[str, RealJob]
) -> None:
    curriculum = real["curriculum"]
    look(browser, service, curriculum)
    said = curriculum.said("client_curriculum")
    assert drawn(browser)["client curriculum: open clients"] == [each["open_clients"] for each in said]
    browser.choose('[name="beside"]', "method.client_curriculum.mean_loss")
    until(lambda: "mean loss" in browser.text("#chart-words"))
    losses = drawn(browser)["client curriculum: mean loss"]
    assert losses == pytest.approx([each["mean_loss"] for each in said])
    # A metric that is no score can stand there too: how much of their data the clients were shown.
    shares = curriculum.scored("open_share")
    assert shares == sorted(shares)
    browser.choose('[name="beside"]', "open_share")
    until(lambda: "open share" in browser.text("#chart-words"))
    assert drawn(browser)["open share"] == pytest.approx(shares)
    assert "data curriculum: budget\nglobal" in browser.text("#facts-method")
    assert marked(browser) == []
