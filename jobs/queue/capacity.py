"""Whether the jobs that wait could ever run here: those that cannot fail at once, with the arithmetic."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from pydantic import ValidationError

from actors.resources import Node, beside_server, place
from fedsim.errors import DoesNotFit
from jobs.run.ray_job import Cluster
from jobs.spec.run_fields import Resources
from jobs.store.job_store import JobStore
from jobs.store.records import Job
from jobs.store.states import FailureReason, JobState

log = logging.getLogger("fedsim.dispatch")

COUNT_SECONDS = 10.0
"""How often the nodes are counted."""

SETTLE_SECONDS = 60.0
"""A cluster whose nodes have come or gone so lately may not be all there: nothing is refused for good."""

LOOKED_AT = 100
"""How many of the waiting jobs are looked at; the others are when they come nearer."""


class Room:
    """The nodes of a cluster, as the queue sees them.

    Args:
        store: the jobs.
        settles: whether nodes may join it after it has started, as they do on a cluster that is going up.
    """

    def __init__(self, store: JobStore, *, settles: bool) -> None:
        self.store, self.settles = store, settles
        self.nodes: Sequence[Node] | None = None
        self._counted_at = self._changed_at = 0.0
        self._fitting: set[tuple[str, int]] = set()

    def count(self, cluster: Cluster) -> None:
        """See now and then what the cluster has.

        Raises:
            RayUnavailable: it does not answer.
        """
        now = time.monotonic()
        if self.nodes is None or now - self._counted_at > COUNT_SECONDS:
            found = cluster.nodes()
            if found != self.nodes:
                self._changed_at = now
            self.nodes, self._counted_at = found, now

    def settled(self) -> bool:
        """Whether all nodes may be there: what does not fit on these is refused."""
        return not self.settles or time.monotonic() - self._changed_at >= SETTLE_SECONDS

    def forget(self) -> None:
        """Nobody knows the nodes any more."""
        self.nodes = None

    def refuse_what_never_fits(self) -> str | None:
        """Fail the waiting jobs that the cluster, empty, could not hold.

        Each is looked at when it comes into sight, and again when its turn has come.

        Returns:
            Why the first of the queue cannot start yet, though it may later; None where it fits.
        """
        if not self.nodes:
            return None
        waiting = self.store.queue(limit=LOOKED_AT)
        self._fitting &= {_key(job) for job in waiting}
        is_first = True
        for job in waiting:
            if not is_first and _key(job) in self._fitting:
                continue
            lacking = self._lacking(job, self.nodes)
            if lacking is None:
                self._fitting.add(_key(job))
                is_first = False
            elif self.settled():
                self._refuse(job, lacking)
            elif is_first:
                return f"it does not fit on the nodes that are there now: {lacking.message}"
        return None

    def _lacking(self, job: Job, nodes: Sequence[Node]) -> DoesNotFit | None:
        try:
            asked = Resources.model_validate(job.spec.get("resources", {}))
            there = beside_server(nodes, asked.server_gpus)
            place(asked.workers, asked.cpus_per_worker, asked.gpus_per_worker, there)
        except ValidationError:
            # Of another version of fedsim: its runner says what is wrong with it.
            return None
        except DoesNotFit as error:
            return error
        return None

    def _refuse(self, job: Job, error: DoesNotFit) -> None:
        reason = FailureReason.DOES_NOT_FIT
        if self.store.advance(job.id, JobState.QUEUED, JobState.FAILED, reason=reason, message=str(error)):
            log.warning("job %s can never run here: %s", job.id, error)


def _key(job: Job) -> tuple[str, int]:
    return job.id, job.resumes
