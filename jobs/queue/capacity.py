"""ClusterCapacity: fails waiting jobs that can never fit on the cluster, with the arithmetic."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from pydantic import ValidationError

from actors.resources import ClusterNode
from fedsim.errors import DoesNotFit
from jobs.run.job_cluster import JobCluster
from jobs.spec.sections.run_fields import Resources
from jobs.store.job_store import JobStore
from jobs.store.records import Job
from jobs.store.states import FailureReason, JobState

log = logging.getLogger("fedsim.dispatch")

NODE_REFRESH_SECONDS = 10.0
"""Seconds between two counts of the nodes."""

NODE_GROWTH_SECONDS = 60.0
"""Seconds after a change of the nodes in which the cluster may still grow: no job fails yet."""

MOST_FITTING_JOBS = 10_000
"""Jobs of which the queue remembers that they fitted; it forgets the oldest ones."""

MAX_JOBS_CHECKED = 100
"""Waiting jobs that are checked, from the front of the queue; later jobs are checked when they move up."""


class ClusterCapacity:
    """The nodes of a cluster, as the queue sees them.

    Args:
        store: the jobs.
        may_gain_nodes: whether nodes may join the cluster later, as on a cluster that is starting.
    """

    def __init__(self, store: JobStore, *, may_gain_nodes: bool) -> None:
        self.store, self.may_gain_nodes = store, may_gain_nodes
        self.nodes: Sequence[ClusterNode] | None = None
        self._counted_at = self._changed_at = 0.0
        self._fitting_jobs: dict[str, None] = {}

    def refresh_nodes(self, cluster: JobCluster) -> None:
        """Count the nodes again if the last count is older than `NODE_REFRESH_SECONDS`.

        Raises:
            RayUnavailable: if the cluster does not answer.
        """
        now = time.monotonic()
        if self.nodes is None or now - self._counted_at > NODE_REFRESH_SECONDS:
            found = cluster.fetch_nodes()
            if found != self.nodes:
                self._changed_at = now
            self.nodes, self._counted_at = found, now

    def are_nodes_complete(self) -> bool:
        """Return whether the nodes have not changed for a while: a job that does not fit then fails."""
        return not self.may_gain_nodes or time.monotonic() - self._changed_at >= NODE_GROWTH_SECONDS

    def forget_nodes(self) -> None:
        """Forget the nodes, as after a failure of Ray."""
        self.nodes = None

    def fail_jobs_that_never_fit(self) -> str | None:
        """Fail the waiting jobs that the empty cluster cannot hold.

        A job is checked when it is among the first `MAX_JOBS_CHECKED`, and again when it is the first. A job
        that fitted before waits, because lost nodes may be replaced: one that has trained, or that fitted
        since the service started. So do all jobs if no node takes workers.

        Returns:
            Why the first job of the queue cannot start yet, but may later; None if it fits.
        """
        if self.nodes is None:
            return None
        if not self.nodes:
            return "the Ray cluster has no node now"
        waiting = self.store.queue(limit=MAX_JOBS_CHECKED)
        takes_workers = any(node.cpus or node.gpus for node in self.nodes)
        is_first, why_first_waits = True, None
        for job in waiting:
            if not is_first and self._has_fitted(job):
                continue
            misfit = self._find_misfit(job, self.nodes)
            if misfit is None:
                self._remember_fitting_job(job)
                is_first = False
            elif takes_workers and self.are_nodes_complete() and not self._has_fitted(job):
                self._fail_job(job, misfit)
            elif is_first:
                why_first_waits = f"it does not fit on the nodes that are there now: {misfit.message}"
                is_first = False
        return why_first_waits

    def _has_fitted(self, job: Job) -> bool:
        """Return whether the job has trained on this cluster, or once fitted on its nodes."""
        return (self.may_gain_nodes and job.rounds_done > 0) or job.id in self._fitting_jobs

    def _remember_fitting_job(self, job: Job) -> None:
        self._fitting_jobs[job.id] = None
        if len(self._fitting_jobs) > MOST_FITTING_JOBS:
            del self._fitting_jobs[next(iter(self._fitting_jobs))]

    def _find_misfit(self, job: Job, nodes: Sequence[ClusterNode]) -> DoesNotFit | None:
        try:
            Resources.model_validate(job.spec.get("resources", {})).check_fit(nodes)
        except ValidationError:
            # A spec of another fedsim version: the runner reports its faults.
            return None
        except DoesNotFit as error:
            return error
        return None

    def _fail_job(self, job: Job, error: DoesNotFit) -> None:
        reason = FailureReason.DOES_NOT_FIT
        if self.store.change_state(
            job.id, JobState.QUEUED, JobState.FAILED, reason=reason, message=str(error)
        ):
            log.warning("job %s can never run here: %s", job.id, error)
