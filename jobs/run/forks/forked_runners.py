"""ForkedRunners: a cluster whose short jobs are forks of the fork server; all others are jobs of Ray."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actors.resources import ClusterNode
from fedsim.errors import RayUnavailable
from jobs.local_ray.fork_server_process import FORK_SOCKET, ask_fork_server
from jobs.local_ray.keeper_files import read_addresses
from jobs.run.forks.code_state import compute_code_state
from jobs.run.job_cluster import IN_PROCESS_VARIABLE, JobCluster, RayJob
from jobs.settings import Settings

log = logging.getLogger("fedsim.dispatch")

MOST_REMEMBERED = 1000
"""Forks that this process remembers to have started."""


class ForkedRunners:
    """The jobs of the local Ray and of its fork server. A server that does not answer leaves its jobs to Ray.

    Args:
        ray: takes the jobs that are not short.
        settings: whose local Ray it is.
    """

    def __init__(self, ray: JobCluster, settings: Settings) -> None:
        self.ray, self.settings = ray, settings
        self._forked = deque[str](maxlen=MOST_REMEMBERED)

    def find(self, ray_job_id: str) -> RayJob | None:
        """Return a job of Ray or of the fork server; None if neither knows it."""
        # Ray is asked over HTTP: not about the forks of this process while their server knows them.
        if ray_job_id in self._forked and (found := self._find_fork(ray_job_id)) is not None:
            return found
        return self.ray.find(ray_job_id) or self._find_fork(ray_job_id)

    def _find_fork(self, ray_job_id: str) -> RayJob | None:
        answer = self._ask({"ask": "find", "id": ray_job_id})
        if not answer.get("known"):
            return None
        code = answer["exit_code"]
        message = "" if code is None else f"the process ended with exit code {code}"
        return RayJob(ended=code is not None, message=message, exit_code=code)

    def submit(self, ray_job_id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the runner of a short job as a fork, and any other as a job of Ray."""
        if IN_PROCESS_VARIABLE in environment:
            runner = {"id": ray_job_id, "job": command[-1], "environment": dict(environment)}
            if self._ask({"ask": "start", "code_state": compute_code_state(), **runner}).get("started"):
                self._forked.append(ray_job_id)
                return
        self.ray.submit(ray_job_id, command, environment)

    def fetch_nodes(self) -> Sequence[ClusterNode]:
        """Return the living nodes, with their total resources."""
        return self.ray.fetch_nodes()

    def stop(self, ray_job_id: str) -> None:
        """Ask for the end of a job, by force after 3 seconds; return before the job has ended."""
        if not self._ask({"ask": "stop", "id": ray_job_id}).get("known"):
            self.ray.stop(ray_job_id)

    def fetch_json(self, path: str) -> Any:
        """Return the answer of Ray's dashboard at a path, as plain data."""
        return self.ray.fetch_json(path)

    def read_log_tail(self, ray_job_id: str, lines: int = 20) -> str:
        """Return the last lines that a job printed; "" if there are none."""
        answer = self._ask({"ask": "output", "id": ray_job_id})
        if not answer.get("known"):
            return self.ray.read_log_tail(ray_job_id, lines)
        return "\n".join(answer["text"].rstrip().splitlines()[-lines:])

    def _ask(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the server's answer; {} if it does not answer."""
        addresses = read_addresses(self.settings.home)
        if addresses is None:
            raise RayUnavailable("the local Ray is gone")
        try:
            answer: Mapping[str, Any] = ask_fork_server(Path(addresses.temporary, FORK_SOCKET), question)
            return answer
        except (OSError, ValueError) as error:
            log.debug("the fork server does not answer: %s", error)
            return {}
