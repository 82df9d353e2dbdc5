"""ForkedRunners: the local Ray with its fork server, which starts the runner of each job."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actors.resources import ClusterNode
from fedsim.errors import RayUnavailable
from jobs.local_ray.cluster import SUBMISSION_KEY
from jobs.local_ray.fork_server_process import ANSWER_SECONDS, FORK_SOCKET, ask_fork_server
from jobs.local_ray.keeper_files import LOG, Addresses, make_ray_environment, read_addresses
from jobs.run.forks.code_state import compute_code_state
from jobs.run.job_cluster import IN_PROCESS_VARIABLE, JobCluster, RayJob
from jobs.settings import Settings

log = logging.getLogger("fedsim.dispatch")

MOST_REMEMBERED = 1000
"""Forks that this process remembers to have started."""

EXIT_WITHOUT_NODE = 1
"""The exit code that Ray ends a process with when the process has lost its node."""


class ForkedRunners:
    """The jobs of the local Ray: forks of its fork server. If there is no server, they are Ray jobs.

    Args:
        ray: the local Ray.
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
        if code == EXIT_WITHOUT_NODE and not self.ray.fetch_nodes():
            # Not the runner ended itself, but Ray the runner.
            return RayJob(ended=True, message="the local Ray has lost its node", exit_code=None)
        return RayJob(ended=code is not None, message=message, exit_code=code)

    def submit(self, ray_job_id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a runner as a fork; as a job of Ray if there is no fork server, or it has other code."""
        variables = dict(environment)
        if IN_PROCESS_VARIABLE not in environment:
            addresses = self._read_addresses()
            variables |= make_driver_environment(self.settings, addresses, ray_job_id, environment)
        runner = {"id": ray_job_id, "job": command[-1], "environment": variables}
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
        """Return the server's answer; {} if there is no server.

        Raises:
            RayUnavailable: if the server is late. It will still read the question and start the runner, so
                the caller must not start another one.
        """
        socket = Path(self._read_addresses().temporary, FORK_SOCKET)
        try:
            answer: Mapping[str, Any] = ask_fork_server(socket, question)
            return answer
        except TimeoutError:
            what = f"the local Ray's fork server has not answered for {ANSWER_SECONDS:g} s"
            raise RayUnavailable(what, f"see {self.settings.home / LOG}") from None
        except (OSError, ValueError) as error:
            log.debug("the fork server does not answer: %s", error)
            return {}

    def _read_addresses(self) -> Addresses:
        addresses = read_addresses(self.settings.home)
        if addresses is None:
            raise RayUnavailable("the local Ray is gone")
        return addresses


def make_driver_environment(
    settings: Settings, addresses: Addresses, ray_job_id: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """Make the variables that a process of this machine needs to be a driver of the local Ray.

    Args:
        settings: of the home with Ray's token.
        addresses: of Ray.
        ray_job_id: the cluster's state tells the job of an actor by it.
        environment: the actors get these variables; those of a Ray job get them from Ray's supervisor.
    """
    config = {"runtime_env": {"env_vars": dict(environment)}, "metadata": {SUBMISSION_KEY: ray_job_id}}
    return make_ray_environment(settings.home) | {
        "RAY_ADDRESS": addresses.gcs,
        # Ray's supervisor passes the configuration of a job to its driver in this variable.
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config),
    }
