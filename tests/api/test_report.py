"""`fedsim report`: one HTML file that needs no network, and pictures for a paper."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from api.report_figures import clients_figure, figures
from jobs.artifacts import save_personal
from tests.api.browser import NEEDS_CHROMIUM, Browser, until
from tests.api.service import Fedsim, RunningService, a_round


def test_what_is_drawn() -> None:
    # a_round: accuracy 1 - 1/(n + 1), loss 1/n, 3,000 bytes, 0.4 s of training
    records = [a_round(1), a_round(2).model_copy(update={"metrics": {}}), a_round(3)]
    found = {figure.name: figure for figure in figures(records)}
    assert list(found) == ["accuracy", "loss", "accuracy-by-traffic", "seconds"]
    assert found["accuracy"].curves == [("global accuracy", [1.0, 3.0], [0.5, 0.75])]
    assert found["accuracy-by-traffic"].curves[0].x == pytest.approx([0.003, 0.009])
    assert found["seconds"].curves == [("training", [1.0, 2.0, 3.0], [0.4, 0.4, 0.4])]
    assert figures([]) == []
    (clients,) = clients_figure("client,tests,correct,loss\n0,4,3,0.1\n1,0,0,0\n2,4,1,0.2\n")
    assert clients.curves == [("own model", [1.0, 2.0], [0.25, 0.75])]
    assert clients_figure("") == []


@NEEDS_CHROMIUM
def test_the_report_of_a_job_opens_from_disk_without_a_network(
    fedsim: Fedsim, service: RunningService, browser: Browser, tmp_path: Path
) -> None:
    job = service.ended(name="<i>for</i> a paper", rounds=5)
    save_personal(service.settings, job.id, "client,tests,correct,loss\n0,4,3,0.1\n")
    done = fedsim("report", job.id, "--out", tmp_path / "out", "--url", service.url, "--format", "json")
    assert done.code == 0, done.err
    files = [Path(name) for name in done.data["files"]]
    names = ["report.html", "accuracy.png", "loss.png", "accuracy-by-traffic.png", "seconds.png"]
    names.append("clients.png")
    assert [file.name for file in files] == names
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[1:])
    page = files[0].read_text("utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    browser.open(files[0].as_uri())
    until(lambda: browser.count(".js-plotly-plot .main-svg") >= 5)
    assert browser.text("h1") == "<i>for</i> a paper"
    assert "0.8333 at round 5" in browser.text("table")
    assert browser.errors() == []


def test_the_report_of_a_run_in_files(fedsim: Fedsim, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "spec.yaml").write_text("name: in files\n")
    (folder / "rounds.jsonl").write_text(a_round(1).model_dump_json() + "\n")
    done = fedsim("report", folder, "--out", tmp_path / "out", "--no-png", "--format", "json")
    assert [Path(name).name for name in json.loads(done.out)["files"]] == ["report.html"]
    assert "<h1>in files</h1>" in (tmp_path / "out" / "report.html").read_text("utf-8")
    (folder / "rounds.jsonl").unlink()
    assert fedsim("report", folder).code == 2
    (folder / "rounds.jsonl").write_text(a_round(1).model_dump_json() + "\n")
    (tmp_path / "file").write_text("")
    assert "name another --out" in fedsim("report", folder, "--out", tmp_path / "file").err
