"""A dispatcher that looks when it is told to, on a cluster that says what the test has it say."""

import time
from datetime import UTC, datetime, timedelta

from actors.resources import ClusterNode
from fedsim.errors import JobRefused, RayUnavailable
from jobs.queue.dispatcher import Dispatcher
from jobs.run.job_cluster import RayJob
from jobs.settings import Settings
from jobs.spec import parse_spec
from tests.thread_cluster import RUNS

ENDED = RayJob(ended=True, message="", exit_code=None)


class Scripted:
    """A cluster whose jobs are what the test says."""

    def __init__(self):
        self.jobs, self.environments, self.stopped, self.refuses = {}, {}, [], set()
        self.there, self.has = True, [ClusterNode("here", 2, 0)]

    def find(self, ray_job_id):
        if not self.there:
            raise RayUnavailable("Ray at 127.0.0.1 does not answer")
        return self.jobs.get(ray_job_id)

    def submit(self, ray_job_id, command, environment):
        if command[-1] in self.refuses:
            raise JobRefused(f"Ray does not take {ray_job_id}: no room in /tmp")
        self.jobs.setdefault(ray_job_id, RUNS)
        self.environments[ray_job_id] = environment

    def fetch_nodes(self):
        return self.has

    def stop(self, ray_job_id):
        self.stopped.append(ray_job_id)

    def read_log_tail(self, ray_job_id, lines=20):
        return "its last words"


class Desk:
    """A store, a cluster, and a dispatcher that looks when it is told to."""

    def __init__(self, store, url, home, **options):
        self.store, self.cluster = store, Scripted()
        self.settings = Settings(home, database_url=url, **{"max_running": 1} | options)
        self.dispatcher = Dispatcher(store, self.settings, command=["run"], connect=lambda: self.cluster)

    def look(self):
        self.dispatcher._serve_queue_once()

    def job(self, name="a", priority=0, **spec):
        return self.store.create(
            parse_spec({"algorithm": "fedavg", "name": name, **spec}), priority=priority
        )[0].id

    def state(self, job_id):
        return self.store.get(job_id).state

    def beat(self, job_id, clock=0.0):
        """A runner shows life, on a machine whose clock is so many seconds ahead."""
        self.store._update_job(job_id, heartbeat_at=datetime.now(UTC) + timedelta(seconds=clock))


def later(monkeypatch, seconds):
    """Let so many seconds pass, for this process alone."""
    now = time.monotonic() + seconds
    monkeypatch.setattr(time, "monotonic", lambda: now)
