"""docs/sdk.md, run from top to bottom against a real service whose cluster is played here."""

from __future__ import annotations

import re
import runpy
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedsim import plugins
from fedsim.algorithms import FedAvg
from fedsim.base.tree import to_numpy
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from jobs.run.artifacts import save_model
from jobs.run.model_metadata import make_model_notes
from jobs.settings import Settings
from jobs.spec import parse_spec, read_spec
from jobs.spec.resolve import resolve_spec
from jobs.store.states import JobState
from tests.api.service import RunningService, a_round

PAGE = (Path(__file__).parents[3] / "docs" / "sdk.md").read_text("utf-8")
README = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
SWEEP = Path(__file__).parents[3] / "examples" / "sweep" / "sweep.py"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


class Board:
    """As much of `wandb`, and of a run of it, as the page uses."""

    def __init__(self) -> None:
        self.begun: dict[str, Any] = {}
        self.logged: dict[int, dict[str, Any]] = {}

    def init(self, **options: Any) -> Board:
        self.begun = options
        return self

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log(self, data: dict[str, Any], step: int) -> None:
        self.logged[step] = data


@cache
def trained(home: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The model of `demo` after five rounds, and its notes."""
    spec = parse_spec(read_spec("demo", ["rounds=5"]))
    experiment = resolve_spec(spec, Settings(home))
    population = experiment.load_population()
    pool = SerialPool(experiment.algorithm, population)
    *_, last = simulate(experiment.algorithm, population, pool, evaluate_every=5)
    return to_numpy(last.state.params), make_model_notes(spec, population.dataset.to_metadata(), last.round)


def first_digest(method: Algorithm, population: Population) -> str:
    return next(simulate(method, population, SerialPool(method, population))).digest


@contextmanager
def cluster(service: RunningService) -> Iterator[None]:
    """Bring every job that waits to its end."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            for job in service.store.queue():
                service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
                service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
                for number in range(1, job.rounds_total + 1):
                    service.store.add_round(job.id, a_round(number))
                model, notes = trained(service.settings.home)
                save_model(service.settings, job.id, model, notes)
                service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
            time.sleep(0.02)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("page", [PAGE, README], ids=["docs/sdk.md", "README.md"])
def test_every_block_runs(
    service: RunningService, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.setenv("FEDSIM_URL", service.url)
    monkeypatch.setenv("FEDSIM_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("algorithm: {name: fedprox, mu: 0.01}\n")
    board = Board()
    monkeypatch.setitem(sys.modules, "wandb", board)
    monkeypatch.setattr(plugins, "_index", plugins.PluginIndex())  # forgets what the page registers
    names: dict[str, Any] = {"__name__": "page"}
    with cluster(service):
        for block in BLOCK.findall(page):
            exec(compile(block, "page", "exec", dont_inherit=True), names)
    names["client"].close()
    assert names["job"].job.state == "SUCCEEDED"
    assert list(tmp_path.glob("*.csv"))
    if page is PAGE:
        assert names["shown"] == "5"  # the second test image of the digits
        assert board.begun["name"] == "demo"
        assert board.logged[1] == {"global_accuracy": 0.5, "global_loss": 1, "bytes_up": 2000, "seconds": 0.5}
        assert list(board.logged) == [1, 2, 3]
        mine, plain = (
            first_digest(method, names["population"]) for method in (names["Mine"](gamma=0), FedAvg())
        )
        assert mine == plain != names["results"][0].digest


def test_the_sweep_of_the_examples_runs(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDSIM_URL", service.url)
    with cluster(service):
        runpy.run_path(str(SWEEP))
    assert "±" in capsys.readouterr().out
