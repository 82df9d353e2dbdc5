"""README's first command, in a home where nothing runs yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.local_ray.embedded_ray import stop_ray
from jobs.settings import Settings


def list_services(home: Path) -> list[str]:
    """The services of this home; its local Ray may outlive them by a minute."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"FEDSIM_HOME={home}".encode() in (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended, or belongs to another user
            continue
        if ours and b"serve" in words:
            found.append(folder.name)
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
    deadline = time.monotonic() + 60
    while list_services(home):  # the command asks it to end, and does not wait for it
        assert time.monotonic() < deadline
        time.sleep(0.1)
    stop_ray(Settings(home))
