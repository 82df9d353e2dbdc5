"""What the dispatcher needs of a cluster, and what a job is called there. Nothing here imports Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from actors.resources import ClusterNode

EXIT_DISK_FULL = 74
"""The exit code of a runner that could not write down how its job ended: the store's disk is full."""

EXIT_NO_ANSWER = 75
"""The exit code of a runner whose store did not answer for too long: another one is to go on."""


class RayJob(NamedTuple):
    """What Ray says of a job.

    Attributes:
        ended: whether it has.
        message: Ray's own words.
        exit_code: of its process; None where Ray does not know one.
    """

    ended: bool
    message: str
    exit_code: int | None


class JobCluster(Protocol):
    """The jobs of one cluster. Every method raises `RayUnavailable` where the cluster does not answer."""

    def find(self, submission_id: str) -> RayJob | None:
        """A job as the cluster knows it; None where it does not."""

    def submit(self, submission_id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Have a command run; nothing happens where there is a job of this id already.

        Raises:
            JobRefused: the cluster answers, and does not take this job.
        """

    def fetch_nodes(self) -> Sequence[ClusterNode]:
        """The living nodes, with what each has in all."""

    def stop(self, submission_id: str) -> None:
        """Have a job ended, by force where need be. Returns before it has ended."""

    def fetch_json(self, path: str) -> Any:
        """The answer of Ray's dashboard at a path, as plain data."""

    def read_log_tail(self, submission_id: str, lines: int = 20) -> str:
        """The last lines that a job printed; empty where there are none."""
