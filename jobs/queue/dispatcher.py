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
from jobs.local_ray.keeper_files import ALIVE
from jobs.queue.capacity import ClusterCapacity
from jobs.queue.reconciler import Reconciler, runner_command
from jobs.queue.waiting_reasons import update_waiting_reasons
from jobs.run.job_cluster import JobCluster
from jobs.run.ledger import find_no_answer_message
from jobs.settings import Settings
from jobs.store.job_store import JobStore
from jobs.store.states import ACTIVE, JobState

if TYPE_CHECKING:
    from actors.resources import ClusterNode
    from jobs.local_ray.cluster import ClusterState

log = logging.getLogger("fedsim.dispatch")

IDLE_PAUSE_SECONDS = 1.0
BUSY_PAUSE_SECONDS = 0.4
LONGEST_PAUSE = 10.0
STOP_SECONDS = 4.0
"""How long a stop waits for a look that is under way: container engines kill after ten seconds in all."""

STALLED_SECONDS = 60.0
"""A look that takes longer than this waits for something that does not answer."""

UNEXPECTED_ERROR_TEXT = "the queue is in trouble; the server's log says which"
"""What is shown of an error whose own words may hold statements, paths and addresses."""


def make_public_message(error: Exception) -> str:
    """What anybody may hear of a failure, with or without a token: the rest is for the log."""
    if find_no_answer_message(error) is not None:
        return "the store does not answer; the server's log says why"
    if not isinstance(error, (RayUnavailable, StoreFull)):
        return UNEXPECTED_ERROR_TEXT
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
        connect: Callable[[], JobCluster] | None = None,
    ) -> None:
        self.store, self.settings = store, settings
        self._command, self._connect = command, connect or self._connect_to_ray
        self._capacity = ClusterCapacity(store, settles=settings.ray_address is not None)
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._trouble: str | None = "the dispatcher has not been started"
        self._logged: str | None = None
        self._ray: JobCluster | None = None
        self._reconciler: Reconciler | None = None
        self._thread: threading.Thread | None = None
        self._last_pass_at = time.monotonic()

    def start(self) -> None:
        """Begin to work, in the background. The first thing done is to settle what an earlier life left."""
        address = self.settings.ray_address
        self._trouble = "Ray is starting" if address is None else f"connecting to Ray at {address}"
        if address is not None:
            log.info("%s", self._trouble)
        self._stopping.clear()
        self._last_pass_at = time.monotonic()
        self._thread = threading.Thread(target=self._run_loop, name="dispatcher", daemon=True)
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

    def find_obstacle(self) -> str | None:
        """What still keeps jobs from running, in words for everybody; None when nothing does."""
        if self._thread is not None and not self._thread.is_alive():
            return "the dispatcher has died; its log says why"
        blind = time.monotonic() - self._last_pass_at
        if self._trouble is None and blind > STALLED_SECONDS:
            return f"the dispatcher has not looked for {blind:.0f} s: Ray or the store keeps it waiting"
        return self._trouble

    def nodes(self) -> Sequence[ClusterNode] | None:
        """The cluster's nodes as the last look saw them; None while nobody knows whether these are all."""
        return self._capacity.nodes if self._capacity.are_nodes_complete() else None

    def read_cluster_state(self) -> ClusterState:
        """The cluster as it is now.

        Raises:
            RayUnavailable: there is no connection to Ray, or it does not answer.
        """
        from jobs.local_ray.cluster import read_cluster_state

        if (ray := self._ray) is None:
            raise RayUnavailable(f"Ray is not there: {self.find_obstacle() or 'it is being asked for'}")
        return read_cluster_state(ray.fetch_json)

    @property
    def ray_error(self) -> str | None:
        """The trouble with Ray or the store that the last look met; None when it went well."""
        return self.find_obstacle()

    def _run_loop(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._awake.clear()
            try:
                pause = BUSY_PAUSE_SECONDS if self._serve_queue_once() else IDLE_PAUSE_SECONDS
                self._trouble, self._logged, failures = None, None, 0
            except Exception as error:
                failures += 1
                pause = min(BUSY_PAUSE_SECONDS * 2**failures, LONGEST_PAUSE)
                self._report_failure(error)
            self._last_pass_at = time.monotonic()
            self._awake.wait(pause)

    def _serve_queue_once(self) -> int:
        """One round of work; returns how many jobs are on the cluster.

        Raises:
            JobRefused, OSError: as `Reconciler.submit`, once all the others have been served.
        """
        with contextlib.suppress(OSError):
            (self.settings.make_home() / ALIVE).touch()
        ray, reconciler = self._get_connection()
        self._capacity.refresh_nodes(ray)
        troubles = reconciler.reconcile_jobs(ray)
        if self.store.count([JobState.QUEUED]):
            lacking = self._capacity.refuse_jobs_that_never_fit()
            while (
                lacking is None and (job := self.store.start_next_job(self.settings.max_running)) is not None
            ):
                try:
                    reconciler.submit(ray, job)
                except (JobRefused, OSError) as error:
                    troubles.append(error)
                lacking = self._capacity.refuse_jobs_that_never_fit()
            if not troubles:
                update_waiting_reasons(self.store, self.settings.max_running, lacking)
        if troubles:
            raise troubles[0]
        return self.store.count(ACTIVE)

    def _get_connection(self) -> tuple[JobCluster, Reconciler]:
        """The cluster, connected on first use and again after a failure."""
        ray = self._ray = self._ray or self._connect()
        if self._reconciler is None:
            command = self._command or runner_command(self.settings)
            self._reconciler = Reconciler(self.store, self.settings, command)
        return ray, self._reconciler

    def _connect_to_ray(self) -> JobCluster:
        address = ensure_ray(self.settings, cancelled=self._stopping)
        # Importing Ray takes a second: not before it is needed, and not in the thread that serves requests.
        from jobs.queue.ray_jobs import RayJobs

        return RayJobs(address)

    def _report_failure(self, error: Exception) -> None:
        """Show a failure where people look: the log, /readyz and the jobs that wait."""
        if self._stopping.is_set():
            return
        self._ray = None
        self._capacity.forget_nodes()
        known = isinstance(error, (RayUnavailable, StoreFull))
        words = str(error) if known else f"{type(error).__name__}: {error}"
        if words != self._logged:
            log.error("%s", words, exc_info=None if known else error)
        self._trouble, self._logged = make_public_message(error), words
        with contextlib.suppress(Exception):
            away = isinstance(error, RayUnavailable)
            trouble = f"Ray is not there: {self._trouble}" if away else self._trouble
            update_waiting_reasons(self.store, self.settings.max_running, trouble)
