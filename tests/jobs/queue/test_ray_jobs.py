"""What is asked of Ray's dashboard about the nodes, and what is made of its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import requests

from actors.resources import reserve_server_gpu
from fedsim.errors import RayUnavailable
from jobs.local_ray.cluster import MAX_ROWS
from jobs.local_ray.embedded_ray import RayAddress
from jobs.queue import ray_jobs
from jobs.queue.ray_jobs import RayJobs
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
