"""Exported models give the outputs of the run's own model, and their cards say what they are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file
from typer.testing import CliRunner

from api.cli.commands import connection
from api.cli.commands.export import ExportFormat, _read_folder, _read_job
from api.cli.main import app
from api.cli.run_folder import make_run_document, write_run_files
from fedsim.data import Normalise, load_dataset
from fedsim.errors import SettingsError
from fedsim.models import make_net
from jobs.export.export import export_model
from jobs.export.module import build_module
from jobs.export.source import ModelSource, read_model
from jobs.run.listener import RunListener
from jobs.run.without_ray.in_process import run_in_process
from jobs.settings import Settings
from jobs.spec import parse_spec

SPEC: dict[str, Any] = {
    "name": "small",
    "rounds": 1,
    "clients": {"total": 4, "fraction": 0.5},
    "data": {"dataset": "digits", "limit": 200},
    "local": {"steps": 1},
    "algorithm": "fedavg",
    "evaluation": {"validation": 0.2},
}


def run(folder: Path, home: Path, **changes: Any) -> Path:
    """Run a spec, and write its files as `fedsim run --out` does."""
    result = run_in_process(parse_spec({**SPEC, **changes}), Settings(home=home), RunListener())
    folder.mkdir()
    write_run_files(folder, make_run_document(result), result)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("export")
    return run(place / "run", place)


def read(folder: Path) -> ModelSource:
    return _read_folder(folder, "model.safetensors")


def list_logits(folder: Path, images: Any) -> Any:
    """Compute the logits from the artifact itself, as docs/sdk.md does."""
    source = read(folder)
    model = make_net(**source.nets[0]).build().eval()
    model.load_state_dict({name: torch.tensor(each) for name, each in source.weights.items()}, strict=False)
    normalise = Normalise(**json.loads(source.notes["normalise"]))
    with torch.no_grad():
        return model(normalise(torch.tensor(images))).numpy()


IMAGES = load_dataset("digits", roots=()).test.x[:7]


def test_the_module_normalises_and_has_the_weights(folder: Path) -> None:
    with torch.no_grad():
        found = build_module(read(folder))(torch.tensor(IMAGES).float()).numpy()
    np.testing.assert_array_equal(found, list_logits(folder, IMAGES))


def test_a_regression_on_a_table_takes_its_numbers_and_returns_targets_in_their_unit(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra 'table' is not installed")
    lines = [f"{10**6 + n},{['old', 'new'][n % 2]},{200.5 + n % 3}" for n in range(60)]
    table = tmp_path / "data" / "houses.csv"
    table.parent.mkdir()
    table.write_text("\n".join(["age,kind,price", *lines]) + "\n")
    dataset = {"name": "table", "path": table.name, "target": "price"}
    folder = run(tmp_path / "run", tmp_path, data={"dataset": dataset, "partition": "iid"}, model="mlp")
    source = read(folder)
    names = [(each.name, each.category) for each in source.columns]
    data = load_dataset(**dataset, roots=(table.parent,))
    raw = data.test.x.astype(np.float64) * [each.std for each in source.columns]
    raw += [each.mean for each in source.columns]
    program = build_module(source)
    with torch.no_grad():
        found = program(torch.from_numpy(raw.astype(np.float32)))
        learnt = program.model(torch.tensor(data.test.x))
    expected = learnt * data.targets.std[0] + data.targets.mean[0]
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=0)
    assert 150 < float(found.mean()) < 250
    done = CliRunner().invoke(app, ["export", str(folder), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "## Columns\n\nIn the order of the inputs" in (tmp_path / "out" / "README.md").read_text()
    exported = torch.export.load(tmp_path / "out" / "model.pt2").module()
    torch.testing.assert_close(exported(torch.from_numpy(raw.astype(np.float32))), found)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert [(each["name"], each["category"]) for each in config["columns"]] == names
    assert config["targets"]["mean"][0] == pytest.approx(201.5, abs=0.5)


def score(folder: Path) -> float:
    """The accuracy of the exported module on the test set."""
    data = load_dataset("digits", roots=()).test
    with torch.no_grad():
        outputs = build_module(read(folder))(torch.tensor(data.x).float())
    return float((outputs.argmax(1).numpy() == data.y).mean())


def test_the_exported_model_is_the_scored_one(tmp_path: Path) -> None:
    """FedExP scores the mean of its last two models; constants of a model may be random, and weights tied."""
    (tmp_path / "own.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.basis, self.head = torch.randn(64, 32) / 8, nn.Linear(32, 10)\n\n"
        "    def forward(self, x):\n"
        "        return self.head(torch.relu(x.flatten(1) @ self.basis))\n\n"
        "class Tied(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.first, self.second, self.fixed = (nn.Linear(64, 64, bias=False) for _ in range(3))\n"
        "        self.second.weight, self.head = self.first.weight, nn.Linear(64, 10)\n"
        "        self.fixed.requires_grad_(False)\n"
        "        self.register_buffer('mask', torch.rand(64) > 0.5)\n\n"
        "    def forward(self, x):\n"
        "        x = x.flatten(1)\n"
        "        return self.head(self.second(torch.relu(self.first(x))) * self.mask + self.fixed(x))\n"
    )
    model = {"name": "python", "path": f"{tmp_path / 'own.py'}:Net"}
    model["source"] = (tmp_path / "own.py").read_text()
    tied = {**model, "path": f"{tmp_path / 'own.py'}:Tied"}
    cases = {
        "fedexp": {"algorithm": "fedexp"},
        "constants": {"model": model},
        "tied": {"model": tied, "local": {"steps": 30, "lr": 0.01}},
    }
    for name, changes in cases.items():
        given = {"rounds": 3, "local": {"steps": 30, "lr": 0.5}, "evaluation": {}, **changes}
        made = run(tmp_path / name, tmp_path, **given)
        records = [json.loads(line) for line in (made / "rounds.jsonl").read_text().splitlines()]
        assert score(made) == pytest.approx(records[-1]["metrics"]["global_accuracy"], abs=1e-6)
        with torch.no_grad():
            found = build_module(read(made))(torch.tensor(IMAGES).float()).numpy()
        np.testing.assert_array_equal(found, list_logits(made, IMAGES))
    # Frozen weights of `init` are not in the file of several architectures.
    source = read(made)
    notes = {**source.notes, "net": json.dumps(source.nets * 2), "init": "[{}, {}]"}
    weights = {f"0/{name}": each for name, each in source.weights.items()}
    with pytest.raises(SettingsError, match=r"differ in mask, fixed\.weight"):
        build_module(ModelSource(notes, weights, {}, {}))


def test_weights_come_with_their_facts_and_a_card(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(folder), "--to", "safetensors", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert {file.name for file in tmp_path.iterdir()} == {
        "model.safetensors",
        "config.json",
        "README.md",
        "spec.yaml",
    }
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert all((before[name] == after[name]).all() for name in before)
    config = json.loads((tmp_path / "config.json").read_text())
    assert make_net(**config["net"]).build() is not None
    card = (tmp_path / "README.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert header["tags"] == ["federated-learning", "fedsim", "fedavg"]
    record = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert record["digest"] in card
    assert f"| global_accuracy | {record['metrics']['global_accuracy']:.4f} |" in card
    assert "does not know the licence" in card


def test_the_chosen_model_has_its_own_card(folder: Path, tmp_path: Path) -> None:
    words = ["export", str(folder), "--to", "safetensors", "--model", "chosen", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert "chosen by | the validation set" in (tmp_path / "README.md").read_text()


def test_what_cannot_be_exported_is_explained(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match="only a finished run has one"):
        read_model(tmp_path / "model.safetensors", {}, [])
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_model(tmp_path / "model.safetensors", {}, [])
    source = read(folder)
    half = {name: each for name, each in source.weights.items() if "bias" not in name}
    with pytest.raises(SettingsError, match=r"differ in .*bias.*--to safetensors"):
        build_module(ModelSource(source.notes, half, {}, {}))
    ensemble = {f"models/0/{name}": each for name, each in source.weights.items()}
    with pytest.raises(SettingsError, match="ensemble"):
        build_module(ModelSource(source.notes, ensemble, {}, {}))
    monkeypatch.setattr("jobs.export.export.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"\.\[onnx\]"):
        export_model(source, "onnx", tmp_path)


def test_the_code_of_a_jobs_owner_does_not_run_here(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        """A service with one job, whose model is code."""

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def job(self, job: str) -> Client:
            return self

        def artifact(self, name: str, path: Path) -> Path:
            if name == "report.json":
                path.write_text(json.dumps({"spec": {}, "rounds": []}))
                return path
            from safetensors.numpy import save_file

            source = read(folder)
            net = {**source.nets[0], "name": "python", "path": "x.py:Net", "source": "raise SystemExit"}
            save_file(dict(source.weights), path, {**source.notes, "net": json.dumps(net)})
            return path

    monkeypatch.setattr(connection, "connect", lambda url: Client())
    with pytest.raises(SettingsError, match="code of the job's owner"):
        _read_job("j", "model.safetensors", None, ExportFormat.EXPORT)
    source = _read_job("j", "model.safetensors", None, ExportFormat.SAFETENSORS)
    assert "model.safetensors" in export_model(source, "safetensors", tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.export's own code
@pytest.mark.parametrize("model", ["mlp", "resnet9"])
def test_plain_pytorch_loads_a_program_in_three_lines(model: Any, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", tmp_path, model=model)
    export_model(read(folder), "huggingface", tmp_path)
    np.save(tmp_path / "images.npy", IMAGES)
    card = (tmp_path / "README.md").read_text()
    [lines] = re.findall(r"```python\n(.*?)\n```", card, flags=re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) == 3
    before = "import numpy as np\nimport torch\ninputs = torch.tensor(np.load('images.npy')).float()\n"
    after = (
        "\nnp.save('logits.npy', logits.detach().numpy())\nimport sys\nassert 'fedsim' not in sys.modules\n"
    )
    (tmp_path / "load.py").write_text(before + lines + after)
    subprocess.run([sys.executable, "load.py"], cwd=tmp_path, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), list_logits(folder, IMAGES), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.onnx's own code
def test_onnx_gives_the_same_outputs(folder: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    export_model(read(folder), "onnx", tmp_path)
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    [logits] = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"x": IMAGES.astype(np.float32)})
    np.testing.assert_allclose(logits, list_logits(folder, IMAGES), atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_several_architectures_give_several_programs(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", tmp_path, model=["mlp", "logistic"], algorithm="fedavg")
    names = export_model(read(folder), "export", tmp_path)
    assert names[:2] == ["model-0.pt2", "model-1.pt2"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_example_of_the_page_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "export.md").read_text("utf-8")
    [block] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("demo-model").mkdir()
    export_model(read(folder), "huggingface", Path("demo-model"))
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["logits"].shape == (5, 10)
