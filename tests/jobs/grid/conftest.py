"""What the tests of result tables share."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.grid.table import Table, read_table
from tests.jobs.grid.small_table import SMALL


@pytest.fixture
def table(tmp_path: Path) -> Table:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL, "utf-8")
    return read_table(file)
