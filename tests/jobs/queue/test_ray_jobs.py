"""What is asked of Ray's dashboard about the nodes, and what is made of its answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from actors.resources import reserve_server_gpu
from fedsim.errors import RayUnavailable
from jobs.local_ray.cluster import MAX_ROWS
from jobs.local_ray.embedded_ray import RayAddress, find_ray
from jobs.queue import ray_jobs
from jobs.queue.dispatcher import Dispatcher
from jobs.queue.ray_jobs import RayJobs
from jobs.settings import Settings
from jobs.store.job_store import JobStore
from tests.jobs.local_ray.test_cluster import listed, node


class Dashboard:
    """Gives one answer to all that is asked, and keeps the paths."""

    def __init__(self, status: int, answer: Mapping[str, Any]) -> None:
        self.status, self.answer, self.asked = status, answer, list[str]()

    def __call__(self, address: str, headers: Any) -> Dashboard:
        return self

    def _do_request(self, method: str, path: str) -> requests.Response:
        self.asked.append(path)
        made = requests.Response()
        made.status_code, made._content = self.status, json.dumps(self.answer).encode()
        return made


def jobs_of(monkeypatch: pytest.MonkeyPatch, dashboard: Dashboard) -> RayJobs:
    monkeypatch.setattr(ray_jobs, "_Client", dashboard)
    return RayJobs(RayAddress("", "head", "token"))


def test_all_living_nodes_are_counted_and_the_head_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = node("1", 16, 0), node("2", 2, 1, head=True), node("3", 16, 2, state="DEAD")
    dashboard = Dashboard(200, listed(*rows))
    found = jobs_of(monkeypatch, dashboard).fetch_nodes()
    assert [(each.id, each.name, each.cpus, each.gpus, each.head) for each in found] == [
        ("1", "10.0.0.1", 16, 0, False),
        ("2", "10.0.0.2", 2, 1, True),
    ]
    assert [each.server_gpus for each in reserve_server_gpu(found, 0.25)] == [0.0, 0.25]
    [path] = dashboard.asked
    assert f"limit={MAX_ROWS}&" in path
    assert path.endswith("filter_values=ALIVE")


@pytest.mark.parametrize("status", [200, 500])
def test_a_dashboard_that_cannot_say_is_unavailable(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    dashboard = Dashboard(status, {"result": False, "msg": "no", "data": {"result": None}})
    with pytest.raises(RayUnavailable, match="Ray at head"):
        jobs_of(monkeypatch, dashboard).fetch_nodes()


class Submissions(Dashboard):
    """Ray's records of jobs: {id: seconds since its end, None if it runs}."""

    def __init__(self, **records: float | None) -> None:
        super().__init__(200, {})
        self.records = {name.replace("_", "-"): ago for name, ago in records.items()}

    def submit_job(self, submission_id: str, **_: Any) -> None:
        self.records[submission_id] = None

    def list_jobs(self) -> list[SimpleNamespace]:
        ends = {name: ago and 1000 * (time.time() - ago) for name, ago in self.records.items()}
        return [SimpleNamespace(submission_id=name, end_time=end) for name, end in ends.items()]

    def delete_job(self, submission_id: str) -> None:
        del self.records[submission_id]


def test_records_of_jobs_that_ended_long_ago_are_removed_from_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "MOST_REMOVED", 2)
    days = 86_400.0
    ray = Submissions(fedsim_a_0=2 * days, fedsim_b_0=3 * days, fedsim_c_0=4 * days, raysubmit_d=9 * days)
    ray.records |= {"fedsim-late-0": 60.0, "fedsim-runs-0": None}
    jobs = jobs_of(monkeypatch, ray)
    jobs.submit("fedsim-new-0", ["true"], {})
    left = {"fedsim-a-0", "raysubmit-d", "fedsim-late-0", "fedsim-runs-0", "fedsim-new-0"}
    assert ray.records.keys() == left
    jobs.submit("fedsim-next-0", ["true"], {})  # not again within the hour
    assert ray.records.keys() == left | {"fedsim-next-0"}


class Handler(BaseHTTPRequestHandler):
    """Ray's dashboard, as far as it says who may ask for its jobs."""

    open = True

    def do_GET(self) -> None:
        self.send_response(200 if self.open or "Authorization" in self.headers else 401)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of such a dashboard; a password for it in ~/.netrc changes nothing."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setattr(ray_jobs._Client, "__init__", lambda self, address, **_: None)
    monkeypatch.setattr(ray_jobs._Client, "get_address", lambda self: made)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield made
        server.shutdown()


@pytest.mark.parametrize(
    ("is_open", "allowed", "refused", "warned"),
    [
        (True, None, False, True),
        (True, False, True, False),
        (True, True, False, False),
        (False, None, False, False),
        (False, False, False, False),
    ],
)
def test_a_cluster_without_a_token_is_warned_of_or_refused(
    is_open: bool,
    allowed: bool | None,
    refused: bool,
    warned: bool,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Handler, "open", is_open)
    settings = Settings(tmp_path, ray_address=address, allow_open_ray=allowed)
    with JobStore.open(settings.database_url) as store:
        dispatcher = Dispatcher(store, settings)
        if refused:
            with pytest.raises(RayUnavailable, match=r"takes jobs without a token.*FEDSIM_ALLOW_OPEN_RAY=1"):
                dispatcher._connect_to_ray()
        else:
            assert isinstance(dispatcher._connect_to_ray(), RayJobs)
    assert ("takes jobs without a token" in caplog.text) == warned


def test_the_local_ray_takes_no_jobs_without_its_token(ray_home: Path) -> None:
    found = find_ray(Settings(ray_home))
    assert found is not None
    assert not RayJobs(found).takes_jobs_without_token()


OPEN_RAY = """
import ray
from jobs.local_ray.embedded_ray import RayAddress
from jobs.queue.ray_jobs import RayJobs
url = ray.init("local", num_cpus=1, include_dashboard=True, log_to_driver=False).dashboard_url
print(RayJobs(RayAddress("", f"http://{url}")).takes_jobs_without_token())
ray.shutdown()
"""


@pytest.mark.slow
def test_a_real_ray_without_a_token_takes_jobs() -> None:
    # In a process of its own: the suite's Ray lives in this one.
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", OPEN_RAY]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert ended.stdout.splitlines()[-1:] == ["True"], ended.stderr
