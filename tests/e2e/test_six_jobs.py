"""Six jobs run while all that they need is killed by turns; they end as if nobody had disturbed them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import httpx
import pytest

from jobs.local_ray.keeper_files import read_addresses
from jobs.store.job_store import JobStore
from jobs.store.records import Job
from jobs.store.states import FINAL, JobState
from tests.e2e.server import Server, runner_pid, running_server, submit, undisturbed
from tests.e2e.test_restarts import STATEFUL, whole

SPEC: dict[str, Any] = {
    **STATEFUL,
    "rounds": 120,
    "local": {"epochs": 4, "batch_size": 16, "lr": 0.05},
    "checkpoint": {"every": 5},
    "resources": {"workers": 2, "cpus_per_worker": 0.25},  # with one worker, the jobs might be short
    "faults": {"max_restarts": 8},
}
JOBS, AT_ONCE, TURNS = 6, 3, 2
PROGRESS, LATEST = 4, 85
"""A job is struck when it has come so many rounds further since it was last struck, and not near its end."""

Find = Callable[[Server, str], int]

VICTIMS: dict[str, Find] = {
    "actor": lambda server, job: server.pids(job, "Client")[0],
    "coordinator": lambda server, job: server.pids(job, "Coordinator")[0],
    "runner": lambda server, job: runner_pid(job),
}


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("home"), FEDSIM_MAX_RUNNING=str(AT_ONCE)) as server:
        yield server


class Hunt:
    """Kills by turns what the jobs of a server need."""

    def __init__(self, server: Server, store: JobStore, jobs: list[str]) -> None:
        self.server, self.store = server, store
        self.turn = cycle(jobs)
        self.struck_at = dict.fromkeys(jobs, 0)
        self.restarts = dict.fromkeys(jobs, 0)
        self.actors_lost = set[str]()

    def kill_the_service(self) -> None:
        self.server.stop(signal.SIGKILL)
        self.server.start()

    def kill_for(self, what: str) -> None:
        """Kill what some job needs, as soon as there is a job that runs well."""
        deadline = time.monotonic() + 120
        while not self._strike(next(self.turn), what):
            assert time.monotonic() < deadline, [self.store.get(job) for job in self.struck_at]
            time.sleep(0.05)

    def _strike(self, job: str, what: str) -> bool:
        found = self.store.get(job)
        if found.state is not JobState.RUNNING:
            return False
        if not self.struck_at[job] + PROGRESS <= found.rounds_done <= LATEST or not self._over(found):
            return False
        try:
            os.kill(VICTIMS[what](self.server, job), signal.SIGKILL)
        except (LookupError, ProcessLookupError):
            return False
        self.struck_at[job] = found.rounds_done
        if what == "actor":
            self.actors_lost.add(job)
        else:
            self.restarts[job] += 1
        return True

    def _over(self, found: Job) -> bool:
        """Whether what was done to a job before is in its books: rounds come to the store some at a time."""
        if found.restarts != self.restarts[found.id]:
            return False
        if found.id in self.actors_lost and any(r.engine.restarts for r in self.store.rounds(found.id)):
            self.actors_lost.remove(found.id)
        return found.id not in self.actors_lost


def to_their_end(store: JobStore, jobs: list[str], seconds: float = 300) -> list[Job]:
    deadline = time.monotonic() + seconds
    while any((found := store.get(job)).state not in FINAL for job in jobs):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return [store.get(job) for job in jobs]


@pytest.mark.weekly
@pytest.mark.timeout(600)
def test_six_jobs_end_as_if_nobody_had_disturbed_them(own_server: Server) -> None:
    specs = [{**SPEC, "name": f"six-{seed}", "seed": seed} for seed in range(JOBS)]
    with httpx.Client(base_url=f"{own_server.url}/api/v1", timeout=30) as http:
        jobs = [submit(http, spec) for spec in specs]
    with JobStore.open(own_server.settings.database_url) as store:
        hunt = Hunt(own_server, store, jobs)
        for _ in range(TURNS):
            for what in VICTIMS:
                hunt.kill_for(what)
            hunt.kill_the_service()
        digests = [undisturbed(spec, own_server.settings) for spec in specs]
        ended = to_their_end(store, jobs)
        assert [job.state for job in ended] == [JobState.SUCCEEDED] * JOBS, ended
        # A dead coordinator or runner is a restart; a dead actor is not, and a dead service is nothing.
        assert sum(job.restarts for job in ended) == 2 * TURNS, ended
        for job, expected in zip(jobs, digests, strict=True):
            whole(store, job, expected)
        actors = [max(record.engine.restarts for record in store.rounds(job)) for job in jobs]
        assert sum(actors) >= 1


@pytest.mark.weekly
@pytest.mark.timeout(400)
def test_a_job_outlives_the_ray_that_it_runs_on(own_server: Server) -> None:
    with httpx.Client(base_url=f"{own_server.url}/api/v1", timeout=30) as http:
        job = submit(http, SPEC)
    with JobStore.open(own_server.settings.database_url) as store:
        while store.get(job).rounds_done < 20:
            time.sleep(0.05)
        keeper = read_addresses(own_server.settings.home)
        assert keeper is not None
        os.kill(keeper.pid, signal.SIGKILL)
        digests = undisturbed(SPEC, own_server.settings)
        (ended,) = to_their_end(store, [job])
        assert ended.state is JobState.SUCCEEDED, ended
        assert ended.restarts >= 1
        whole(store, job, digests)
