"""README's first command, in a home where nothing runs yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def list_processes(home: Path) -> list[str]:
    """The processes whose home this is."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"FEDSIM_HOME={home}".encode() in file.read_bytes().split(b"\0"):
                found.append(file.parent.name)
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


@pytest.mark.slow
def test_the_demo_starts_a_service_and_ends_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-m", "api.cli.main", "demo", "--no-keep", "--format", "json"],
        env={**os.environ, "FEDSIM_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["job"]["state"], len(found["rounds"])) == ("SUCCEEDED", 20)
    assert list_processes(home) == []
