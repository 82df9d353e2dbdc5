"""What a notebook shows of jobs, rounds and comparisons."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedsim
from api.reports import notebook
from api.reports.notebook import MOST_ROUNDS, render_job
from api.sdk.rounds import Rounds
from fedsim import FedSimClient
from fedsim.errors import SettingsError
from tests.api.service import RunningService, a_job, a_round

PNG = b"\x89PNG"


def write_run(folder: Path, seed: int, algorithm: str, accuracy: float) -> Path:
    folder.mkdir()
    spec = {"name": "x", "seed": seed, "rounds": 2, "algorithm": {"name": algorithm}}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    records = [a_round(number, global_accuracy=accuracy * number / 2) for number in (1, 2)]
    (folder / "rounds.jsonl").write_text("".join(f"{record.model_dump_json()}\n" for record in records))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    scores = {"fedavg": (0.5, 0.52, 0.54), "fedprox": (0.7, 0.71, 0.75)}
    return [
        write_run(tmp_path / f"{name}-{seed}", seed, name, score)
        for name, row in scores.items()
        for seed, score in enumerate(row)
    ]


def test_compare_needs_no_service_for_folders(runs: list[Path]) -> None:
    found = fedsim.compare(*runs, against="fedavg")
    assert [group.name for group in found.groups] == ["fedavg", "fedprox"]
    html = found._repr_html_()
    measure = found.groups[1].final
    assert measure is not None
    assert measure.difference is not None
    assert measure.difference.mean == pytest.approx(0.2)
    assert "<th>difference</th>" in html
    assert "+0.2000 [" in html
    assert "<td><b>0.7200 ± 0.0265</b></td>" in html
    assert found.plot()._repr_png_().startswith(PNG)
    assert found.render().startswith("| global accuracy | seeds |")
    assert "\\begin{tabular}" in found.render("latex")
    assert found.render("csv").count("\n") == 3


def test_compare_without_runs_says_what_to_give() -> None:
    with pytest.raises(SettingsError, match="folders or a label"):
        fedsim.compare()


def test_rounds_show_their_first_and_last(tmp_path: Path) -> None:
    rounds = Rounds([a_round(number) for number in range(1, 31)])
    html = rounds._repr_html_()
    assert html.count("<tr>") == 1 + MOST_ROUNDS
    assert "<th>global_accuracy</th>" in html
    assert "and 20 rounds between them" in html
    assert "between" not in rounds[:3]._repr_html_()
    assert Rounds([])._repr_html_()


def test_rounds_draw_the_figures_of_a_report(tmp_path: Path) -> None:
    rounds = Rounds([a_round(number) for number in (1, 2, 3)])
    picture = rounds.plot()
    assert picture._repr_png_().startswith(PNG)
    assert picture.figure.axes[0].get_xlabel() == "round"
    assert rounds.plot("loss").save(tmp_path / "loss.svg").read_text("utf-8").startswith("<?xml")
    with pytest.raises(SettingsError, match="accuracy, loss"):
        rounds.plot("colour")
    with pytest.raises(SettingsError, match="no round has ended"):
        Rounds([]).plot()


def test_watch_redraws_one_table_in_a_notebook(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, html: Any) -> None:
            shown.append(html.data)

    def display(html: Any, *, display_id: bool) -> Handle:
        assert not shown, "one output only"
        shown.append(html.data)
        return Handle()

    job = service.ended(name="live", rounds=3)
    with FedSimClient(service.url) as client:
        assert len(list(client.job(job.id).watch())) == 3
        assert shown == []
        kernel = SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
        html = SimpleNamespace(HTML=lambda data: SimpleNamespace(data=data), display=display)
        monkeypatch.setitem(sys.modules, "IPython.display", html)
        monkeypatch.setattr(notebook, "LEAST_PAUSE", 0.0)
        assert len(list(client.job(job.id).watch())) == 3
    assert [text.count("<tr>") for text in shown] == sorted(text.count("<tr>") for text in shown)
    assert "1 of 5" in shown[0]
    assert "SUCCEEDED" in shown[-1]
    assert len(shown) == 4


def test_the_names_of_a_job_are_text() -> None:
    html = render_job(a_job().model_copy(update={"name": "<b>bold</b>"}))
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "FAILED" in html


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own code
@pytest.mark.parametrize("name", ["experiment", pytest.param("compare", marks=pytest.mark.weekly)])
def test_the_notebooks_run_in_jupyter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("FEDSIM_HOME", str(tmp_path / "home"))
    book = nbformat.read(root / "examples" / "notebook" / f"{name}.ipynb", 4)
    nbclient.NotebookClient(book, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = {kind for cell in book.cells for each in cell.get("outputs", ()) for kind in each.get("data", ())}
    assert "image/png" in kinds
    if name == "compare":
        tables = [
            each["data"]["text/html"]
            for cell in book.cells
            for each in cell.get("outputs", ())
            if "text/html" in each.get("data", ())
        ]
        assert "<th>difference</th>" in tables[0]
        assert "<th>local.lr</th>" in tables[1]
