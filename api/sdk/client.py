"""`FedSimClient`: the Python SDK.

    >>> from fedsim import FedSimClient                                     # doctest: +SKIP
    >>> client = FedSimClient("http://127.0.0.1:8000")
    >>> job = client.submit("demo", set={"rounds": 5})
    >>> for record in job.watch():
    ...     print(record.round, record.metrics.get("global_accuracy"))
    >>> job.wait(timeout=600)
    >>> job.rounds().to_csv("demo.csv")

Errors are those of `fedsim.errors`: a wrong spec raises `SpecError` with every fault, an unknown job
`JobNotFound`, and so on; what has no name of its own is a `ServiceError`, and silence is `Unreachable`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from api.sdk import calls, flows
from api.sdk.blocking_connection import BlockingConnection
from api.sdk.connection import DEFAULT_URL
from api.sdk.job_handle import JobHandle
from api.sdk.specs import SpecSource, SweepSource, read_draft, read_members

if TYPE_CHECKING:
    from api.reports.comparison import Comparison
    from api.sdk.sweep_handle import SweepHandle
    from api.sdk.sweeps import News
    from jobs.local_ray.cluster import ClusterState
    from jobs.plan.plan import Plan

__all__ = ["DEFAULT_URL", "FedSimClient", "JobHandle"]


class FedSimClient(BlockingConnection):
    """A connection to a fedsim service.

    Args:
        url: where the service is; by default `FEDSIM_URL`, else http://127.0.0.1:8000.
        token: the service's token, where it asks for one; by default `FEDSIM_TOKEN`.
        timeout: seconds to wait for one answer; where a spec is looked over or measured, longer.
        transport: an httpx transport to use instead of the network.

    Raises:
        SettingsError: the URL or the token cannot be one.
    """

    def submit(
        self,
        spec: SpecSource,
        *,
        set: Mapping[str, Any] | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> JobHandle:
        """Queue a job.

        Args:
            spec: the name of a preset, the path of a YAML or JSON file, a mapping, or a `JobSpec`.
            set: fields of the spec to set on top, by dotted path: `{"rounds": 3, "local.lr": 0.05}`.
            priority: higher ones leave the queue first.
            labels: names and values to find the job by.
            idempotency_key: submissions with the same key are one job; by default a new key for each call.

        Raises:
            SpecError: the spec is wrong; holds every fault.
            DoesNotFit: what it asks for can never be placed on the service's cluster.
            Conflict: the key was used before, for something else.
        """
        key = idempotency_key or uuid.uuid4().hex
        data = self.drive(flows.whole_faults(read_draft(spec, set)))
        return JobHandle(self, self.send(calls.submit(data, priority, labels or {}, key)))

    def plan(self, spec: SpecSource, *, set: Mapping[str, Any] | None = None) -> Plan:
        """Have a spec measured where it would run; takes from half a minute to five minutes.

        Args:
            spec: as for `submit`.
            set: as for `submit`.

        Returns:
            What it needs and what it will take; `fits` is False where the cluster cannot hold it.

        Raises:
            SpecError: the spec is wrong; holds every fault.
        """
        return self.send(calls.plan(self.drive(flows.whole_faults(read_draft(spec, set)))))

    def job(self, job_id: str) -> JobHandle:
        """Get a job by its id, or by the beginning of it where no other job's id begins so.

        Raises:
            JobNotFound: there is none, or more than one.
        """
        return JobHandle(self, self.drive(flows.find_job(job_id)))

    def jobs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        label: str | Sequence[str] | None = None,
        algorithm: str | None = None,
        search: str | None = None,
        order_by: str = "-created_at",
        limit: int | None = None,
    ) -> Iterator[JobHandle]:
        """List jobs, page by page as they are asked for.

        Args:
            state: only those in this state, or in one of these.
            label: only those with this label, `name` or `name=value`, or with all of these.
            algorithm: only those of this method.
            search: only those with this in their name, id or algorithm.
            order_by: created_at, name, priority or state; with `-` in front the largest first. `-priority` is
                the order of the queue.
            limit: at most so many; by default all.
        """
        left, page_token, more = limit, None, limit != 0
        while more:
            size = flows.page_size(left)
            call = calls.list_jobs(
                state, label, order_by, size, page_token, algorithm=algorithm, search=search
            )
            page = self.send(call)
            yield from (JobHandle(self, job) for job in page.jobs)
            left = left and left - len(page.jobs)
            page_token = page.next_page_token
            more = page_token is not None and left != 0

    def sweep(self, sweep: SweepSource, *, resume: bool = False, news: News | None = None) -> SweepHandle:
        """Submit the runs of a sweep that have no job yet: doing it again submits only what is missing.

        Args:
            sweep: the path of a sweep's file, or what would stand in it; see `jobs.spec.sweep`.
            resume: have jobs of the sweep that failed or were cancelled go on.
            news: is shown the sweep after each submission.

        Raises:
            SpecError: the sweep or one of its specs is wrong; holds every fault.
        """
        # Specs are read and made here: most uses of the client never need that.
        from api.sdk.sweep_handle import SweepHandle
        from api.sdk.sweeps import submit_missing

        handle = SweepHandle(self, *read_members(sweep))
        self.drive(submit_missing(handle, resume, news))
        return handle

    def compare(
        self, jobs: Iterable[str], *, metric: str = "global_accuracy", target: float | None = None
    ) -> Comparison:
        """Hold jobs against one target: rounds, bytes and seconds to it, final and best value.

        Args:
            jobs: their ids.
            metric: a metric of the records; of a loss the smaller value is the better one.
            target: the value to reach; by default the worst final value among the jobs.

        Raises:
            JobNotFound: one of them does not exist.
            SettingsError: no record has the metric.
        """
        return self.drive(flows.compare_jobs(jobs, metric, target))

    def catalogue(self, kind: str) -> list[dict[str, Any]]:
        """List what a spec can name.

        Args:
            kind: algorithms, models, datasets, partitions or presets.
        """
        return self.send(calls.catalogue(kind))

    def algorithms(self) -> list[dict[str, Any]]:
        """List the methods, each with the JSON schema of its parameters."""
        return self.catalogue("algorithms")

    def models(self) -> list[dict[str, Any]]:
        """List the models, each with the JSON schema of its parameters."""
        return self.catalogue("models")

    def datasets(self) -> list[dict[str, Any]]:
        """List the data sets, each with the JSON schema of its parameters and where its files are sought."""
        return self.catalogue("datasets")

    def partitions(self) -> list[dict[str, Any]]:
        """List the ways to deal a data set out to clients, each with the JSON schema of its parameters."""
        return self.catalogue("partitions")

    def presets(self) -> list[dict[str, Any]]:
        """List the specs that come with the service."""
        return self.catalogue("presets")

    def schema(self) -> dict[str, Any]:
        """Get the JSON schema of a spec."""
        return self.send(calls.schema())

    def cluster(self) -> ClusterState:
        """Look at the nodes, their CPUs and GPUs, what of them is free, and the actors of each job."""
        return self.send(calls.cluster())

    def version(self) -> dict[str, str]:
        """Ask for the versions of the service and of what it stands on."""
        return self.send(calls.version())
