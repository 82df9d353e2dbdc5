"""Plug-ins: found, named by specs, refused. The package is the one of docs/plugins.md, as it stands there."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import fedsim
from fedsim import plugins
from fedsim.algorithms import ALGORITHMS, FedAvg, FedProx
from fedsim.core import Algorithm
from fedsim.data import (
    DATASETS,
    PARTITIONS,
    DataRoots,
    Dataset,
    DatasetEntry,
    Examples,
    Partition,
    PartitionEntry,
    find_dataset_faults,
)
from fedsim.data.partition import partition_from_owners
from fedsim.data.partitions import make_partition
from fedsim.data.partitions.iid import iid
from fedsim.data.partitions.partition_input import PartitionInput
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import DataError, SpecError
from fedsim.models import MODELS, mlp
from jobs.kinds import Kind
from jobs.run.execute import execute
from jobs.run.model_metadata import make_model_notes
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.catalogue import catalogue
from jobs.spec.resolve import list_plugins, resolve_spec
from tests.distributions import install_distribution

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "plugins.md").read_text("utf-8")
FILES = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, flags=re.DOTALL))
GAMMA = "weight of the penalty; 0 gives FedAvg"
TINY = {
    "rounds": 2,
    "clients": {"total": 6, "fraction": 0.5},
    "local": {"steps": 2},
    "resources": {"workers": 1, "cpus_per_worker": 0.5},
}
MINE = TINY | {"algorithm": "small_weights", "model": "tanh_mlp", "data": {"partition": "sorted_runs"}}

Install = Callable[..., None]


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing has been looked for yet, and what a test imports is forgotten after it."""
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    monkeypatch.setattr(plugins, "_index", plugins.PluginIndex())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("fedsim_mine", "other_", "tests.fedsim.plugged")):
            del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder that has the package of the page as if it were installed there."""
    folder = tmp_path / "site"
    folder.mkdir()
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    (folder / "fedsim_mine.py").write_text(FILES["fedsim_mine.py"])
    install_distribution(folder, project["name"], project["version"], project["entry-points"])
    return folder


@pytest.fixture
def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put that folder on the path, with more distributions of other names."""
    monkeypatch.syspath_prepend(site)

    def more(name: str, points: dict[str, dict[str, str]]) -> None:
        install_distribution(site, name, "2.0", points)

    return more


def digests(spec: dict[str, Any], tmp_path: Path) -> list[str]:
    experiment = resolve_spec(parse_spec(TINY | spec), Settings(tmp_path))
    population = experiment.load_population()
    pool = SerialPool(experiment.algorithm, population)
    return [result.digest for result in simulate(experiment.algorithm, population, pool)]


def refusal(spec: dict[str, Any], tmp_path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        resolve_spec(parse_spec(TINY | spec), Settings(tmp_path))
    (fault,) = caught.value.errors
    return str(fault)


def entry(kind: Kind, name: str) -> dict[str, Any]:
    return {each["name"]: each for each in catalogue(kind)}[name]


def test_records_have_the_code_and_a_run_that_goes_on_warns_of_changed_code(
    site: Path,
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    home, checkpoints = Settings(tmp_path), str(tmp_path / "checkpoints")
    mine = MINE | {"checkpoint": {"every": 1}}

    def run(rounds: int) -> list[str]:
        done = execute(parse_spec(mine | {"rounds": rounds}), home, checkpoints=checkpoints, resume=True)
        assert all(record.engine.code["fedsim"] == fedsim.__version__ for record in done.records)
        return [record.engine.code["fedsim-mine"] for record in done.records]

    (first,) = run(1)
    assert run(2) == [first, first]
    assert not caplog.messages
    # The file changes: this process goes on with the code that it imported, and a new one has the new code.
    (site / "fedsim_mine.py").write_text(FILES["fedsim_mine.py"] + "# changed\n")
    assert run(3) == [first] * 3
    monkeypatch.setattr(plugins, "_index", plugins.PluginIndex())
    codes = run(4)
    assert codes[:3] == [first] * 3
    assert codes[3] != first
    was_and_is = f"it was {first}, and is now {codes[3]}"
    assert caplog.messages == [f"fedsim-mine has changed since round 3: {was_and_is}"]


@pytest.mark.usefixtures("install")
def test_an_installed_package_is_named_like_fedsims_own(tmp_path: Path) -> None:
    spec = parse_spec(MINE)
    (used,) = list_plugins(spec)
    assert re.fullmatch("fedsim-mine 0.1.0 [0-9a-f]{12}", used)
    assert list_plugins(parse_spec({"algorithm": "fedavg"})) == []
    about = resolve_spec(spec, Settings(tmp_path)).load_population().dataset.to_metadata()
    assert json.loads(make_model_notes(spec, about, 2)["plugins"]) == [used]
    assert "plugins" not in make_model_notes(parse_spec({"algorithm": "fedavg"}), about, 2)
    assert plugins.list_plugin_versions() == {"fedsim-mine": "0.1.0"}
    assert len(digests(MINE, tmp_path)) == 2
    assert "gamma" in refusal(MINE | {"algorithm": {"name": "small_weights", "gamma": -1}}, tmp_path)
    method = entry("algorithms", "small_weights")
    assert method["plugin"] == "fedsim-mine 0.1.0"
    assert (method["purposes"], method["citation"], method["costs"]) == ([], "", None)
    gamma = {"type": "number", "minimum": 0, "default": 0.1, "description": GAMMA}
    assert method["parameters"]["properties"]["gamma"] == gamma
    assert entry("models", "tanh_mlp")["summary"] == "One hidden layer with tanh"
    assert entry("partitions", "sorted_runs")["plugin"] == "fedsim-mine 0.1.0"
    assert entry("algorithms", "fedavg")["plugin"] == entry("datasets", "digits")["plugin"] == ""
    assert "did you mean 'small_weights'?" in refusal({"algorithm": "small_weight"}, tmp_path)


@pytest.mark.usefixtures("install")
def test_the_test_of_the_page_passes() -> None:
    space: dict[str, Any] = {}
    exec(FILES["test_fedsim_mine.py"], space)
    space["test_without_a_penalty_it_is_fedavg"]()


def test_the_cluster_of_the_page_is_ours_with_the_package_besides() -> None:
    (text,) = re.findall(r"```yaml\n(file_mounts.*?)```", PAGE, flags=re.DOTALL)
    shown, ours = yaml.safe_load(text), yaml.safe_load((ROOT / "ray_cluster.yaml").read_text("utf-8"))
    assert shown["file_mounts"] == ours["file_mounts"] | {"/home/ray/fedsim-mine": "../fedsim-mine"}
    assert shown["setup_commands"][:-1] == ours["setup_commands"]


@pytest.mark.usefixtures("install")
def test_the_code_of_a_plugin_is_imported_when_it_is_named() -> None:
    assert "fedprox" in ALGORITHMS
    assert MODELS["mlp"] is mlp
    assert "fedsim_mine" not in sys.modules
    assert "small_weights" in ALGORITHMS
    assert "fedsim_mine" in sys.modules
    assert ALGORITHMS["small_weights"] is ALGORITHMS["small_weights"]


def test_without_plugins_there_are_fedsims_own() -> None:
    assert ALGORITHMS["fedavg"] is FedAvg
    assert len(ALGORITHMS) == len(ALGORITHMS.own) == len(list(ALGORITHMS))
    with pytest.raises(KeyError, match="no such model: 'nothing'"):
        MODELS["nothing"]
    (fault,) = find_dataset_faults("digit", {})
    assert str(fault) == "name: no such data set (got 'digit'); did you mean 'digits'?"


def test_a_name_of_fedsims_own_is_refused_with_both_named(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("other-thing", {"fedsim.algorithms": {"fedprox": "other_thing:Mine"}})
    told = refusal({"algorithm": "fedprox"}, tmp_path)
    assert "algorithm.name: is both fedsim's own and other_thing:Mine of other-thing 2.0" in told
    assert "rename one of them" in told
    # Nobody else is disturbed; a listing leaves the name out and says so.
    assert digests({"algorithm": "fedavg", "model": "logistic"}, tmp_path)
    with caplog.at_level(logging.WARNING):
        assert "fedprox" not in list(ALGORITHMS)
    assert "other_thing:Mine of other-thing 2.0" in caplog.text


def test_a_name_of_two_packages_is_refused_with_both_named(install: Install, tmp_path: Path) -> None:
    install("other-thing", {"fedsim.models": {"tanh_mlp": "other_thing:net"}})
    told = refusal({"algorithm": "fedavg", "model": "tanh_mlp"}, tmp_path)
    assert "fedsim_mine:tanh_mlp of fedsim-mine 0.1.0" in told
    assert "other_thing:net of other-thing 2.0" in told


def test_a_broken_plugin_is_named_with_its_exception_and_disturbs_nobody(
    install: Install, site: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (site / "other_broken.py").write_text("raise RuntimeError('no such licence')")
    (site / "other_odd.py").write_text("def plain(): pass\n")
    install("other-broken", {"fedsim.algorithms": {"broken": "other_broken:Mine"}})
    install("other-odd", {"fedsim.partitions": {"odd": "other_odd:plain"}})
    told = refusal({"algorithm": "broken"}, tmp_path)
    assert "the plug-in other_broken:Mine of other-broken 2.0 cannot be loaded" in told
    assert "RuntimeError: no such licence" in told
    told = refusal({"algorithm": "fedavg", "data": {"partition": "odd"}}, tmp_path)
    assert "is not a fedsim.data.PartitionEntry" in told
    assert digests(MINE, tmp_path)
    with caplog.at_level(logging.WARNING):
        names = [each["name"] for each in catalogue("algorithms")]
        assert names == [each["name"] for each in catalogue("algorithms")]
    assert "small_weights" in names
    assert "broken" not in names
    assert caplog.text.count("no such licence") == 1


def test_a_module_of_the_variable_registers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(plugins.VARIABLE, " tests.fedsim.plugged, ")
    assert plugins.plugin_environment() == {"FEDSIM_PLUGINS": "tests.fedsim.plugged"}
    plain = {"algorithm": "plain", "model": "flat", "data": {"dataset": "clouds", "partition": "dealt"}}
    own = {"algorithm": "fedavg", "model": "logistic", "data": {"dataset": "clouds", "partition": "iid"}}
    assert digests(plain, tmp_path) == digests(own, tmp_path)
    assert entry("datasets", "clouds")["plugin"] == "tests.fedsim.plugged"
    assert plugins.list_plugin_versions() == {"tests.fedsim.plugged": "7.1"}
    assert Settings.from_env().public_environment()["FEDSIM_PLUGINS"].strip(", ") == "tests.fedsim.plugged"


def test_a_broken_module_of_the_variable_is_named_where_a_name_is_missing(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(site)
    (site / "other_first.py").write_text("import nothing_of_that_name")
    monkeypatch.setenv(plugins.VARIABLE, "other_first,tests.fedsim.plugged")
    with caplog.at_level(logging.WARNING):
        assert digests({"algorithm": "plain", "model": "flat"}, tmp_path)
    why = "the module 'other_first' of FEDSIM_PLUGINS cannot be imported: ModuleNotFoundError"
    assert why in caplog.text
    assert why in refusal({"algorithm": "mine"}, tmp_path)


def test_a_module_that_takes_a_name_of_fedsims_own_leaves_it_to_nobody(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(site)
    text = "from fedsim.algorithms import ALGORITHMS, FedAvg\nclass Mine(FedAvg): pass\n"
    (site / "other_taken.py").write_text(f"{text}ALGORITHMS.register('fedprox', Mine)")
    monkeypatch.setenv(plugins.VARIABLE, "other_taken")
    assert "is both fedsim's own and other_taken.Mine" in refusal({"algorithm": "fedprox"}, tmp_path)
    assert "ValueError: other_taken.Mine cannot be the algorithm 'fedprox'" in refusal(
        {"algorithm": "mine"}, tmp_path
    )


@pytest.mark.usefixtures("install")
def test_registering_refuses_what_is_taken_and_what_is_something_else() -> None:
    class Mine(FedAvg):
        pass

    with pytest.raises(ValueError, match="that is fedsim's own"):
        ALGORITHMS.register("fedprox", Mine)
    assert ALGORITHMS["fedprox"] is FedProx
    with pytest.raises(ValueError, match=r"that is fedsim_mine:SmallWeights of fedsim-mine 0\.1\.0"):
        ALGORITHMS.register("small_weights", Mine)
    with pytest.raises(TypeError, match=r"whole subclass of fedsim\.core\.Algorithm"):
        ALGORITHMS.register("mlp", mlp)  # type: ignore[arg-type]

    class Half(Algorithm):
        pass

    class Undecorated(FedAvg):
        mu: float = 0.1

    with pytest.raises(TypeError, match="does not define aggregate, broadcast, init_server_state"):
        ALGORITHMS.register("half", Half)
    with pytest.raises(TypeError, match="Undecorated has 'mu', which is no parameter: write `@dataclass"):
        ALGORITHMS.register("undecorated", Undecorated)
    with pytest.raises(TypeError, match=r"fedsim\.data\.DatasetEntry"):
        DATASETS.register("mlp", mlp)  # type: ignore[arg-type]
    for _ in range(2):  # as a cell that is run again
        ALGORITHMS.register("cell", Mine)
    assert ALGORITHMS["cell"] is Mine
    assert set(PARTITIONS) == {*PARTITIONS.own, "sorted_runs"}


def test_objects_of_one_factory_are_different_objects() -> None:
    def make_partition_entry(summary: str) -> PartitionEntry:
        def deal(given: PartitionInput) -> Partition:
            return iid(given)

        return PartitionEntry(deal, summary)

    first, second = make_partition_entry("first"), make_partition_entry("second")
    PARTITIONS.register("first", first)
    PARTITIONS.register("second", second)
    assert PARTITIONS["first"] is first
    assert PARTITIONS["second"] is second
    PARTITIONS.register("first", second)  # as a changed cell
    assert PARTITIONS["first"] is second


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (lambda given: partition_from_owners(np.arange(given.total) % 3, 3), "has 3 clients instead of 2"),
        (lambda _: Partition(np.array([-1, 0]), np.array([0, 1, 2])), "has the position -1"),
        (lambda _: Partition(np.array([0, 10]), np.array([0, 1, 2])), "positions are 0 to 9"),
        (lambda given: np.arange(given.total) % 2, "returned a ndarray"),
        (lambda given: given.groups[0], r"failed: TypeError: .* \(test_plugins\.py:\d+, <lambda>\)"),
    ],
)
def test_a_partition_that_fails_or_does_not_suit_is_named(
    split: Callable[[PartitionInput], Any], words: str
) -> None:
    PARTITIONS.register("mine", PartitionEntry(split, "mine"))
    with pytest.raises(DataError, match=f"the partition 'mine' .*{words}"):
        make_partition("mine", labels=np.zeros(10, np.int64), num_clients=2, num_classes=1, seed=0)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (lambda _: None, "returned None"),
        (lambda places: places["mine"], r"failed: TypeError: .* \(test_plugins\.py:\d+, <lambda>\)"),
    ],
)
def test_a_data_set_whose_loader_fails_is_named(
    load: Callable[[DataRoots], Any], words: str, tmp_path: Path
) -> None:
    DATASETS.register("mine", DatasetEntry(load, "mine", "nowhere", "nothing to do"))
    with pytest.raises(DataError, match=f"the data set 'mine' {words}"):
        digests({"algorithm": "fedavg", "data": {"dataset": "mine"}}, tmp_path)


@pytest.mark.parametrize(
    ("x", "shape", "words"),
    [
        (np.zeros((4, 3)), (2,), r"training set: inputs have the shape \[3\], and input_shape is \[2\]"),
        (np.array([[0, 1], [0, np.nan]]), (2,), "training set: input nan at position 1/1"),
        ([[0.0, 1.0]], (2,), "x has to be a NumPy array, not a list"),
    ],
)
def test_a_data_set_whose_inputs_are_wrong_is_refused_before_it_trains(
    x: Any, shape: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    def load(_: DataRoots) -> Dataset:
        part = Examples(x, np.zeros(len(x), np.int64))
        return Dataset("mine", part, part, 1, shape, ("only",))

    DATASETS.register("mine", DatasetEntry(load, "mine", "nowhere", "nothing to do"))
    with pytest.raises(DataError, match=words):
        digests({"algorithm": "fedavg", "data": {"dataset": "mine"}}, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_actors_know_what_a_module_of_the_variable_registers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The coordinator looks model, data set and partition up by name, in a process that Ray started."""
    monkeypatch.setenv(plugins.VARIABLE, "tests.fedsim.plugged")
    plain = {"algorithm": "plain", "model": "flat", "data": {"dataset": "clouds", "partition": "dealt"}}
    result = execute(parse_spec(TINY | plain), Settings(tmp_path))
    assert [record.digest for record in result.records] == digests(plain, tmp_path)


def command(site: Path, home: Path, *arguments: str) -> Any:
    """What the command prints as JSON, in a process whose path has that folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDSIM_")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]), "FEDSIM_HOME": str(home)}
    environment |= {"FEDSIM_PLUGINS": "other_mine", "FEDSIM_RAY_NUM_CPUS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "api.cli.main", *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_command_runs_what_plugins_bring(site: Path, tmp_path: Path) -> None:
    text = "from fedsim.models import MODELS, mlp\ndef mine(input_shape, num_classes, *, hidden: int = 5):\n"
    text += "    return mlp(input_shape, num_classes, hidden=hidden)\nMODELS.register('mine', mine)\n"
    (site / "other_mine.py").write_text(text)
    spec = tmp_path / "mine.yaml"
    spec.write_text(yaml.safe_dump(MINE | {"model": "mine"}))
    listed = {each["name"]: each["plugin"] for each in command(site, tmp_path / "home", "models")}
    assert (listed["mine"], listed["tanh_mlp"], listed["mlp"]) == ("other_mine", "fedsim-mine 0.1.0", "")
    assert len(command(site, tmp_path / "home", "run", str(spec))["rounds"]) == 2


def test_a_well_known_algorithm_that_is_not_here_is_not_taken_for_a_similar_one(tmp_path: Path) -> None:
    said = refusal({"algorithm": "fedamp"}, tmp_path)
    assert "is an algorithm that fedsim does not have (got 'fedamp'); `fedsim new algorithm NAME`" in said
    assert "did you mean 'fedavg'?" in refusal({"algorithm": "fedvag"}, tmp_path)
