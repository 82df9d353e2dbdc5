"""How a Ray of this process's own is started: with which token, how many CPUs, and where its sockets are."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray

from fedsim.errors import SettingsError
from jobs.local_ray.embedded_ray import RayAddress
from jobs.local_ray.keeper_files import read_or_make_token
from jobs.local_ray.machine import (
    LONGEST_DIRECTORY,
    LONGEST_PARENT,
    RAY_FOLDER,
    check_private_directory,
    count_cpus,
    find_user_directory,
    make_private_directory,
)
from jobs.plan.planner import describe_this_machine
from jobs.queue import ray_jobs
from jobs.queue.ray_jobs import RayJobs
from jobs.run.ray_connection import connect_to_ray
from jobs.settings import Settings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How Ray would have been started, in an environment that says nothing of it."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR", "TMPDIR"):
        # Set first: so what the code sets is taken back after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: found.append(options))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return found


def test_a_ray_of_our_own_has_a_token_that_only_its_user_can_read(
    tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    settings = Settings(tmp_path / "home")
    with connect_to_ray(settings):
        path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert path.read_text("ascii") == read_or_make_token(settings.home)
        assert path.stat().st_mode & 0o077 == 0
    assert started[0]["address"] == "local"


def test_tokens_that_are_set_up_stay_as_they_are(
    tmp_path: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with connect_to_ray(Settings(tmp_path / "home")):
        assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    monkeypatch.delenv("RAY_AUTH_MODE")
    with connect_to_ray(Settings(tmp_path / "home", ray_address="auto")):
        assert "RAY_AUTH_TOKEN_PATH" not in os.environ


@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR"])
def test_ray_has_a_private_directory_for_as_long_as_it_is_there(
    variable: str, tmp_path: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "/var/tmp")
    with connect_to_ray(Settings(tmp_path / "home")):
        private = Path(started[0]["_temp_dir"]).parent
        assert private.parent == Path("/var/tmp")
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert not private.exists()


@pytest.mark.parametrize(("length", "taken"), [(LONGEST_PARENT, True), (LONGEST_PARENT + 1, False)])
def test_sockets_get_a_short_path(length: int, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/" + "t" * (length - 1))
    assert (find_user_directory() == os.environ["TMPDIR"]) == taken
    made = make_private_directory("/tmp")
    made.rmdir()
    longest = LONGEST_PARENT - len("/tmp") + len(os.fsencode(made / RAY_FOLDER))
    session = "/session_2026-11-23_19-40-08_123456_1234567/sockets/plasma_store"
    assert longest == LONGEST_DIRECTORY <= 107 - len(session)


def test_a_directory_that_others_may_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    check_private_directory(private)
    link = tmp_path / "link"
    link.symlink_to(private)
    with pytest.raises(SettingsError, match="link is not a directory"):
        check_private_directory(link)
    with monkeypatch.context() as another:
        another.setattr(os, "geteuid", lambda: private.stat().st_uid + 1)
        with pytest.raises(SettingsError, match="belongs to user"):
            check_private_directory(private)
    # A disk without permissions shows each directory as open.
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(private))
    private.chmod(0o770)
    with pytest.raises(SettingsError, match=r"open to other users \(mode 070\).*TMPDIR"):
        make_private_directory(str(tmp_path))
    assert not private.exists()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 4),
        ({"cpu.max": "max 100000"}, 4),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "3200000 100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu.max": "nonsense"}, 4),
    ],
)
def test_a_container_has_the_cpus_that_it_may_use(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6})
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert count_cpus(Settings(tmp_path), tmp_path) == expected
    assert count_cpus(Settings(tmp_path, ray_num_cpus=7), tmp_path) == 7


def test_a_run_and_a_plan_count_alike(
    tmp_path: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with connect_to_ray(Settings(tmp_path)):
        assert started[0]["num_cpus"] == 1
    assert describe_this_machine(Settings(tmp_path, ray_num_gpus=0)).cpus == 1


def test_the_cluster_of_this_machine_is_asked_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    monkeypatch.setattr(ray_jobs, "_enable_token", lambda: taken.append(True))
    monkeypatch.setattr(ray_jobs, "_Client", lambda *_, **__: None)
    RayJobs(RayAddress("head:6379", "head"))
    assert not taken
    RayJobs(RayAddress("auto", "auto"))
    assert taken
