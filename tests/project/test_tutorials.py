"""The tutorials, followed to the letter: their files and commands, in an empty folder and an empty home."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from api.cli.main import app
from jobs.spec import parse_spec

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FILE = re.compile(r"```\w+\n# (\S+)\n(.*?)```", re.DOTALL)
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def commands(page: Path) -> list[str]:
    """The lines that a reader types."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_specs_and_commands_are_understood(page: Path) -> None:
    for name, text in FILE.findall(page.read_text("utf-8")):
        if name.endswith(".yaml") and "my_prox" not in text:
            parse_spec(yaml.safe_load(text))
        if name.endswith(".py"):
            compile(text, name, "exec")
    for line in commands(page):
        program, *words = shlex.split(line)
        if program == "fedsim":
            COMMANDS[words[0]].make_context(words[0], words[1:])


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem == "own-method" else pytest.mark.weekly)
        for page in PAGES
    ],
    ids=lambda page: page.stem,
)
def test_a_tutorial_can_be_followed(page: Path, tmp_path: Path) -> None:
    """All commands succeed; `fedsim verify` is among them, so the promised equalities hold too."""
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    for name, text in FILE.findall(page.read_text("utf-8")):
        (work / name).write_text(text)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "FEDSIM_HOME": str(home),
    }
    script = "\n".join(["set -e", *commands(page)])
    try:
        done = subprocess.run(
            ["bash", "-c", script], cwd=work, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        subprocess.run(
            ["fedsim", "stop", "--force"], cwd=work, env=environment, capture_output=True, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
