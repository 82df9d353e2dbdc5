"""The dispatcher: takes jobs from the queue to the cluster, and keeps the store and the cluster together."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedsim.errors import JobRefused, RayUnavailable, StoreFull
from jobs.local_ray.embedded_ray import ensure_ray
from jobs.local_ray.files import ALIVE
from jobs.queue.capacity import Room
from jobs.queue.reconcile import Reconciler, runner_command
from jobs.queue.waiting import tell_waiting
from jobs.run.ledger import silence
from jobs.run.ray_job import Cluster
from jobs.settings import Settings
from jobs.store.job_store import JobStore
from jobs.store.states import ACTIVE, JobState

if TYPE_CHECKING:
    from actors.resources import Node
    from jobs.local_ray.cluster import ClusterState

log = logging.getLogger("fedsim.dispatch")

LOOK_SECONDS = 1.0
BUSY_SECONDS = 0.4
LONGEST_PAUSE = 10.0
STOP_SECONDS = 4.0
"""How long a stop waits for a look that is under way: container engines kill after ten seconds in all."""

BLIND_SECONDS = 60.0
"""A look that takes longer than this waits for something that does not answer."""

UNFORESEEN = "the queue is in trouble; the server's log says which"
"""What is shown of an error whose own words may hold statements, paths and addresses."""


def shown(error: Exception) -> str:
    """What anybody may hear of a failure, with or without a token: the rest is for the log."""
    if silence(error) is not None:
        return "the store does not answer; the server's log says why"
    if not isinstance(error, (RayUnavailable, StoreFull)):
        return UNFORESEEN
    first, *rest = str(error).splitlines()
    return f"{first}; the server's log says more" if rest else first


class Dispatcher:
    """A thread that serves the queue. Failures of Ray or of the store are logged, shown and tried again.

    Args:
        store: the jobs.
        settings: where Ray is, how many jobs may run at once.
        command: what runs a job, its id to be added; by default `python -m jobs.run.runner`.
        connect: gives the cluster; by default the Ray that the settings name, or one of fedsim's own.
    """

    def __init__(
        self,
        store: JobStore,
        settings: Settings,
        *,
        command: Sequence[str] | None = None,
        connect: Callable[[], Cluster] | None = None,
    ) -> None:
        self.store, self.settings = store, settings
        self._command, self._connect = command, connect or self._connect_to_ray
        self._room = Room(store, settles=settings.ray_address is not None)
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._trouble: str | None = "the dispatcher has not been started"
        self._logged: str | None = None
        self._ray: Cluster | None = None
        self._reconciler: Reconciler | None = None
        self._thread: threading.Thread | None = None
        self._looked_at = time.monotonic()

    def start(self) -> None:
        """Begin to work, in the background. The first thing done is to settle what an earlier life left."""
        address = self.settings.ray_address
        self._trouble = "Ray is starting" if address is None else f"connecting to Ray at {address}"
        if address is not None:
            log.info("%s", self._trouble)
        self._stopping.clear()
        self._looked_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="dispatcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop working. Running jobs go on, and so does Ray as long as they do."""
        self._stopping.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None
        self._trouble = "the dispatcher has been stopped"

    def wake(self) -> None:
        """Look at the queue now: something has changed."""
        self._awake.set()

    def ready(self) -> str | None:
        """What still keeps jobs from running, in words for everybody; None when nothing does."""
        if self._thread is not None and not self._thread.is_alive():
            return "the dispatcher has died; its log says why"
        blind = time.monotonic() - self._looked_at
        if self._trouble is None and blind > BLIND_SECONDS:
            return f"the dispatcher has not looked for {blind:.0f} s: Ray or the store keeps it waiting"
        return self._trouble

    def nodes(self) -> Sequence[Node] | None:
        """The cluster's nodes as the last look saw them; None while nobody knows whether these are all."""
        return self._room.nodes if self._room.settled() else None

    def cluster(self) -> ClusterState:
        """The cluster as it is now.

        Raises:
            RayUnavailable: there is no connection to Ray, or it does not answer.
        """
        from jobs.local_ray.cluster import cluster_state

        if (ray := self._ray) is None:
            raise RayUnavailable(f"Ray is not there: {self.ready() or 'it is being asked for'}")
        return cluster_state(ray.ask)

    @property
    def ray_error(self) -> str | None:
        """The trouble with Ray or the store that the last look met; None when it went well."""
        return self.ready()

    def _work(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._awake.clear()
            try:
                pause = BUSY_SECONDS if self._look() else LOOK_SECONDS
                self._trouble, self._logged, failures = None, None, 0
            except Exception as error:
                failures += 1
                pause = min(BUSY_SECONDS * 2**failures, LONGEST_PAUSE)
                self._note(error)
            self._looked_at = time.monotonic()
            self._awake.wait(pause)

    def _look(self) -> int:
        """One round of work; returns how many jobs are on the cluster.

        Raises:
            JobRefused, OSError: as `Reconciler.submit`, once all the others have been served.
        """
        with contextlib.suppress(OSError):
            (self.settings.make_home() / ALIVE).touch()
        ray, reconciler = self._connected()
        self._room.count(ray)
        troubles = reconciler.settle_all(ray)
        if self.store.count([JobState.QUEUED]):
            lacking = self._room.refuse_what_never_fits()
            while lacking is None and (job := self.store.start_next(self.settings.max_running)) is not None:
                try:
                    reconciler.submit(ray, job)
                except (JobRefused, OSError) as error:
                    troubles.append(error)
                lacking = self._room.refuse_what_never_fits()
            if not troubles:
                tell_waiting(self.store, self.settings.max_running, lacking)
        if troubles:
            raise troubles[0]
        return self.store.count(ACTIVE)

    def _connected(self) -> tuple[Cluster, Reconciler]:
        """The cluster, connected on first use and again after a failure."""
        ray = self._ray = self._ray or self._connect()
        if self._reconciler is None:
            command = self._command or runner_command(self.settings)
            self._reconciler = Reconciler(self.store, self.settings, command)
        return ray, self._reconciler

    def _connect_to_ray(self) -> Cluster:
        address = ensure_ray(self.settings, cancelled=self._stopping)
        # Importing Ray takes a second: not before it is needed, and not in the thread that serves requests.
        from jobs.queue.ray_jobs import RayJobs

        return RayJobs(address)

    def _note(self, error: Exception) -> None:
        """Show a failure where people look: the log, /readyz and the jobs that wait."""
        if self._stopping.is_set():
            return
        self._ray = None
        self._room.forget()
        known = isinstance(error, (RayUnavailable, StoreFull))
        words = str(error) if known else f"{type(error).__name__}: {error}"
        if words != self._logged:
            log.error("%s", words, exc_info=None if known else error)
        self._trouble, self._logged = shown(error), words
        with contextlib.suppress(Exception):
            away = isinstance(error, RayUnavailable)
            trouble = f"Ray is not there: {self._trouble}" if away else self._trouble
            tell_waiting(self.store, self.settings.max_running, trouble)
