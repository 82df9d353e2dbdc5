"""What the routes work with: settings, store, dispatcher, event streams and the catalogue, in one place."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from api.server.events import EventHub
from api.server.job_log import EndedJobs
from api.server.plan_process import Planning
from api.server.slow_lookups import Lookups, SharedProbe
from fedsim.errors import JobNotFound
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.store.job_store import JobStore
from jobs.store.records import Job
from jobs.store.states import ACTIVE, FINAL

if TYPE_CHECKING:
    from actors.resources import ClusterNode
    from jobs.local_ray.cluster import ClusterState

CHECKS_AT_ONCE = 8

CatalogueKind = Literal["algorithms", "models", "datasets", "partitions"]


class DispatcherProtocol(Protocol):
    """What the service needs of a dispatcher."""

    def start(self) -> None:
        """Begin to work, in the background."""

    def stop(self) -> None:
        """Stop working; running jobs go on."""

    def wake(self) -> None:
        """Look at the queue now: something has changed."""

    def nodes(self) -> Sequence[ClusterNode] | None:
        """The nodes of the cluster; None while nobody knows them all."""

    def read_cluster_state(self) -> ClusterState:
        """The cluster as it is now; raises RayUnavailable where nobody can tell."""

    def find_obstacle(self) -> str | None:
        """Say what still keeps jobs from running; None when nothing does."""


class Catalogue:
    """What a spec can name. It is put together once, when first asked for: that loads the whole science."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, list[dict[str, Any]]] = {}

    def list_entries(self, kind: CatalogueKind) -> list[dict[str, Any]]:
        """List everything of one kind."""
        from jobs.spec.catalog import catalogue

        with self._lock:
            if kind not in self._entries:
                self._entries[kind] = catalogue(kind)
            return self._entries[kind]


class Service:
    """One running service.

    Args:
        settings: where things are.
        store: the jobs.
        queue: what brings queued jobs to the cluster.
    """

    def __init__(self, settings: Settings, store: JobStore, queue: DispatcherProtocol) -> None:
        self.settings, self.store, self.queue = settings, store, queue
        self.event_hub = EventHub(store)
        self.ended_jobs = EndedJobs(self._over)
        self.catalogue = Catalogue()
        self.planning = Planning(settings)
        self.check_lookups = Lookups(CHECKS_AT_ONCE)
        # One at a time: each may hold a whole data set.
        self.class_map_lookups = Lookups(1)
        self.store_probe = SharedProbe(lambda: store.count(ACTIVE))

    def _over(self, job_id: str) -> bool:
        try:
            return self.store.get(job_id).state in FINAL
        except JobNotFound:
            return True  # deleted: only a job that has ended can be

    def close(self) -> None:
        """End what callers wait for: streams and plans."""
        self.event_hub.close()
        self.planning.close()

    def parse_spec(self, data: dict[str, Any]) -> JobSpec:
        """Read a spec; with all faults of shape and all unknown names at once.

        Raises:
            SpecError: it names them.
        """
        from jobs.spec.resolve import parse_spec_and_names

        return parse_spec_and_names(data)

    def check_spec(self, spec: JobSpec) -> None:
        """Make sure that a spec can run here; it may read a whole data set, so it is for `checks`.

        Raises:
            SpecError: it names what does not exist, or with parameters that do not fit.
            DataNotFound: its data set is not here.
            DoesNotFit: what it asks for can never be placed.
        """
        from jobs.spec.resolve import check_spec

        check_spec(spec, self.settings, self.queue.nodes())

    def make_class_map(self, job: Job) -> dict[str, Any]:
        """Tell who holds what in a job; it may read a whole data set, so it is for `maps`.

        Raises:
            SpecError, DataNotFound, DataError: the data cannot be dealt out any more.
        """
        from jobs.run.class_map import load_class_map

        return load_class_map(self.parse_spec(job.spec), self.settings, job.id)
