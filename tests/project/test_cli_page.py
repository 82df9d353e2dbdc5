"""docs/cli.md has every command, and every example on it is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from api.cli.main import EXIT_CODES, app
from jobs.grid.table import read_table
from jobs.spec import preset_text
from jobs.spec.sweep import members, read_sweep

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text("utf-8")
EXAMPLES = [
    shlex.split(line.partition("$ fedsim ")[2], comments=True)
    for block in re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_every_command_has_one_example() -> None:
    assert sorted(words[0] for words in EXAMPLES) == sorted(COMMANDS)


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_an_example_is_understood(words: list[str]) -> None:
    COMMANDS[words[0]].make_context(words[0], words[1:])  # raises where it is not


def test_every_exit_code_is_named() -> None:
    named = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, flags=re.MULTILINE)}
    assert named == {0, 5, 130, 143, *EXIT_CODES.values()}


def test_the_sweep_and_the_table_are_such(tmp_path: Path) -> None:
    texts = PAGE + (DOCS / "claims.md").read_text("utf-8")
    sweep, table = re.findall(r"```yaml\n(.*?)```", texts, flags=re.DOTALL)
    assert len(members(read_sweep(yaml.safe_load(sweep)))) == 24
    (tmp_path / "base.yaml").write_text(preset_text("demo"), "utf-8")
    (tmp_path / "mine.yaml").write_text(table, "utf-8")
    assert len(read_table(tmp_path / "mine.yaml").cells(["data", "method"])) == 4
