"""`fedsim report`: one HTML file that needs no network, and pictures for a paper."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from api.cli.display import make_rounds_table
from api.reports.class_map import draw_class_map, make_class_map_figure, plot_class_map
from api.reports.client_times import CLIENT_TIMES, make_client_times_figure
from api.reports.figures import make_clients_figure, make_figures
from api.reports.html_report import RunReport, list_facts, render_report
from api.reports.method_curves import find_method_changes, find_method_curves
from api.reports.pictures import save_canvas
from api.reports.round_failures import MOST_ROUNDS, list_round_failures
from fedsim.base.costs import ClientTime, ClockReading, Cost
from jobs.run.artifacts import save_personal_scores
from jobs.run.run_result import RunSummary
from jobs.store.records import Engine, RoundRecord, RunTotals
from tests.api.browser import NEEDS_CHROMIUM, Browser, until
from tests.api.said import CUT_SHORT, CUT_SHORT_MARKS, PHASE_CURVES, PHASE_MARKS, PHASES
from tests.api.service import Fedsim, RunningService, a_round


def test_a_regression_is_drawn_with_unit_and_direction() -> None:
    errors = [70.0, 55.0, 60.0]
    records = [
        a_round(number).model_copy(update={"metrics": {"global_rmse": error, "global_mae": error / 2}})
        for number, error in enumerate(errors, start=1)
    ]
    found = {figure.name: figure for figure in make_figures(records)}
    assert list(found) == ["rmse", "rmse-by-traffic", "rmse-by-seconds", "mae", "seconds"]
    assert found["rmse"].curves == [("global RMSE", [1.0, 2.0, 3.0], errors)]
    assert found["rmse"].y_title == "RMSE (unit of the target)"
    assert found["rmse"].title == "RMSE by round (lower is better)"
    reported = RunReport("mine", "1", "SUCCEEDED", "", {}, records)
    assert dict(list_facts(reported))["best global RMSE"] == "55 at round 2"
    (clients,) = make_clients_figure("client,tests,rmse,loss\n0,5,40.0,0.3\n1,5,60.0,0.7\n")
    assert clients.curves[0].y == [60.0, 40.0]
    assert RunSummary.of(records).document()["best"] == {"round": 2, "global_rmse": 55.0}


def test_a_privacy_budget_is_in_the_figures_of_a_report_and_in_the_table_of_rounds() -> None:
    budget = {"kind": "central", "delta": 1e-5, "noise_multiplier": 1.0, "clip": 1.0}
    said = [{"privacy": {**budget, "epsilon": epsilon}} for epsilon in (1.23456, 2.34567, None)]
    records = [a_round(n).model_copy(update={"method": method}) for n, method in enumerate(said, start=1)]
    facts = dict(list_facts(RunReport("mine", "1", "SUCCEEDED", "", {}, records[:2])))
    assert facts["epsilon"] == "2.346, at delta 1e-05"
    column = make_rounds_table(records).columns[-1]
    assert (column.header, list(column.cells)) == ("epsilon", ["1.235", "2.346", "infinite"])
    own = a_round(1).model_copy(update={"method": {"privacy": {"labels": {"epsilon": 1.0}}}})
    assert make_rounds_table([own]).columns[-1].header != "epsilon"
    assert "privacy.epsilon" in find_method_curves(records[:2])


def test_what_is_drawn() -> None:
    # a_round: accuracy 1 - 1/(n + 1), loss 1/n, 3,000 bytes, 0.4 s of training
    records = [a_round(1), a_round(2).model_copy(update={"metrics": {}}), a_round(3)]
    found = {figure.name: figure for figure in make_figures(records)}
    assert list(found) == ["accuracy", "loss", "accuracy-by-traffic", "accuracy-by-seconds", "seconds"]
    assert found["accuracy"].curves == [("global accuracy", [1.0, 3.0], [0.5, 0.75])]
    assert found["accuracy-by-traffic"].curves[0].x == pytest.approx([0.003, 0.009])
    assert found["accuracy-by-seconds"].curves[0].x == [0.5, 1.5]
    assert found["seconds"].curves == [("training", [1.0, 2.0, 3.0], [0.4, 0.4, 0.4])]
    assert make_figures([]) == []
    # A freeze in round 2, by traffic at 6,000 bytes; a temperature that falls.
    said = [{"phase": "joint", "temperature": 3}, {"phase": "frozen", "temperature": 2}]
    records = [a_round(n).model_copy(update={"method": method}) for n, method in enumerate(said, start=1)]
    found = {figure.name: figure for figure in make_figures(records)}
    assert found["accuracy"].changes == [(1.0, *2 * ("phase: joint",)), (2.0, *2 * ("phase: frozen",))]
    assert found["accuracy-by-traffic"].changes[1] == (pytest.approx(0.006), *2 * ("phase: frozen",))
    assert found["method-temperature"].curves == [("temperature", [1.0, 2.0], [3.0, 2.0])]


def test_costs_are_drawn_as_they_add_up() -> None:
    """Two rounds of training, the second of them longer, and fine-tuning after the last."""
    costs = [
        Cost(updates=10, flops=70),
        Cost(updates=30, flops=90, tuning_updates=5, tuning_flops=8),
    ]
    records = [a_round(n).model_copy(update={"cost": cost}) for n, cost in enumerate(costs, start=1)]
    found = {figure.name: figure for figure in make_figures(records)}
    scores = ["accuracy", "loss", "accuracy-by-traffic", "accuracy-by-seconds"]
    assert list(found) == [*scores, "updates", "flops", "seconds"]
    assert found["updates"].curves == [
        ("training", [1.0, 2.0], [10.0, 40.0]),
        ("with fine-tuning", [1.0, 2.0], [10.0, 45.0]),
    ]
    assert [curve.y for curve in found["flops"].curves] == [[70.0, 160.0], [70.0, 168.0]]
    total = RunTotals.of(records).cost
    assert found["updates"].curves[0].y[-1] == total.updates
    assert found["flops"].curves[-1].y[-1] == total.flops + total.tuning_flops
    # A record of an older version, which does not say, is no reason to leave the others out.
    older = [*records, a_round(3)]
    assert {f.name: f for f in make_figures(older)}["flops"].curves[0].y == [70.0, 160.0, 160.0]


def test_what_a_method_says_is_read_as_on_the_page() -> None:
    records = [a_round(n).model_copy(update={"method": said}) for n, said in enumerate(PHASES, start=1)]
    assert [tuple(mark) for mark in find_method_changes(records)] == PHASE_MARKS
    assert find_method_curves(records) == PHASE_CURVES
    cut = [a_round(n).model_copy(update={"method": said}) for n, said in enumerate(CUT_SHORT, start=1)]
    assert [tuple(mark) for mark in find_method_changes(cut)] == CUT_SHORT_MARKS


def test_what_a_run_has_outlasted_is_told() -> None:
    """As on the page: nothing in round 1, two kinds of trouble in round 2."""
    said = {"restarts": 2, "client_retries": 1, "client_errors": {"4": "KeyError: 'w'"}}
    engine = Engine.model_validate({"pool": "ray", **said})
    records = [a_round(1), a_round(2).model_copy(update={"engine": engine, "failed": [4, 7]})]
    words = "2 workers replaced; 1 client retried after an error; "
    words += "clients left out because they failed: 4, 7; first error (client 4): KeyError: 'w'"
    assert list_round_failures(records) == [("round 2", words)]
    many = [each.model_copy(update={"failed": [1]}) for each in map(a_round, range(1, MOST_ROUNDS + 4))]
    assert list_round_failures(many)[-1] == ("later", "3 more rounds had failures")
    page = render_report(RunReport("id", "name", "", "", {}, many[:1]))
    assert "<h2>Failures that the run survived</h2>" in page
    assert "clients left out because they failed: 1<" in page
    assert "<h2>Failures that the run survived</h2>" not in render_report(
        RunReport("id", "name", "", "", {}, records[:1])
    )


def test_clients_of_one_cluster_stand_together() -> None:
    found = {"classes": ["a", "b"], "counts": [[4, 0], [0, 2], [3, 1]], "clients": 3}
    record = a_round(1).model_copy(update={"method": {"inner": {"clusters": [1, 0, 1]}}})
    drawn = draw_class_map(found, [record])
    assert drawn is not None
    assert [(each.name, each.clients) for each in drawn.groups] == [("cluster 0", [1]), ("cluster 1", [0, 2])]
    assert drawn.x_title == "clients, by cluster"
    first, second = make_class_map_figure(drawn).data
    # Class by client, beside what stands left of it, and both on one scale.
    assert [list(map(list, each.z)) for each in (first, second)] == [[[0], [2]], [[4, 3], [0, 1]]]
    assert (list(second.x), first.zmax, second.zmax) == ([1, 2], 4, 4)
    plain = draw_class_map(found | {"clients": 9}, [])
    assert plain is not None
    assert plain.x_title == "client, the first 3 of 9"
    assert draw_class_map(found | {"counts": []}, []) is None


def test_a_client_has_its_name() -> None:
    found = {"classes": ["a"], "counts": [[4], [1]], "clients": 2, "names": ["east & co", "west"]}
    drawn = draw_class_map(found, [a_round(1)])
    assert drawn is not None
    figure = make_class_map_figure(drawn)
    assert [list(row) for row in figure.data[0].customdata] == [
        ["east &amp; co (client 0)", "west (client 1)"]
    ]
    assert figure.layout.xaxis.ticktext == ("east &amp; co", "west")
    record = a_round(1).model_copy(update={"method": {"inner": {"clusters": [1, 0]}}})
    clustered = draw_class_map(found, [record])
    assert clustered is not None
    first, _ = make_class_map_figure(clustered).data
    assert [list(row) for row in first.customdata] == [["west (client 1)"]]


def test_attackers_stand_together_unless_there_are_clusters() -> None:
    found = {"classes": ["a"], "counts": [[4], [1], [3]], "clients": 3, "attackers": [0]}
    drawn = draw_class_map(found, [a_round(1)])
    assert drawn is not None
    groups = [(each.name, each.clients) for each in drawn.groups]
    assert groups == [("other clients", [1, 2]), ("attackers", [0])]
    assert drawn.x_title == "clients, attackers last"
    record = a_round(1).model_copy(update={"method": {"inner": {"clusters": [1, 0, 1]}}})
    clustered = draw_class_map(found, [record])
    assert clustered is not None
    assert clustered.order == "by cluster"


EVIL = ['<a href="https://example.org">pay</a>', "</script><script>alert(1)</script>", "$\\frac$"]
"""Names of classes and clients that would be a link, a script, and a formula that matplotlib refuses."""


def test_a_name_with_markup_is_text_in_every_picture(tmp_path: Path) -> None:
    found = {"classes": EVIL, "counts": [[4, 0, 1]] * 3, "clients": 3, "names": EVIL}
    drawn = draw_class_map(found, [])
    assert drawn is not None
    (heatmap,) = make_class_map_figure(drawn).data
    assert [unescape(name) for name in heatmap.y] == EVIL
    assert not any("<" in name for name in heatmap.y)
    page = render_report(RunReport("id", "name", "", "", {}, [a_round(1)], class_map=drawn))
    assert "</script><script>" not in page
    save_canvas(plot_class_map(drawn), tmp_path / "partition.png")


@NEEDS_CHROMIUM
def test_a_name_with_a_link_is_no_link_on_the_page(browser: Browser, service: RunningService) -> None:
    job = service.ended(clients={"total": 2, "fraction": 0.5}, data={"dataset": "digits"})
    stored = {"classes": EVIL, "counts": [[4, 0, 1], [0, 1, 1]], "distances": [0.1, 0.2]}
    file = service.settings.job_dir(job.id) / "class-map.json"
    names = ["<a href='https://example.org'>mine</a>", "west"]
    file.write_text(json.dumps({**stored, "clients": 2, "notes": [], "names": names}))
    save_personal_scores(service.settings, job.id, "client,tests,correct,loss\n0,4,3,0.5\n1,4,1,0.5\n")
    browser.open(f"{service.url}/#/jobs/{job.id}")
    until(lambda: browser.count(".clients summary") == 1)
    browser.unfold(".clients summary")
    until(lambda: "Each client holds" in browser.text("#class-map-words"), seconds=40)
    written = "return [...document.querySelectorAll('#class-map text')].map((each) => each.textContent)"
    assert EVIL[0] in browser.script(written)
    assert set(names) < set(browser.script(written))
    assert browser.count("#class-map a") == 0
    # The worst client of the personal models has its name, too.
    until(
        lambda: (
            browser.script("return document.getElementById('client-scores').data?.[0].text[0]")
            == "west (client 1): 1 of 4 predictions correct"
        )
    )


def test_each_clients_own_model_is_drawn() -> None:
    (clients,) = make_clients_figure("client,tests,correct,loss\n0,4,3,0.1\n1,0,0,0\n2,4,1,0.2\n")
    assert clients.curves == [("personal model", [1.0, 2.0], [0.25, 0.75])]
    assert make_clients_figure("") == []
    # A client with one class has no AUROC.
    (clients,) = make_clients_figure("client,tests,auroc,loss\n0,4,0.7,1\n1,4,nan,1\n2,4,0.6,1\n3,4,nan,1\n")
    assert clients.curves == [("personal model", [1.0, 2.0], [0.6, 0.7])]


@NEEDS_CHROMIUM
def test_the_report_of_a_job_opens_from_disk_without_a_network(
    fedsim: Fedsim, service: RunningService, browser: Browser, tmp_path: Path
) -> None:
    job = service.ended(name="<i>for</i> a paper", rounds=5, clients={"total": 5, "fraction": 0.4})
    save_personal_scores(service.settings, job.id, "client,tests,correct,loss\n0,4,3,0.1\n")
    done = fedsim("report", job.id, "--out", tmp_path / "out", "--url", service.url, "--format", "json")
    assert done.code == 0, done.err
    files = [Path(name) for name in done.data["files"]]
    names = ["report.html", "accuracy.png", "loss.png", "accuracy-by-traffic.png"]
    names += ["accuracy-by-seconds.png", "seconds.png", "clients.png", "partition.png"]
    assert [file.name for file in files] == names
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[1:])
    page = files[0].read_text("utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    browser.offline(True)
    browser.open(files[0].as_uri(), 360)
    until(lambda: browser.count(".js-plotly-plot .main-svg") >= 6)
    assert browser.text("h1") == "<i>for</i> a paper"
    assert "0.8333 at round 5" in browser.text("table")
    assert browser.script("return document.documentElement.scrollWidth") <= 360
    # It did not ask for anything, and none of what it does not have is on its console.
    asked = browser.script("return performance.getEntriesByType('resource').map(({ name }) => name)")
    assert [name for name in asked if not name.startswith(("data:", "blob:"))] == []
    assert browser.errors() == []
    browser.offline(False)


def test_the_report_of_a_run_in_files(fedsim: Fedsim, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "spec.yaml").write_text("name: in files\n")
    (folder / "rounds.jsonl").write_text(a_round(1).model_dump_json() + "\n")
    done = fedsim("report", folder, "--out", tmp_path / "out", "--no-png", "--format", "json")
    assert [Path(name).name for name in json.loads(done.out)["files"]] == ["report.html"]
    assert "<h1>in files</h1>" in (tmp_path / "out" / "report.html").read_text("utf-8")
    fedsim("report", folder, "--out", tmp_path / "drawn", "--no-png", "--pdf", "--svg")
    assert {file.suffix for file in (tmp_path / "drawn").iterdir()} == {".html", ".pdf", ".svg"}
    # Why there is no map of who holds what is said.
    (folder / "spec.yaml").write_text("algorithm: fedavg\ndata: {dataset: nowhere}\n")
    done = fedsim("report", folder, "--out", tmp_path / "out", "--no-png")
    assert done.code == 0
    assert "the report has no class map" in done.err
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "No class map" in page
    assert "nowhere" in page.split("No class map")[1].split("</p>")[0]
    (folder / "spec.yaml").unlink()
    done = fedsim("report", folder, "--out", tmp_path / "out", "--no-png")
    assert (done.code, "no round records" in done.err) == (0, False)
    assert "<h1>mine</h1>" in (tmp_path / "out" / "report.html").read_text("utf-8")
    (folder / "rounds.jsonl").unlink()
    assert fedsim("report", folder).code == 2
    (folder / "rounds.jsonl").write_text(a_round(1).model_dump_json() + "\n")
    (tmp_path / "file").write_text("")
    assert "choose another --out" in fedsim("report", folder, "--out", tmp_path / "file").err


def timed_rounds() -> list[RoundRecord]:
    """Forty rounds of two clients, the slower one waited for; a third client is late in the last round."""
    readings = [
        ClockReading(
            total=2.0 * number,
            round=2.0,
            waited_for=5,
            timeline=(
                ClientTime(3, 2.0 * number - 2, 2.0 * number - 1),
                ClientTime(5, 2.0 * number - 2, 2.0 * number),
            ),
        )
        for number in range(1, 41)
    ]
    late = ClientTime(9, 78.0, 80.0, counts=False)
    readings[-1] = replace(readings[-1], timeline=(*readings[-1].timeline, late))
    return [
        a_round(number).model_copy(update={"clock": reading})
        for number, reading in enumerate(readings, start=1)
    ]


def test_the_last_rounds_have_a_bar_for_each_client() -> None:
    records = [RoundRecord.model_validate_json(record.model_dump_json()) for record in timed_rounds()]
    assert [record.clock for record in records] == [record.clock for record in timed_rounds()]
    drawn = make_client_times_figure(records)
    bars = {trace.name: list(zip(trace.y, trace.base, trace.x, strict=True)) for trace in drawn.data}
    assert bars["not counted"] == [("9", 78.0, 2.0)]
    assert len(bars["counted"]) == len(bars["waited for"]) == 29
    assert bars["waited for"][-1] == ("5", 78.0, 2.0)
    assert drawn.layout.yaxis.categoryarray == ("9", "5", "3")
    assert [shape.x0 for shape in drawn.layout.shapes] == [24.0 + 2 * number for number in range(29)]
    assert CLIENT_TIMES in render_report(RunReport("id", "name", "", "", {}, records))
    assert make_client_times_figure([a_round(1)]) is None
    assert make_client_times_figure([]) is None
