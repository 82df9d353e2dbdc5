"""`fedsim tune`: options, output, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from api.cli.main import app
from fedsim.errors import FedsimError

SMALL = ["--set", "rounds=3", "--set", "clients.total=8", "--set", "local.epochs=1"]
VALIDATED = [*SMALL, "--set", "evaluation.validation=0.2"]


def tune(*words: str) -> object:
    return CliRunner().invoke(app, ["tune", "demo", *words, "--processes", "1"], catch_exceptions=False)


def test_tune_writes_the_best_spec_and_its_run(tmp_path: Path) -> None:
    spaces = tmp_path / "spaces.yaml"
    spaces.write_text("local.lr: [0.001, 0.1]\n")
    words = [*VALIDATED, "--spaces", str(spaces), "--method", "grid", "--out", str(tmp_path / "out")]
    done = tune(*words, "--format", "json")
    found = json.loads(done.stdout)  # type: ignore[attr-defined]
    assert found["best"]["values"] == {"local.lr": 0.1}
    assert found["test"]["global_accuracy"] > 0
    assert yaml.safe_load((tmp_path / "out" / "best.yaml").read_text())["local"]["lr"] == 0.1
    run = tmp_path / "out" / "best"
    assert {"spec.yaml", "result.json", "model.safetensors"} <= {file.name for file in run.iterdir()}
    again = tune(*words)
    assert "local.lr" in again.stdout  # type: ignore[attr-defined]
    assert "on the test set, once: global_accuracy" in again.stderr  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*SMALL, "--space", "local.lr=[0.1]"], "evaluation.validation"),
        ([*VALIDATED, "--space", "local.lr"], "PATH=SPACE"),
        ([*VALIDATED], "names no field"),
        ([*VALIDATED, "--spaces", "no-such-file.yaml"], "cannot be read"),
        ([*VALIDATED, "--spaces", "LATIN"], "cannot be read: it is no UTF-8"),
        ([*VALIDATED, "--spaces", "BROKEN"], r"--spaces '.*broken.yaml' cannot be read: "),
        (
            [*VALIDATED, "--space", "local.epochs=int:1..3", "--space", "local.lr=[0.1"],
            "space.local.lr: cannot",
        ),
        ([*VALIDATED, "--space", "local.lr=[0.1]", "--url", "http://127.0.0.1:9"], "--url with --on pool"),
    ],
)
def test_a_mistake_is_explained(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"local.lr: \xff")
    (tmp_path / "broken.yaml").write_text("local.lr: [0.1")
    files = {name: str(tmp_path / f"{name.lower()}.yaml") for name in ("LATIN", "BROKEN")}
    words = [files.get(word, word) for word in words]
    with pytest.raises(FedsimError, match=message):
        tune(*words, "--out", str(tmp_path / "out"))
