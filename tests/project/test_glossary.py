"""docs/glossary.md: every name in its third column is one of the code, of a spec or of the command line."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from api.cli.main import app
from jobs.spec.job_spec import json_schema

ROOT = Path(__file__).parents[2]
ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| term |"))
]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[2])})
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def resolve_name(path: str) -> Any:
    """The module, class or attribute at a dotted path; an annotated field counts as an attribute."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            declared = getattr(found, "__annotations__", {})
            found = getattr(found, part) if hasattr(found, part) else declared[part]
        return found
    raise AssertionError(f"{path} is not in the code")


def schema_field(path: str) -> Any:
    """The schema of a field of a spec."""
    schema = json_schema()
    node: Any = schema
    for part in path.split("."):
        options = [node, *node.get("anyOf", ()), *node.get("allOf", ())]
        targets = [schema["$defs"][each["$ref"].rpartition("/")[2]] for each in options if "$ref" in each]
        node = next(
            each["properties"][part] for each in [node, *targets] if part in each.get("properties", {})
        )
    return node


def test_every_term_stands_once() -> None:
    terms = [row[0] for row in ROWS]
    assert len(terms) == len(set(terms)) > 80


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there(name: str) -> None:
    if name.startswith("fedsim "):
        assert name.split()[1] in COMMANDS
    elif name.startswith("python -m "):
        assert (ROOT / name.split()[2].replace(".", "/") / "__main__.py").exists()
    elif "/" in name:
        assert (ROOT / name).exists()
    elif name.startswith(("fedsim.", "actors.", "jobs.", "api.")):
        resolve_name(name)
    else:
        assert schema_field(name) is not None


def test_the_page_is_found() -> None:
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text("utf-8")
