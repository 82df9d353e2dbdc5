"""Whatever is killed, a job goes on by itself: the same digests, no round lost and none written twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from jobs.local_ray.keeper_files import read_addresses
from jobs.settings import Settings
from jobs.store.job_store import JobStore
from jobs.store.states import FINAL
from tests.e2e.server import QUICK, Server, runner_pid, submit, undisturbed, wait_for

STATEFUL: dict[str, Any] = {
    **QUICK,
    "algorithm": "scaffold",
    "rounds": 40,
    "model": "mlp",
    "checkpoint": {"every": 4},
    "resources": {"workers": 2, "cpus_per_worker": 0.5},
}

Kill = Callable[[Server, str], int]

KILLS: dict[str, Kill] = {
    "coordinator": lambda server, job: server.coordinator_pid(),
    "runner": lambda server, job: runner_pid(job),
}


def kill_at(server: Server, store: JobStore, job: str, round: int, what: str, *, restarts: int) -> None:
    """Kill a process of a job as soon as the store has this round and has gone on after `restarts` losses.

    A job whose process was just killed may still be written down as RUNNING, with rounds beyond this one:
    killed again before anybody has noticed the first loss, it would begin again once for both.
    """
    deadline = time.monotonic() + 300
    while True:
        seen = store.get(job)
        if seen.state == "RUNNING" and seen.restarts == restarts and seen.rounds_done >= round:
            break
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)
    while True:
        # What was killed last may still be named for a moment; it is to be one that lives.
        with suppress(LookupError, ProcessLookupError):
            os.kill(KILLS[what](server, job), signal.SIGKILL)
            return
        assert time.monotonic() < deadline, store.get(job)
        time.sleep(0.1)


def whole(store: JobStore, job: str, digests: list[str]) -> None:
    """Every round is there once, in order, as in the run that nobody disturbed."""
    records = store.rounds(job)
    assert [record.round for record in records] == list(range(1, len(digests) + 1))
    assert [record.digest for record in records] == digests
    told = [event.data["round"] for event in store.events(job, limit=100_000) if event.type == "round"]
    assert told == list(range(1, len(digests) + 1))


@pytest.mark.slow
def test_a_killed_coordinator_and_a_killed_runner_change_nothing(http: httpx.Client, server: Server) -> None:
    rng = np.random.default_rng(0)
    job = submit(http, STATEFUL)
    with JobStore.open(server.settings.database_url) as store:
        kill_at(server, store, job, int(rng.integers(1, 15)), "coordinator", restarts=0)
        digests = undisturbed(STATEFUL, server.settings)
        kill_at(server, store, job, int(rng.integers(16, 30)), "runner", restarts=1)
        ended = wait_for(http, job, {"SUCCEEDED", "FAILED"}, seconds=300)
        assert (ended["state"], ended["restarts"]) == ("SUCCEEDED", 2), ended
        whole(store, job, digests)
        states = [event.data["state"] for event in store.events(job, limit=1000) if event.type == "state"]
        assert states == ["QUEUED", *(["STARTING", "RUNNING"] * 3), "SUCCEEDED"]
    log = (server.settings.job_dir(job) / "job.log").read_text()
    assert "lost: the coordinator, or an object that it needs, was lost" in log
    assert "INFO going on after round" in log


@pytest.mark.weekly
@pytest.mark.parametrize("seed", [1, 2])
def test_a_lost_node_changes_nothing(tmp_path: Path, seed: int) -> None:
    """With it go an actor and memories of clients; the run goes on with the actors that still fit."""
    command = [sys.executable, "-m", "tests.e2e.lost_node", str(tmp_path), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    digests = undisturbed(STATEFUL, Settings(tmp_path / "home"))
    assert [(number, digest) for number, digest, _ in found["rounds"]] == [*enumerate(digests, start=1)]
    assert len(found["killed"]) == 1
    assert [actors for _, _, actors in found["rounds"]][-1] == 2
    assert any(phase.startswith("starting again after a loss") for phase in found["phases"])


@pytest.mark.weekly
def test_a_cancelled_job_is_resumed(http: httpx.Client, server: Server) -> None:
    spec = {**STATEFUL, "rounds": 60}
    job = submit(http, spec)
    with JobStore.open(server.settings.database_url) as store:
        while store.get(job).rounds_done < 9:
            time.sleep(0.02)
        assert http.post(f"/jobs/{job}/resume").status_code == 409
        http.post(f"/jobs/{job}/cancel")
        wait_for(http, job, {"CANCELLED"})
        answer = http.post(f"/jobs/{job}/resume")
        assert (answer.status_code, answer.json()["resumes"]) == (200, 1)
        ended = wait_for(http, job, {"SUCCEEDED", "FAILED"}, seconds=300)
        assert (ended["state"], ended["restarts"]) == ("SUCCEEDED", 0), ended
        whole(store, job, undisturbed(spec, server.settings))


@pytest.mark.weekly
@pytest.mark.timeout(1400)
def test_twenty_random_kills_lose_and_double_nothing(http: httpx.Client, server: Server) -> None:
    """Five jobs; four kills in each, of the coordinator or the runner, at random rounds."""
    rng = np.random.default_rng(20)
    local = {"epochs": 4, "batch_size": 16, "lr": 0.05}
    spec = {**STATEFUL, "rounds": 200, "local": local, "checkpoint": {"every": 7}}
    spec["faults"] = {"max_restarts": 4}
    with JobStore.open(server.settings.database_url) as store:
        for seed in range(5):
            mine = {**spec, "seed": seed}
            job = submit(http, mine)
            rounds = sorted(rng.choice(np.arange(1, 150), 4, replace=False).tolist())
            for restarts, round in enumerate(rounds):
                kill_at(server, store, job, round, str(rng.choice(list(KILLS))), restarts=restarts)
            ended = wait_for(http, job, {"SUCCEEDED", "FAILED"}, seconds=300)
            assert (ended["state"], ended["restarts"]) == ("SUCCEEDED", 4), ended
            whole(store, job, undisturbed(mine, server.settings))


RAY_PROCESSES = {
    "raylet": ("raylet/raylet", True),
    "GCS": ("gcs/gcs_server", True),
    "dashboard": ("dashboard/dashboard.py", True),
    "dashboard agent": ("ray::DashboardAgent", True),
    "runtime environment agent": ("ray::RuntimeEnvAgent", True),
    "keeper": ("jobs.local_ray.keeper", True),
    "autoscaler monitor": ("autoscaler/_private/monitor.py", True),
}
"""Words at the beginning of each command line, and whether Ray is gone without the process.

Without an agent the node ends and Ray goes on: the keeper then ends it. A local Ray has no log monitor.
"""


EACH_TIME = "runtime environment agent"
"""The process that `make test-reference` kills; `make test-weekly` kills the others."""


def find_ray_process(server: Server, words: str) -> int:
    """The process of the server's Ray, or a child of it, with these words in its name or first arguments.

    The raylet has the command lines of its agents among its later arguments.
    """
    addresses = read_addresses(server.settings.home)
    assert addresses is not None
    if words == RAY_PROCESSES["keeper"][0]:
        return addresses.pid
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            line = (folder / "cmdline").read_text(errors="replace")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            above = Path(f"/proc/{parent}/cmdline").read_text(errors="replace")
            if any(words in each for each in line.split("\0")[:3]) and addresses.temporary in line + above:
                return int(folder.name)
    raise LookupError(f"no process of this Ray has {words!r}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "process",
    [
        pytest.param(name, marks=pytest.mark.slow if name == EACH_TIME else pytest.mark.weekly)
        for name in RAY_PROCESSES
    ],
)
def test_any_process_of_ray_may_be_killed_during_a_job(
    http: httpx.Client, server: Server, process: str
) -> None:
    """The job ends with the undisturbed digests, and /readyz tells of a Ray that is gone.

    It takes less than 3 minutes with two cores of its own, and more where others work on them.
    """
    spec = {**STATEFUL, "checkpoint": {"every": 1}, "faults": {"max_restarts": 5}}
    words, is_ray_gone = RAY_PROCESSES[process]
    job, ready = submit(http, spec), list[bool]()
    with JobStore.open(server.settings.database_url) as store:
        deadline = time.monotonic() + 240
        while (seen := store.get(job)).state != "RUNNING" or seen.rounds_done < 3:
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)
        os.kill(find_ray_process(server, words), signal.SIGKILL)
        deadline = time.monotonic() + 500
        while (seen := store.get(job)).state not in FINAL or (is_ray_gone and False not in ready):
            ready.append(server.is_ready())
            assert time.monotonic() < deadline, (seen, ready)
            time.sleep(0.1)
        assert seen.state == "SUCCEEDED", seen
        whole(store, job, undisturbed(spec, server.settings))
    assert (False in ready) == is_ray_gone
    while not server.is_ready():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert http.get("/cluster").json()["nodes"]
