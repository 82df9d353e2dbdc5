"""The running service: settings, store, dispatcher, event streams and catalogue for the routes."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from starlette.concurrency import run_in_threadpool

from api.server.events import EventHub
from api.server.job_log import EndedJobs
from api.server.slow_lookups import Lookups, SharedProbe
from api.server.work_process import WorkProcess, make_check_environment, make_environment_with_ray
from fedsim.errors import FieldError, JobNotFound, RequestError, SpecError
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.cloning import set_last_round
from jobs.spec.submission import find_size_faults
from jobs.store.job_store import JobStore
from jobs.store.records import Job
from jobs.store.states import ACTIVE, FINAL

if TYPE_CHECKING:
    from actors.resources import ClusterNode
    from jobs.kinds import Kind
    from jobs.local_ray.cluster import ClusterState
    from jobs.plan.checker import CheckedSpec

BODIES_AT_ONCE = 2
"""Bodies of requests that are read at the same time."""

SPECS_AT_ONCE = 8
"""Specs whose names and fields are checked at the same time."""

CHECKS_AT_ONCE = 1
"""Checks in the service itself at the same time: they build models, see `jobs.spec.resolve.MODELS_LOCK`."""

ROUND_LOOKUPS_AT_ONCE = 2
"""Requests at the same time that keep all rounds of their jobs in memory."""

PAGE_LOOKUPS_AT_ONCE = 2
"""Pages of rounds that are read at the same time; one may take 0.3 seconds."""

CURVE_LOOKUPS_AT_ONCE = 2
"""Requests at the same time that read short curves: the database reads up to 10,000 records for one."""

CHECK_PROCESSES = 2
"""Processes that read data for checks and class maps at the same time; each may use half of the memory."""

MOST_DATA_CHECKS = 100
"""Checks and class maps that read data, waiting ones included."""

CHECK_HINT = "try again later; or let the operator raise FEDSIM_CHECK_SECONDS or FEDSIM_CHECK_MEMORY"

PLAN_SECONDS = 300.0
"""Time limit of a plan: data that has to be unpacked first may take minutes."""


class DispatcherProtocol(Protocol):
    """The part of a dispatcher that the service needs."""

    def start(self) -> None:
        """Start in the background."""

    def stop(self) -> None:
        """Stop; running jobs continue."""

    def wake(self) -> None:
        """Read the queue now, because it has changed."""

    def nodes(self) -> Sequence[ClusterNode] | None:
        """Return the nodes of the cluster; None while they are unknown."""

    def read_cluster_state(self) -> ClusterState:
        """Return the state of the cluster; raises RayUnavailable if it does not answer."""

    def find_obstacle(self) -> str | None:
        """Return why jobs cannot run yet; None if they can."""


class Catalogue:
    """The names of a spec with their parameters; built on first use, because it loads the library."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, list[dict[str, Any]]] = {}

    def list_entries(self, kind: Kind) -> list[dict[str, Any]]:
        """List all entries of one kind."""
        from jobs.spec.catalogue import catalogue

        with self._lock:
            if kind not in self._entries:
                self._entries[kind] = catalogue(kind)
            return self._entries[kind]


class Service:
    """One running service.

    Args:
        settings: settings of the service.
        store: the job store.
        dispatcher: it starts queued jobs on the cluster.
    """

    def __init__(self, settings: Settings, store: JobStore, dispatcher: DispatcherProtocol) -> None:
        self.settings = settings = replace(settings, allow_python=bool(settings.allow_python))
        self.store, self.dispatcher = store, dispatcher
        self.event_hub = EventHub(store)
        self.ended_jobs = EndedJobs(self._has_ended)
        self.catalogue = Catalogue()
        # One at a time, because two planners would slow each other.
        self.planner = WorkProcess(
            "jobs.plan.planner",
            "plan",
            PLAN_SECONDS,
            partial(make_environment_with_ray, settings),
            "try again later, or plan on the command line: fedsim plan",
        )
        self.body_lookups = Lookups(BODIES_AT_ONCE)
        self.spec_lookups = Lookups(SPECS_AT_ONCE)
        self.check_lookups = Lookups(CHECKS_AT_ONCE)
        self.round_lookups = Lookups(ROUND_LOOKUPS_AT_ONCE)
        self.page_lookups = Lookups(PAGE_LOOKUPS_AT_ONCE)
        self.curve_lookups = Lookups(CURVE_LOOKUPS_AT_ONCE)
        self.data_checker = WorkProcess(
            "jobs.plan.checker",
            "check",
            settings.limits.check_seconds,
            partial(make_check_environment, settings),
            CHECK_HINT,
            processes=CHECK_PROCESSES,
            most_pending=MOST_DATA_CHECKS,
            keep=True,
        )
        self.store_probe = SharedProbe(lambda: store.count(ACTIVE))

    def _has_ended(self, job_id: str) -> bool:
        try:
            return self.store.get(job_id).state in FINAL
        except JobNotFound:
            return True  # deleted, and only an ended job can be deleted

    def close(self) -> None:
        """End open streams, plans, checks and long look-ups of rounds."""
        self.event_hub.close()
        self.planner.close()
        self.data_checker.close()
        self.round_lookups.close()
        self.page_lookups.close()
        self.curve_lookups.close()

    def parse_spec(self, data: dict[str, Any]) -> JobSpec:
        """Parse a spec, and check its fields and names.

        Raises:
            SpecError: all wrong fields and unknown names; models that are code, where that is not allowed; or
                the spec is too long.
        """
        from jobs.spec.resolve import find_forbidden_models, parse_spec_and_names

        spec = parse_spec_and_names(data)
        if faults := find_forbidden_models(spec, self.settings) + find_size_faults(spec):
            raise SpecError(faults)
        return spec

    async def check_spec(self, spec: JobSpec, is_gone: Callable[[], Awaitable[bool]]) -> CheckedSpec:
        """Check that a spec can run on this cluster.

        A check that reads files runs in a process with a limit of memory and time.

        Args:
            spec: of the right shape.
            is_gone: returns whether the caller has left; the process then ends early.

        Returns:
            The spec, with the SHA-256 of its initial weights; and a warning for a long run.

        Raises:
            SpecError: unknown names, or parameters that do not fit.
            DataNotFound, DoesNotFit: the data set is missing, or the cluster can never place the workers.
            ServiceError: the same errors, with their codes, from the process; or it reached its limits.
        """
        from jobs.plan.checker import check_submission, read_check
        from jobs.spec.run_size import needs_data

        nodes = self.dispatcher.nodes()
        if not await run_in_threadpool(needs_data, spec):
            return await self.check_lookups.run_work(check_submission, spec, self.settings, nodes)
        described = None if nodes is None else [asdict(node) for node in nodes]
        question = {"work": "check", "spec": spec.model_dump(mode="json"), "nodes": described}
        return read_check(await self.data_checker.run(question, is_gone))

    def parse_rounds(self, job: Job, rounds: int) -> JobSpec:
        """Return the spec of a job with another last round (`set_last_round`), for `check_spec`.

        Raises:
            SpecError: the number is out of range.
            RequestError: the job ends by a stop rule besides `stop.round`.
        """
        spec = self.parse_spec(set_last_round(job.spec, rounds))
        if spec.stop.model_copy(update={"round": None}).rule is not None:
            message, hint = "cannot change: stop rules end this job", "begin anew: clone it without `stop`"
            raise RequestError([FieldError("rounds", rounds, message, hint)])
        return spec

    def check_rounds(self, job: Job, spec: JobSpec, rounds: int) -> None:
        """Check that the rounds of a job stay the same with its new last round.

        Args:
            job: the job.
            spec: with the new last round (`parse_rounds`), checked by `check_spec`.
            rounds: the new last round.

        Raises:
            RequestError: each round depends on the number of rounds, so that the rounds before would differ.
        """
        from jobs.spec.resolve import depends_on_num_rounds

        if spec.rounds != job.rounds_total and depends_on_num_rounds(spec):
            message = "cannot change: each round of this job depends on their number"
            hint = f"begin anew: fedsim clone {job.id} --set rounds={rounds}"
            raise RequestError([FieldError("rounds", rounds, message, hint)])

    async def make_class_map(self, job: Job, is_gone: Callable[[], Awaitable[bool]]) -> dict[str, Any]:
        """Return the class map of a job; the first request makes it, in a process as in `check_spec`.

        Args:
            job: the job.
            is_gone: returns whether the caller has left; the process then ends early.

        Raises:
            SpecError, ServiceError: the partition cannot be made any more, or the process reached its limits.
        """
        from jobs.run.class_map import read_class_map

        if (known := await run_in_threadpool(read_class_map, self.settings, job.id)) is not None:
            return known
        spec = await self.spec_lookups.run_work(self.parse_spec, job.spec)
        question = {"work": "class_map", "spec": spec.model_dump(mode="json"), "job": job.id}
        found: dict[str, Any] = await self.data_checker.run(question, is_gone)
        return found
