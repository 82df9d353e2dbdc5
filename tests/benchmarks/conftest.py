"""What the tests of result tables share."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tables.grid import Table, read_table
from jobs.settings import Settings
from tests.benchmarks.small_table import SMALL


@pytest.fixture
def table(tmp_path: Path) -> Table:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL, "utf-8")
    return read_table(file)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")
