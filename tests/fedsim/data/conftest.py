import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_roots() -> list[Path]:
    """Where a user would keep data sets on this machine."""
    named = os.environ.get("FEDSIM_DATA", "")
    home = Path(os.environ.get("FEDSIM_HOME", "~/.fedsim")).expanduser()
    return [Path(p) for p in named.split(os.pathsep) if p] + [home / "data"]
