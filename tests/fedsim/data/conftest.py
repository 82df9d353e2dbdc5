import os
from pathlib import Path

import pytest
from hypothesis import settings

# The machine decides how long an example takes, so no deadline; no folder of past examples is left behind.
settings.register_profile("fedsim", deadline=None, database=None, derandomize=True, max_examples=60)
settings.load_profile("fedsim")


@pytest.fixture(scope="session")
def data_roots() -> list[Path]:
    """Where a user would keep data sets on this machine."""
    named = os.environ.get("FEDSIM_DATA", "")
    home = Path(os.environ.get("FEDSIM_HOME", "~/.fedsim")).expanduser()
    return [Path(p) for p in named.split(os.pathsep) if p] + [home / "data"]
