"""The methods of both clients, each written and documented once."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from api.sdk import calls
from api.sdk.async_job_handle import AsyncJobHandle
from api.sdk.calls import Call
from api.sdk.job_search import PAGE, find_job
from api.sdk.specs import SetFields, SpecSource, SweepSource, check_draft, read_draft, read_members
from api.sdk.transport.connection import Connection
from fedsim.errors import SettingsError, SpecError

if TYPE_CHECKING:
    from api.reports.notebook import ComparisonView
    from api.sdk.run_sources import RunSource
    from api.sdk.sweep_handle import AsyncSweepHandle
    from api.sdk.sweeps import News
    from jobs.local_ray.cluster import ClusterState
    from jobs.plan.plan import Plan

T = TypeVar("T")


class ClientMethods:
    """The calls of a service, as coroutines."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def close(self) -> None:
        """Close the connections; the client cannot be used afterwards."""
        await self._connection.sender.close()

    async def send(self, call: Call[T]) -> T:
        """Send one call, up to four times if it is safe to repeat and the error may be temporary.

        Args:
            call: a call of `api.sdk.calls`, such as `calls.readiness()`.

        Returns:
            The decoded answer.

        Raises:
            FedsimError: the service refuses; `api.sdk.refusals.ERRORS` lists the errors.
            Unreachable: the service does not answer.
        """
        return await self._connection.send(call)

    async def submit(
        self,
        spec: SpecSource,
        *,
        set: SetFields | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJobHandle:
        """Queue a job.

        Args:
            spec: the name of a preset, the path of a YAML or JSON file, a mapping, or a `JobSpec`.
            set: fields of the spec to change, by dotted path: `{"rounds": 3, "local.lr": 0.05}`, or as
                `PATH=VALUE` items.
            priority: from -1000 to 1000; jobs with a higher priority leave the queue first.
            labels: names and values to find the job by.
            idempotency_key: calls with the same key make one job; by default each call has a new key.

        Returns:
            The job.

        Raises:
            SpecError: the spec is wrong; the error lists every fault.
            RequestError: the priority, a label or the key is wrong.
            DoesNotFit: the job can never fit the service's cluster.
            Conflict: a job with another spec has this key.
        """
        from jobs.spec.submission import check_job_fields

        check_job_fields(priority, labels, idempotency_key)
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        data = await self._read_spec(spec, set)
        job = await self._connection.send(calls.submit(data, priority, labels or {}, key))
        return AsyncJobHandle(self._connection, job)

    async def check(self, spec: SpecSource, *, set: SetFields | None = None) -> None:
        """Check a spec on the service, without queueing it.

        Args:
            spec: as for `submit`.
            set: as for `submit`.

        Raises:
            SpecError: the spec is wrong, or does not fit the service; the error lists every fault.
        """
        if faults := await self._connection.send(calls.check(await self._read_spec(spec, set))):
            raise SpecError(faults)

    async def plan(self, spec: SpecSource, *, set: SetFields | None = None) -> Plan:
        """Measure a spec on the service's cluster before it runs; takes half a minute to five minutes.

        Args:
            spec: as for `submit`.
            set: as for `submit`.

        Returns:
            The memory, seconds and bytes of the run; `fits` is False if the cluster is too small.

        Raises:
            SpecError: the spec is wrong; the error lists every fault.
        """
        return await self._connection.send(calls.plan(await self._read_spec(spec, set)))

    async def _read_spec(self, spec: SpecSource, set: SetFields | None) -> Mapping[str, Any]:
        draft = await self._connection.sender.run_function(read_draft, spec, set)
        return await check_draft(self._connection, draft)

    async def job(self, job_id: str) -> AsyncJobHandle:
        """Get a job.

        Args:
            job_id: the id, or its beginning if only one id begins with it.

        Returns:
            The job.

        Raises:
            JobNotFound: no job or several jobs have such an id; the hint names similar ids.
        """
        return AsyncJobHandle(self._connection, await find_job(self._connection, job_id))

    async def jobs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        label: str | Sequence[str] | None = None,
        algorithm: str | None = None,
        search: str | None = None,
        order_by: str = "-created_at",
        limit: int | None = None,
    ) -> AsyncIterator[AsyncJobHandle]:
        """List jobs; each page is read when it is needed.

        Args:
            state: only jobs in this state, or in one of these states.
            label: only jobs with this label, `name` or `name=value`, or with all of these labels.
            algorithm: only jobs of this algorithm.
            search: only jobs with this text in their name, id or algorithm.
            order_by: created_at, name, priority or state; with `-` in front the largest first. `-priority` is
                the order of the queue.
            limit: the largest number of jobs; by default all.

        Yields:
            The jobs.
        """
        left, page_token, more = limit, None, limit != 0
        while more:
            size = PAGE if left is None else min(left, PAGE)
            call = calls.list_jobs(
                state, label, order_by, size, page_token, algorithm=algorithm, search=search
            )
            page = await self._connection.send(call)
            for job in page.jobs:
                yield AsyncJobHandle(self._connection, job)
            left = left and left - len(page.jobs)
            page_token = page.next_page_token
            more = page_token is not None and left != 0

    async def sweep(
        self,
        sweep: SweepSource,
        *,
        resume: bool = False,
        skip: Collection[str] = (),
        news: News | None = None,
    ) -> AsyncSweepHandle:
        """Submit the runs of a sweep that have no job yet. A second call submits only missing runs.

        Args:
            sweep: the path of a sweep's file, or its content as a mapping; see `jobs.spec.sweep`.
            resume: continue the failed and cancelled jobs of the sweep.
            skip: hashes of runs that need no job, because their results are known.
            news: called with the sweep after each submission.

        Returns:
            The sweep with its jobs.

        Raises:
            SpecError: the sweep or one of its specs is wrong; the error lists every fault.
        """
        # These modules import the whole spec, which most uses of the client never need.
        from api.sdk.sweep_handle import AsyncSweepHandle
        from api.sdk.sweeps import submit_missing

        grid, members = await self._connection.sender.run_function(read_members, sweep)
        needed = [member for member in members if member.spec_hash not in skip]
        handle = AsyncSweepHandle(self._connection, grid, needed)
        await submit_missing(self._connection, handle, resume, news)
        return handle

    async def compare(
        self,
        runs: RunSource | Iterable[RunSource] = (),
        *,
        label: str | Sequence[str] | None = None,
        metric: str | None = None,
        target: float | None = None,
        last: int = 5,
        against: str | None = None,
        together: bool = True,
    ) -> ComparisonView:
        """Compare runs: means over seeds, differences paired by seed, and the cost to reach a target.

        Args:
            runs: ids of jobs, names of sweeps, folders written by `fedsim run --out`, or files written by
                `fedsim run --format json` or `jsonl`.
            label: also all jobs with this label, `name` or `name=value`, or with all of these labels.
            metric: a metric of the records; by default the main metric of the jobs. For a loss, an RMSE and
                a perplexity, the smaller value is better.
            target: the value to reach; by default the worst final value of the jobs.
            last: number of scores in the mean of the last rounds.
            against: the baseline of the differences: the name of a group, or a run of it; by default the
                first group.
            together: False makes one group of each run, instead of one of all seeds.

        Returns:
            One group for each experiment, and one line for each run.

        Raises:
            JobNotFound: one of the jobs does not exist.
            RequestError: no record has the metric, or no group is the baseline.
            SettingsError: there is nothing to compare, a path does not exist, a file has no round records, or
                NumPy or SciPy is missing.
        """
        from api.comparison.compare import compare_runs
        from api.reports.notebook import ComparisonView
        from api.sdk.compared_runs import read_runs

        found = await read_runs(self._connection, runs, label)
        try:
            compared = compare_runs(found, metric, target, last=last, against=against, together=together)
        except ModuleNotFoundError as error:
            message = f"a comparison needs {error.name}, which is missing"
            raise SettingsError(message, "install numpy and scipy beside fedsim-client") from error
        return ComparisonView.from_comparison(compared)

    async def catalogue(self, kind: str) -> list[dict[str, Any]]:
        """List the names that a spec can use.

        Args:
            kind: algorithms, models, datasets, partitions, samplers, attacks, aggregators, compressors,
                optimizers, schedules, fleets, policies or presets.

        Returns:
            One entry for each name.
        """
        return await self._connection.send(calls.catalogue(kind))

    async def algorithms(self, purpose: str | None = None) -> list[dict[str, Any]]:
        """List the methods, each with its purposes, paper, costs, and the JSON schema of its parameters.

        Args:
            purpose: only the methods for this purpose, such as "personalisation" or "label-skew".

        Raises:
            RequestError: there is no such purpose.
        """
        return await self._connection.send(calls.catalogue("algorithms", purpose))

    async def models(self) -> list[dict[str, Any]]:
        """List the models, each with the JSON schema of its parameters."""
        return await self.catalogue("models")

    async def datasets(self) -> list[dict[str, Any]]:
        """List the data sets, each with the JSON schema of its parameters and the folders of its files."""
        return await self.catalogue("datasets")

    async def partitions(self) -> list[dict[str, Any]]:
        """List the partitions of a data set among clients, each with the JSON schema of its parameters."""
        return await self.catalogue("partitions")

    async def samplers(self) -> list[dict[str, Any]]:
        """List the samplers of the clients of a round, each with the JSON schema of its parameters."""
        return await self.catalogue("samplers")

    async def attacks(self) -> list[dict[str, Any]]:
        """List the attacks of malicious clients, each with the JSON schema of its parameters."""
        return await self.catalogue("attacks")

    async def aggregators(self) -> list[dict[str, Any]]:
        """List the robust rules of aggregation, each with the JSON schema of its parameters."""
        return await self.catalogue("aggregators")

    async def compressors(self) -> list[dict[str, Any]]:
        """List the compressors of what clients send, each with the JSON schema of its parameters."""
        return await self.catalogue("compressors")

    async def optimizers(self) -> list[dict[str, Any]]:
        """List the optimizers of local steps, each with the JSON schema of its parameters."""
        return await self.catalogue("optimizers")

    async def schedules(self) -> list[dict[str, Any]]:
        """List the schedules of the learning rate, each with the JSON schema of its parameters."""
        return await self.catalogue("schedules")

    async def fleets(self) -> list[dict[str, Any]]:
        """List the fleets of devices, each with the JSON schema of its parameters."""
        return await self.catalogue("fleets")

    async def policies(self) -> list[dict[str, Any]]:
        """List the policies of waiting for clients, each with the JSON schema of its parameters."""
        return await self.catalogue("policies")

    async def presets(self) -> list[dict[str, Any]]:
        """List the specs that come with the service."""
        return await self.catalogue("presets")

    async def schema(self) -> dict[str, Any]:
        """Get the JSON schema of a spec."""
        return await self._connection.send(calls.schema())

    async def cluster(self) -> ClusterState:
        """Get the nodes, their free CPUs and GPUs, and the actors of each job."""
        return await self._connection.send(calls.cluster())

    async def version(self) -> dict[str, str]:
        """Get the versions of the service and of its main packages."""
        return await self._connection.send(calls.version())
