"""Whether the jobs that wait could ever run here: those that cannot fail at once, with the arithmetic."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from pydantic import ValidationError

from actors.resources import ClusterNode, place_workers, reserve_server_gpu
from fedsim.errors import DoesNotFit
from jobs.run.job_cluster import JobCluster
from jobs.spec.run_fields import Resources
from jobs.store.job_store import JobStore
from jobs.store.records import Job
from jobs.store.states import FailureReason, JobState

log = logging.getLogger("fedsim.dispatch")

NODE_REFRESH_SECONDS = 10.0
"""How often the nodes are counted."""

NODE_GROWTH_SECONDS = 60.0
"""A cluster whose nodes have come or gone so lately may not be all there: nothing is refused for good."""

MAX_JOBS_CHECKED = 100
"""How many of the waiting jobs are looked at; the others are when they come nearer."""


class ClusterCapacity:
    """The nodes of a cluster, as the queue sees them.

    Args:
        store: the jobs.
        settles: whether nodes may join it after it has started, as they do on a cluster that is going up.
    """

    def __init__(self, store: JobStore, *, settles: bool) -> None:
        self.store, self.settles = store, settles
        self.nodes: Sequence[ClusterNode] | None = None
        self._counted_at = self._changed_at = 0.0
        self._fitting_jobs: set[tuple[str, int]] = set()

    def refresh_nodes(self, cluster: JobCluster) -> None:
        """See now and then what the cluster has.

        Raises:
            RayUnavailable: it does not answer.
        """
        now = time.monotonic()
        if self.nodes is None or now - self._counted_at > NODE_REFRESH_SECONDS:
            found = cluster.fetch_nodes()
            if found != self.nodes:
                self._changed_at = now
            self.nodes, self._counted_at = found, now

    def are_nodes_complete(self) -> bool:
        """Whether all nodes may be there: what does not fit on these is refused."""
        return not self.settles or time.monotonic() - self._changed_at >= NODE_GROWTH_SECONDS

    def forget_nodes(self) -> None:
        """Nobody knows the nodes any more."""
        self.nodes = None

    def refuse_jobs_that_never_fit(self) -> str | None:
        """Fail the waiting jobs that the cluster, empty, could not hold.

        Each is looked at when it comes into sight, and again when its turn has come.

        Returns:
            Why the first of the queue cannot start yet, though it may later; None where it fits.
        """
        if not self.nodes:
            return None
        waiting = self.store.queue(limit=MAX_JOBS_CHECKED)
        self._fitting_jobs &= {_key(job) for job in waiting}
        is_first = True
        for job in waiting:
            if not is_first and _key(job) in self._fitting_jobs:
                continue
            lacking = self._find_misfit(job, self.nodes)
            if lacking is None:
                self._fitting_jobs.add(_key(job))
                is_first = False
            elif self.are_nodes_complete():
                self._refuse_job(job, lacking)
            elif is_first:
                return f"it does not fit on the nodes that are there now: {lacking.message}"
        return None

    def _find_misfit(self, job: Job, nodes: Sequence[ClusterNode]) -> DoesNotFit | None:
        try:
            asked = Resources.model_validate(job.spec.get("resources", {}))
            there = reserve_server_gpu(nodes, asked.server_gpus)
            place_workers(asked.workers, asked.cpus_per_worker, asked.gpus_per_worker, there)
        except ValidationError:
            # Of another version of fedsim: its runner says what is wrong with it.
            return None
        except DoesNotFit as error:
            return error
        return None

    def _refuse_job(self, job: Job, error: DoesNotFit) -> None:
        reason = FailureReason.DOES_NOT_FIT
        if self.store.change_state(
            job.id, JobState.QUEUED, JobState.FAILED, reason=reason, message=str(error)
        ):
            log.warning("job %s can never run here: %s", job.id, error)


def _key(job: Job) -> tuple[str, int]:
    return job.id, job.resumes
