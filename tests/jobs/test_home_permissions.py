"""What lies in a home is for its owner only, also where an earlier version left it open."""

from __future__ import annotations

import os
from pathlib import Path

from jobs.home_permissions import keep_private


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_an_open_home_is_closed(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        (tmp_path / "jobs").mkdir()
        (tmp_path / "data").mkdir()
        for name in ("fedsim.db", "fedsim.db-wal", "serve.json", "serve.log", "ray.json", "ray.log"):
            (tmp_path / name).write_text("open\n")
        keep_private(tmp_path)
        (tmp_path / "new").write_text("new\n")
    finally:
        os.umask(before)
    assert {path.name: mode(path) for path in tmp_path.iterdir() if mode(path) & 0o077} == {"data": 0o755}
