"""The site of the docs: its navigation has every page, it builds without a warning, it needs no network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from api.cli.main import app

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text("utf-8")


def test_every_page_is_in_the_navigation() -> None:
    """A new page in docs/ needs a line under `nav` of mkdocs.yml."""
    navigation = set(re.findall(r"\b([\w/-]+\.md)$", CONFIG.split("\nnav:\n")[1], re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - navigation == set()


def test_the_python_page_has_every_name_that_the_docs_import() -> None:
    """Registries, such as ALGORITHMS, are on the pages of their kinds."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    listed = set(re.findall(r"^::: (\S+)", page, re.MULTILINE))
    statement = re.compile(r"^from ((?:fedsim|jobs)(?:\.\w+)*) import (\([^)]*\)|.*)$", re.MULTILINE)
    imported = {
        f"{module}.{name}"
        for path in (ROOT / "docs").rglob("*.md")
        for module, names in statement.findall(path.read_text("utf-8"))
        for name in re.findall(r"\w+", names)
        if not name.isupper()
    }
    assert len(imported) > 20
    assert sorted(n for n in imported if not {n, n.rpartition(".")[0]} & listed) == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_the_pages_of_the_root_and_of_the_code(site: Path) -> None:
    assert "Try it" in (site / "index.html").read_text("utf-8")
    commands = (site / "reference" / "commands.html").read_text("utf-8")
    names = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert not [name for name in names if f"fedsim {name}</code>" not in commands]
    assert "POST /api/v1/jobs" in (site / "reference" / "routes.html").read_text("utf-8")
    python = (site / "reference" / "python.html").read_text("utf-8")
    assert not [name for name in ("FedSimClient", "simulate", "Algorithm") if f".{name}</span>" not in python]


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^\s\">]+")
    found = {
        hit
        for page in site.rglob("*.html")
        for hit in loaded.findall(page.read_text("utf-8"))
        if "canonical" not in hit
    }
    assert found == set()


@pytest.mark.slow
def test_the_search_knows_methods_commands_and_classes(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    words = ("SCAFFOLD", "fedsim verify", "FedSimClient")
    places: dict[str, set[str]] = {word: set() for word in words}
    for entry in entries:
        for word in words:
            if word in entry["title"] + entry["text"]:
                places[word].add(entry["location"].partition("#")[0])
    assert "methods/averaging.html" in places["SCAFFOLD"]
    assert "reference/commands.html" in places["fedsim verify"]
    assert {"sdk.html", "reference/python.html"} <= places["FedSimClient"]
