"""Jobs of a service are forks of the fork server; short ones train without Ray."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs.local_ray.keeper_files import read_addresses
from jobs.store.job_store import JobStore
from tests.e2e.server import QUICK, Server, submit, undisturbed, wait_for
from tests.e2e.test_restarts import whole

pytestmark = pytest.mark.slow

SHORT: dict[str, Any] = {**QUICK, "rounds": 250, "checkpoint": {"every": 10}, "resources": {"workers": 1}}


def list_children(parent: int) -> dict[int, str]:
    """The processes that a process has started, with their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    return found


def find_fork_server(server: Server) -> int:
    addresses = read_addresses(server.settings.home)
    assert addresses is not None
    (pid,) = (
        pid for pid, line in list_children(addresses.pid).items() if "jobs.run.forks.fork_server" in line
    )
    return pid


def wait_for_rounds(store: JobStore, job: str, rounds: int) -> None:
    deadline = time.monotonic() + 240
    while store.get(job).rounds_done < rounds:
        assert time.monotonic() < deadline, store.get(job)
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("victim", "workers"), [("runner", 1), ("fork server", 1), pytest.param("fork server", 2, id="with Ray")]
)
def test_a_killed_process_changes_nothing(
    http: httpx.Client, server: Server, victim: str, workers: int
) -> None:
    spec = {**SHORT, "resources": {"workers": workers, "cpus_per_worker": 0.5 if workers > 1 else 1}}
    job = submit(http, spec)
    with JobStore.open(server.settings.database_url) as store:
        wait_for_rounds(store, job, 20)
        pid = find_fork_server(server)
        (runner,) = list_children(pid)
        os.kill(runner if victim == "runner" else pid, signal.SIGKILL)
        ended = wait_for(http, job, {"SUCCEEDED", "FAILED"})
        assert (ended["state"], ended["restarts"]) == ("SUCCEEDED", 1), ended
        whole(store, job, undisturbed(spec, server.settings))
        assert {record.engine.actors for record in store.rounds(job)} == {workers if workers > 1 else 0}
    log = (server.settings.job_dir(job) / "job.log").read_text()
    assert "going on after round" in log
    after = wait_for(http, submit(http, QUICK), {"SUCCEEDED", "FAILED"})
    assert after["state"] == "SUCCEEDED", after


def test_a_cancelled_job_ends_at_once_and_is_resumed(http: httpx.Client, server: Server) -> None:
    job = submit(http, SHORT)
    with JobStore.open(server.settings.database_url) as store:
        wait_for_rounds(store, job, 15)
        http.post(f"/jobs/{job}/cancel")
        wait_for(http, job, {"CANCELLED"})
        http.post(f"/jobs/{job}/resume")
        assert wait_for(http, job, {"SUCCEEDED", "FAILED"})["state"] == "SUCCEEDED"
        whole(store, job, undisturbed(SHORT, server.settings))


def test_a_killed_service_finds_the_job_again(http: httpx.Client, server: Server) -> None:
    job = submit(http, SHORT)
    with JobStore.open(server.settings.database_url) as store:
        wait_for_rounds(store, job, 10)
        server.stop(signal.SIGKILL)
        server.start()
        ended = wait_for(http, job, {"SUCCEEDED", "FAILED"})
        assert (ended["state"], ended["restarts"]) == ("SUCCEEDED", 0), ended
        whole(store, job, undisturbed(SHORT, server.settings))
