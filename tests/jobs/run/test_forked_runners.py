"""The local Ray with its fork server: who starts a runner if the server is late, or not there."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedsim.errors import RayUnavailable
from jobs.local_ray.fork_server_process import FORK_SOCKET, ask_fork_server
from jobs.local_ray.keeper_files import Addresses, write_addresses
from jobs.run.forks import forked_runners
from jobs.run.forks.forked_runners import ForkedRunners
from jobs.run.job_cluster import IN_PROCESS_VARIABLE
from jobs.settings import Settings
from tests.jobs.desk import Scripted

ENVIRONMENT: Mapping[str, str] = {IN_PROCESS_VARIABLE: "1"}


@pytest.fixture
def runners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ForkedRunners:
    write_addresses(tmp_path, Addresses(os.getpid(), str(tmp_path), ""))
    monkeypatch.setattr(forked_runners, "ask_fork_server", partial(ask_fork_server, seconds=0.2))
    ray: Any = Scripted()
    return ForkedRunners(ray, Settings(tmp_path))


def test_a_late_server_starts_the_runner_alone(runners: ForkedRunners, tmp_path: Path) -> None:
    """It reads the question when it comes up, after the caller has left."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / FORK_SOCKET))
        listener.listen()
        with pytest.raises(RayUnavailable, match="has not answered"):
            runners.submit("a", ["run", "job"], ENVIRONMENT)
        with pytest.raises(RayUnavailable, match="has not answered"):
            runners.find("a")
        assert runners.ray.find("a") is None


def test_without_a_server_the_runner_is_a_job_of_ray(runners: ForkedRunners) -> None:
    runners.submit("a", ["run", "job"], ENVIRONMENT)
    assert runners.ray.find("a") is not None
