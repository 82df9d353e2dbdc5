"""JobCluster: what the dispatcher needs from a cluster, and the exit codes of a runner; imports no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from actors.resources import ClusterNode

IN_PROCESS_VARIABLE = "FEDSIM_IN_PROCESS"
"""If a runner has this variable, it trains in its own process, without Ray: the job is short."""

EXIT_STORE_UNUSABLE = 74
"""The exit code of a runner that could not write the end of its job: the store's disk is full, or its file
is damaged."""

EXIT_NO_ANSWER = 75
"""The exit code of a runner whose store did not answer for too long: another runner has to go on."""


class RayJob(NamedTuple):
    """A job as Ray knows it.

    Attributes:
        ended: whether the job has ended.
        message: Ray's own message.
        exit_code: of the job's process; None if Ray does not know it.
    """

    ended: bool
    message: str
    exit_code: int | None


class JobCluster(Protocol):
    """The jobs of one cluster. Every method raises `RayUnavailable` if the cluster does not answer."""

    def find(self, ray_job_id: str) -> RayJob | None:
        """Return a job; None if the cluster does not know it."""

    def submit(self, ray_job_id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a command as a job; do nothing if the cluster has a job with this id.

        Raises:
            JobRefused: if the cluster answers, but does not take the job.
        """

    def fetch_nodes(self) -> Sequence[ClusterNode]:
        """Return the living nodes, with their total resources."""

    def stop(self, ray_job_id: str) -> None:
        """Ask the cluster to end a job, by force if necessary; return before the job has ended."""

    def fetch_json(self, path: str) -> Any:
        """Return the answer of Ray's dashboard at a path, as plain data."""

    def read_log_tail(self, ray_job_id: str, lines: int = 20) -> str:
        """Return the last lines that a job printed; "" if there are none."""
