import errno
import fcntl
import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from api.server.work_process import make_environment_with_ray
from fedsim.errors import RayUnavailable
from jobs.file_locks import lock_file
from jobs.local_ray import embedded_ray, keeper, keeper_files
from jobs.local_ray.embedded_ray import ensure_ray, find_ray, stop_ray
from jobs.local_ray.keeper import fetch_json, has_running_jobs, object_store_bytes
from jobs.local_ray.keeper_files import (
    ALIVE,
    Addresses,
    is_keeper_alive,
    read_addresses,
    read_or_make_token,
    write_addresses,
)
from jobs.settings import Settings


def processes_of(addresses):
    """The processes that have the Ray's directory in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if addresses.temporary in entry.read_text(errors="replace"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def eventually(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_running_ray_is_found_again(ray_home):
    settings = Settings(ray_home)
    first, second = ensure_ray(settings), find_ray(settings)
    assert first == second
    assert first.jobs.startswith("http://127.0.0.1:")
    assert first.gcs.startswith("127.0.0.1:")
    code = (
        "from jobs.local_ray.embedded_ray import ensure_ray; from jobs.settings import Settings; import sys\n"
    )
    code += "print(ensure_ray(Settings(sys.argv[1])).gcs)"
    other = subprocess.run([sys.executable, "-c", code, ray_home], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == first.gcs


@pytest.mark.slow
def test_plans_are_measured_on_it(ray_home):
    told = make_environment_with_ray(Settings(ray_home))
    assert told["FEDSIM_RAY_ADDRESS"] == find_ray(Settings(ray_home)).gcs
    assert Path(told["RAY_AUTH_TOKEN_PATH"]).read_text() == read_or_make_token(ray_home)


def test_ray_asks_for_the_token(ray_home):
    address = ensure_ray(Settings(ray_home))
    assert fetch_json(address.jobs, "/api/version", address.token) is not None
    assert fetch_json(address.jobs, "/api/version", "wrong") is None
    assert address.token not in repr(address)
    assert (ray_home / "ray.token").stat().st_mode & 0o077 == 0


def test_no_other_user_can_enter_its_directory(ray_home):
    """Ray itself opens the folders of its logs and sockets to all users."""
    private = Path(read_addresses(ray_home).temporary)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert private.stat().st_uid == os.geteuid()
    within = [found for found in private.rglob("*") if found.name in ("logs", "sockets")]
    assert {found.name for found in within} == {"logs", "sockets"}


def test_ray_listens_on_loopback_only(ray_home):
    """Every TCP socket on which a process of this Ray listens, by /proc."""
    inodes = set()
    for process in processes_of(read_addresses(ray_home)):
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            try:
                inodes.add(os.readlink(descriptor))
            except OSError:
                continue
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                listening.append(fields[1].split(":")[0])
    assert listening
    assert {address[-8:] for address in listening} == {"0100007F"}


@pytest.mark.slow
def test_one_ray_for_many_starters_which_ends_when_nobody_needs_it(tmp_path):
    settings = Settings(tmp_path / "home", ray_num_cpus=1, ray_idle_seconds=2)
    with ThreadPoolExecutor(3) as threads:
        found = set(threads.map(lambda _: ensure_ray(settings), range(3)))
    assert len(found) == 1
    addresses = read_addresses(settings.home)
    assert processes_of(addresses)
    assert not has_running_jobs(addresses, read_or_make_token(settings.home))
    eventually(lambda: not is_keeper_alive(settings.home))
    eventually(lambda: not processes_of(addresses))
    assert not Path(addresses.temporary).exists()
    assert read_addresses(settings.home) is None
    assert find_ray(settings) is None
    assert not stop_ray(settings)
    assert "no API and no job" in (settings.home / "ray.log").read_text()


def test_a_ray_that_does_not_start_says_what_its_log_says(tmp_path, monkeypatch):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/__init__.py").write_text("raise SystemExit('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("jobs.local_ray.embedded_ray.package_path", lambda: f"{tmp_path}:{Path.cwd()}")
    with pytest.raises(RayUnavailable, match="broken on purpose") as caught:
        ensure_ray(Settings(tmp_path / "home"), timeout=30)
    assert "exit code 1" in str(caught.value)


def test_jobs_have_plugins_and_trackers_from_their_own_service(tmp_path, monkeypatch):
    """The local Ray outlives its service, and the next one may have none."""
    started = []
    fake = lambda *_, env, **__: started.append(env) or SimpleNamespace(wait=int)  # noqa: E731
    monkeypatch.setattr(embedded_ray.subprocess, "Popen", fake)
    monkeypatch.setenv("FEDSIM_TRACK", "wandb")
    embedded_ray._start_keeper(Settings(tmp_path, plugins="mine", track=("wandb",)), tmp_path)
    assert started[0]["FEDSIM_HOME"] == str(tmp_path)
    assert not {"FEDSIM_PLUGINS", "FEDSIM_TRACK", "FEDSIM_TOKEN", "FEDSIM_DATABASE_URL"} & started[0].keys()


def test_a_keeper_that_never_answers_is_not_waited_for_for_ever(tmp_path):
    settings = Settings(tmp_path)
    with lock_file(tmp_path / "ray.lock") as got:
        assert got
        assert is_keeper_alive(tmp_path)
        with pytest.raises(RayUnavailable, match=r"within 0\.3 s"):
            ensure_ray(settings, timeout=0.3)
    assert not is_keeper_alive(tmp_path)


def test_who_asks_for_the_keeper_is_not_taken_for_it(tmp_path):
    with (tmp_path / "ray.lock").open("w") as asked:
        fcntl.flock(asked, fcntl.LOCK_SH)  # as another process that asks in the same moment
        assert not is_keeper_alive(tmp_path)


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        ({"data": {"result": {"result": [{"state": "ALIVE"}]}}}, False),
        ({"data": {"result": {"result": []}}}, True),
        ({"data": {"result": {"result": [{"state": "DEAD"}]}}}, True),
        ({"result": False, "msg": "the GCS does not answer"}, False),
        (None, False),
    ],
)
def test_a_ray_without_its_node_is_told_from_one_that_does_not_answer(monkeypatch, answer, lost):
    monkeypatch.setattr(keeper, "fetch_json", lambda *_: answer)
    assert keeper.has_lost_its_node(Addresses(1, "/nowhere", "http://127.0.0.1:1"), "token") == lost


def test_a_named_cluster_is_taken_as_it_is(tmp_path):
    address = ensure_ray(Settings(tmp_path / "home", ray_address="http://head:8265"))
    assert (address.jobs, address.headers) == ("http://head:8265", None)
    assert not (tmp_path / "home").exists()


def test_files_of_a_dead_keeper_mean_nothing(tmp_path):
    write_addresses(tmp_path, Addresses(os.getpid(), "/nowhere", "http://127.0.0.1:1", "127.0.0.1:2"))
    settings = Settings(tmp_path)
    assert find_ray(settings) is None
    assert not stop_ray(settings)
    (tmp_path / "ray.json").write_text("{half")
    assert read_addresses(tmp_path) is None


def test_the_token_is_made_once(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: read_or_make_token(tmp_path), range(8)))) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["ray.token"]


def test_a_full_disk_does_not_hide_a_token_that_there_is(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    token = read_or_make_token(tmp_path)
    monkeypatch.setattr(keeper_files.os, "open", refuse)
    assert read_or_make_token(tmp_path) == token


def test_the_object_store_has_a_sensible_size():
    assert 75 * 2**20 < object_store_bytes() <= 2 * 2**30


def test_asking_for_ray_is_a_sign_of_life(ray_home):
    before = time.time() - 1
    ensure_ray(Settings(ray_home))
    assert (ray_home / ALIVE).stat().st_mtime > before
