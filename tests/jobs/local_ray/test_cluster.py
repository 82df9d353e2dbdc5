"""The state of a cluster, put together from what Ray's dashboard answers, and from a real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedsim.errors import RayUnavailable
from jobs.local_ray.cluster import (
    ACTORS,
    GROUPS,
    JOBS,
    NODES,
    USAGE,
    ClusterState,
    NodeUsage,
    read_cluster_state,
)


def listed(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"result": {"result": list(rows)}}}


def node(name: str, cpus: float, gpus: float, head: bool = False, state: str = "ALIVE") -> dict[str, Any]:
    total = {"CPU": cpus, "GPU": gpus, "memory": 1e9}
    return {
        "node_id": name,
        "node_ip": f"10.0.0.{name}",
        "is_head_node": head,
        "state": state,
        "resources_total": total,
    }


def group(job: str, *bundles: tuple[str, float, float], state: str = "CREATED") -> dict[str, Any]:
    parts = [{"node_id": at, "unit_resources": {"CPU": cpus, "GPU": gpus}} for at, cpus, gpus in bundles]
    return {"creator_job_id": job, "state": state, "bundles": parts}


def actor(
    job: str, at: str | None, state: str = "ALIVE", inside: str | None = "g", **needs: float
) -> dict[str, Any]:
    return {
        "job_id": job,
        "node_id": at,
        "state": state,
        "placement_group_id": inside,
        "required_resources": needs,
    }


def usage(name: str) -> dict[str, Any]:
    measured = {"cpu": 59.3, "cpus": [16, 8], "mem": [25_000, 24_000, 4.0, 1000], "loadAvg": [[1.5, 3, 4]]}
    return {**measured, "raylet": {"nodeId": name}}


ANSWERS = {
    NODES: listed(node("1", 2, 0, head=True), node("2", 16, 2), node("3", 16, 2, state="DEAD")),
    GROUPS: listed(group("01", ("2", 1, 0.3), ("2", 1, 0.3)), group("02", ("2", 4, 0), state="PENDING")),
    ACTORS: listed(
        actor("01", "1", inside=None),
        actor("01", "2"),
        actor("01", None, "PENDING_CREATION"),
        actor("01", "2", "DEAD"),
        actor("03", "1", inside=None, CPU=0.5),
        actor("03", "1", inside=None) | {"class_name": "JobSupervisor"},
        actor("05", "1"),
    ),
    JOBS: [
        {"job_id": "01", "submission_id": "fedsim-0abc12-1-0"},
        {"job_id": None, "submission_id": "fedsim-0wait0-0"},
        {"job_id": "03", "submission_id": "somebody-elses"},
        {"job_id": "04", "submission_id": None},
        {"job_id": "05", "submission_id": None, "metadata": {"fedsim_submission": "fedsim-0fork0-0"}},
    ],
    # The second node has measured nothing yet.
    USAGE: {"data": {"summary": [usage("1"), {"raylet": {"nodeId": "2"}}]}},
}


def test_free_is_what_nobody_has_reserved() -> None:
    found = read_cluster_state(ANSWERS.__getitem__)
    shares = [(each.address, each.head, each.cpus.free, each.gpus.free) for each in found.nodes]
    assert shares == [("10.0.0.1", True, 1.5, 0.0), ("10.0.0.2", False, 14.0, 1.4)]
    assert (found.cpus.total, found.cpus.free) == (18.0, 15.5)
    assert (found.gpus.total, found.gpus.free) == (2.0, 1.4)


def test_usage_is_what_ray_has_measured() -> None:
    measured, unknown = (node.usage for node in read_cluster_state(ANSWERS.__getitem__).nodes)
    assert measured == NodeUsage(cpus=16, cpu_percent=59.3, load=1.5, memory_total=25_000, memory_used=1000)
    assert unknown is None


@pytest.mark.parametrize(
    "answer", [None, [], {"data": {}}, {"data": {"summary": None}}, {"data": {"summary": [7]}}]
)
def test_the_cluster_is_shown_without_usage(answer: Any) -> None:
    """Ray does not document the answer, so another release may give another one, or none."""

    def ask(path: str) -> Any:
        if path == USAGE and answer is None:
            raise RayUnavailable("Ray does not answer as expected: 404")
        return answer if path == USAGE else ANSWERS[path]

    assert [node.usage for node in read_cluster_state(ask).nodes] == [None, None]


def test_actors_are_those_of_our_jobs() -> None:
    others, mine, forked = read_cluster_state(ANSWERS.__getitem__).jobs
    assert (mine.job_id, mine.actors, mine.waiting) == ("0abc12", 3, 1)
    assert (mine.cpus, mine.gpus, mine.nodes) == (2.0, 0.6, ["1", "2"])
    assert (others.job_id, others.actors, others.cpus) == ("", 1, 0.5)
    assert (forked.job_id, forked.actors) == ("0fork0", 1)


def test_names_of_ray_jobs_are_those_that_the_reconciler_gives() -> None:
    from jobs.local_ray.cluster import SUBMISSION

    for life in ("0", "3", "2-1"):
        found = SUBMISSION.fullmatch(f"fedsim-0f3k2m9xyzab-{life}")
        assert found is not None
        assert found[1] == "0f3k2m9xyzab"


@pytest.mark.slow
def test_a_real_ray_answers_in_this_shape() -> None:
    # In a process of its own: the suite's Ray lives in this one.
    command = [sys.executable, str(Path(__file__).parents[1] / "real_ray.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found = ClusterState.model_validate_json(ended.stdout.splitlines()[-1])
    [only] = found.nodes
    assert only.head
    assert (only.cpus.total, only.cpus.free) == (3.0, 1.0)
    assert only.usage is not None
    assert 0 < only.usage.memory_used < only.usage.memory_total
    assert (only.gpus.total, only.gpus.free) == (2.0, 1.4)
    assert [(job.job_id, job.cpus, job.gpus) for job in found.jobs] == [("", 2.0, 0.6)]
