"""What lies in a home is for its owner only, also where an earlier version left it open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsim.errors import SettingsError
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


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.mark.parametrize(("before", "after"), [(0o777, 0o755), (0o770, 0o750), (0o700, 0o700)])
def test_only_its_user_may_write_into_a_home(tmp_path: Path, before: int, after: int) -> None:
    """Others could replace the folder of the jobs, or put a token of theirs there before the first start."""
    tmp_path.chmod(before)
    keep_private(tmp_path)
    assert mode(tmp_path) == after


def test_a_home_of_somebody_else_where_all_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    tmp_path.chmod(0o1777)
    with pytest.raises(SettingsError, match=r"every user may write into FEDSIM_HOME.*folder of your own"):
        keep_private(tmp_path)
    tmp_path.chmod(0o770)
    keep_private(tmp_path)
    assert mode(tmp_path) == 0o770
