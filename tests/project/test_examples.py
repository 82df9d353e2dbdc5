"""The examples run as they are. `tests/api/sdk/test_sdk_page.py` runs the sweep, which needs a service."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from fedsim import plugins
from fedsim.engine.pools import SerialPool
from fedsim.engine.results import RoundResult
from fedsim.engine.simulation import simulate
from jobs.settings import Settings
from jobs.spec import load_spec
from jobs.spec.resolve import resolve_spec

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = sorted(path.parent.name for path in EXAMPLES.glob("*/experiment.yaml"))


@pytest.fixture(autouse=True)
def in_folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Work in the folder of an example, with a home of one's own and no plug-in yet."""
    folder = EXAMPLES / getattr(request, "param", "")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("FEDSIM_HOME", str(tmp_path))
    monkeypatch.setenv(plugins.VARIABLE, "trimmed_mean" if folder.name == "own-algorithm" else "")
    monkeypatch.setattr(plugins, "_index", plugins.PluginIndex())
    yield
    sys.modules.pop("trimmed_mean", None)


def run_experiment(*overrides: str) -> list[RoundResult]:
    experiment = resolve_spec(
        load_spec("experiment.yaml", ["rounds=2", *overrides]), Settings.from_env().add_local_folders()
    )
    population = experiment.load_population()
    return list(simulate(experiment.algorithm, population, SerialPool(experiment.algorithm, population)))


@pytest.mark.parametrize("in_folder", SPECS, indirect=True)
def test_an_experiment_learns() -> None:
    chance = {"own-data": 0.69}.get(Path.cwd().name, 2.3)  # ln 2 and ln 10
    assert run_experiment()[-1].metrics["train_loss"] < 0.9 * chance


@pytest.mark.parametrize("in_folder", ["own-algorithm"], indirect=True)
def test_a_trimmed_mean_that_trims_nothing_is_the_plain_mean() -> None:
    """Of clients with equal weight: a partition into equal shares gives them that."""
    equal = ("data.partition=iid", "clients.total=40", "data.limit=1400")
    plain = run_experiment("algorithm=fedavg", *equal)
    trimmed = run_experiment("algorithm.share=0", *equal)
    for key, value in trimmed[-1].state.params.items():
        np.testing.assert_allclose(value, plain[-1].state.params[key], rtol=1e-5, atol=1e-7)
    assert run_experiment(*equal)[-1].digest != trimmed[-1].digest


@pytest.mark.parametrize("in_folder", ["own-metric"], indirect=True)
def test_recalls_average_to_the_accuracy_of_equal_classes() -> None:
    recalls = list(runpy.run_path("recall.py")["measure_recalls"](2))
    assert [values.shape for values in recalls] == [(10,), (10,)]
    assert recalls[-1].mean() > 0.2  # chance: 0.1


@pytest.mark.slow
@pytest.mark.parametrize("in_folder", ["gradient-inversion"], indirect=True)
def test_an_image_is_rebuilt_from_an_update_unless_it_has_noise() -> None:
    likeness = runpy.run_path("invert.py")["main"]()
    assert likeness["no privacy"] > 0.98
    assert likeness["clipping alone"] > 0.98
    assert likeness["noise 1"] < 0.5


@pytest.mark.parametrize("in_folder", ["notebook"], indirect=True)
def test_the_cells_of_the_notebook_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mpl.rcParams, "backend", "agg")
    names: dict[str, Any] = {}
    for cell in json.loads(Path("experiment.ipynb").read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["accuracies"][-1] > 0.2


def test_the_page_lists_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text("utf-8")
    folders = [path.name for path in EXAMPLES.iterdir() if path.is_dir()]
    assert [name for name in folders if f"[{name}]({name})" not in page] == []
