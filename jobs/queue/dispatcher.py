"""Dispatcher: a thread that starts waiting jobs on the cluster, and reconciles the store with the cluster."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedsim.errors import JobRefused, RayUnavailable, StoreUnusable
from jobs.local_ray.embedded_ray import ensure_ray
from jobs.local_ray.keeper_files import ALIVE
from jobs.queue.capacity import ClusterCapacity
from jobs.queue.job_size import fits_beside
from jobs.queue.reconciler import Reconciler, runner_command
from jobs.queue.waiting_reasons import update_waiting_reasons
from jobs.run.job_cluster import JobCluster
from jobs.run.ledger import find_no_answer_message
from jobs.settings import Settings
from jobs.store.database import DISK_FULL_HINT
from jobs.store.job_store import JobStore
from jobs.store.states import ACTIVE, JobState

if TYPE_CHECKING:
    from actors.resources import ClusterNode
    from jobs.local_ray.cluster import ClusterState
    from jobs.queue.ray_jobs import RayJobs
    from jobs.store.records import Job

log = logging.getLogger("fedsim.dispatch")

IDLE_PAUSE_SECONDS = 1.0
BUSY_PAUSE_SECONDS = 0.4
LOOK_SECONDS = 0.05
"""Seconds between two looks at whether a job has ended, while others wait for its place."""

LONGEST_PAUSE = 10.0
STOP_SECONDS = 4.0
"""Seconds that `stop` waits for the current pass: container engines kill a process after ten seconds."""

STALLED_SECONDS = 60.0
"""A pass that takes longer than this many seconds waits for a Ray or a database that does not answer."""

UNEXPECTED_ERROR_TEXT = "the queue has an unexpected error; see the server's log"
"""The public message for an error whose own message may hold SQL statements, paths and addresses."""


def make_public_message(error: Exception) -> str:
    """Return the message of an error that callers without a token may see; the log has the rest."""
    if find_no_answer_message(error) is not None:
        return "the database does not answer; see the server's log"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: files of jobs cannot be written ({DISK_FULL_HINT})"
    if not isinstance(error, (RayUnavailable, StoreUnusable)):
        return UNEXPECTED_ERROR_TEXT
    first, *rest = str(error).splitlines()
    return f"{first}; the server's log says more" if rest else first


class Dispatcher:
    """A thread that serves the queue. It logs and shows failures of Ray or the store, and tries again.

    Args:
        store: the jobs.
        settings: where Ray is, and how many jobs may run at once.
        command: runs a job, whose id is appended; by default `python -m jobs.run.runner`.
        connect: returns the cluster; by default the Ray that the settings name, or a local Ray.
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
        self._capacity = ClusterCapacity(store, may_gain_nodes=settings.ray_address is not None)
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._trouble: str | None = "the dispatcher has not been started"
        self._logged: str | None = None
        self._ray: JobCluster | None = None
        self._reconciler: Reconciler | None = None
        self._thread: threading.Thread | None = None
        self._last_pass_at = time.monotonic()

    def start(self) -> None:
        """Start the thread. Its first pass reconciles the jobs of an earlier dispatcher."""
        address = self.settings.ray_address
        self._trouble = "Ray is starting" if address is None else f"connecting to Ray at {address}"
        if address is not None:
            log.info("%s", self._trouble)
        self._stopping.clear()
        self._last_pass_at = time.monotonic()
        self._thread = threading.Thread(target=self._run_loop, name="dispatcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Running jobs go on, and Ray goes on while they run."""
        self._stopping.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None
        self._trouble = "the dispatcher has been stopped"

    def wake(self) -> None:
        """Start the next pass now, because something has changed."""
        self._awake.set()

    def find_obstacle(self) -> str | None:
        """Return what keeps jobs from running, as a public message; None if nothing does."""
        if self._thread is not None and not self._thread.is_alive():
            return "the dispatcher has died; its log says why"
        blind = time.monotonic() - self._last_pass_at
        if self._trouble is None and blind > STALLED_SECONDS:
            return f"the dispatcher has done nothing for {blind:.0f} s: Ray or the database does not answer"
        return self._trouble

    def nodes(self) -> Sequence[ClusterNode] | None:
        """Return the cluster's nodes as of the last pass; None while more may join, or none takes workers."""
        nodes = self._capacity.nodes or ()
        takes_workers = any(node.cpus or node.gpus for node in nodes)
        return nodes if takes_workers and self._capacity.are_nodes_complete() else None

    def read_cluster_state(self) -> ClusterState:
        """Read the state of the cluster from Ray.

        Raises:
            RayUnavailable: if there is no connection to Ray, or Ray does not answer.
        """
        from jobs.local_ray.cluster import read_cluster_state

        if (ray := self._ray) is None:
            obstacle = self.find_obstacle()
            raise RayUnavailable("no connection to Ray yet" + (f": {obstacle}" if obstacle else ""))
        return read_cluster_state(ray.fetch_json)

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
            self._wait_for_next_pass(pause)

    def _wait_for_next_pass(self, pause: float) -> None:
        """Wait so many seconds; less if somebody wakes the thread, or if a job ends while others wait."""
        until = time.monotonic() + pause
        with contextlib.suppress(Exception):  # the next pass reports a store that does not answer
            if self._trouble is None and self.store.count([JobState.QUEUED]):
                active = self.store.count(ACTIVE)
                while not self._awake.wait(min(LOOK_SECONDS, until - time.monotonic())):
                    if time.monotonic() >= until or self.store.count(ACTIVE) < active:
                        return
                return
        self._awake.wait(max(0.0, until - time.monotonic()))

    def _serve_queue_once(self) -> int:
        """Do one pass: reconcile the active jobs, start waiting jobs, and return how many jobs are active.

        Raises:
            JobRefused, OSError: as `Reconciler.submit`, after all other jobs have been served.
        """
        with contextlib.suppress(OSError):
            (self.settings.make_home() / ALIVE).touch()
        ray, reconciler = self._get_connection()
        self._capacity.refresh_nodes(ray)
        troubles = reconciler.reconcile_jobs(ray)
        if self.store.count([JobState.QUEUED]):
            lacking = self._capacity.fail_jobs_that_never_fit()
            while lacking is None and (job := self._start_next_job()) is not None:
                try:
                    reconciler.submit(ray, job)
                except (JobRefused, OSError) as error:
                    troubles.append(error)
                lacking = self._capacity.fail_jobs_that_never_fit()
            if not troubles:
                update_waiting_reasons(self.store, self.settings.max_running, lacking)
        if troubles:
            raise troubles[0]
        return self.store.count(ACTIVE)

    def _start_next_job(self) -> Job | None:
        """Start the first job of the queue, if it may run beside the active ones; else return None."""
        most = self.settings.max_running
        if most is None:
            active, waiting = self.store.list_active(), self.store.queue(limit=1)
            nodes = self._capacity.nodes or ()
            if active and not (waiting and fits_beside(waiting[0], active, self.settings, nodes)):
                return None
            most = len(active) + 1
        return self.store.start_next_job(most)

    def _get_connection(self) -> tuple[JobCluster, Reconciler]:
        """Return the cluster, connected on first use and after a failure, and the reconciler."""
        ray = self._ray = self._ray or self._connect()
        if self._reconciler is None:
            command = self._command or runner_command(self.settings)
            self._reconciler = Reconciler(self.store, self.settings, command)
        return ray, self._reconciler

    def _connect_to_ray(self) -> JobCluster:
        address = ensure_ray(self.settings, cancelled=self._stopping)
        # Importing Ray takes a second: import it when needed, and outside the thread that serves requests.
        from jobs.queue.ray_jobs import RayJobs

        ray = RayJobs(address)
        if self.settings.ray_address is not None and not self.settings.allow_open_ray:
            self._check_token(ray)
        # A command of the caller's own is no runner that could be forked.
        if self.settings.ray_address is not None or self._command is not None:
            return ray
        from jobs.run.forks.forked_runners import ForkedRunners

        return ForkedRunners(ray, self.settings)

    def _check_token(self, ray: RayJobs) -> None:
        """Warn of a cluster that takes jobs without a token, or refuse it, as the settings say.

        Raises:
            RayUnavailable: the cluster is refused.
        """
        if not ray.takes_jobs_without_token():
            return
        message = f"Ray at {self.settings.ray_address} takes jobs without a token"
        if self.settings.allow_open_ray is False:
            hint = "start Ray with RAY_AUTH_MODE=token, or set FEDSIM_ALLOW_OPEN_RAY=1 for this service"
            raise RayUnavailable(f"{message}, so this service does not use it", hint)
        hint = "start it with RAY_AUTH_MODE=token; FEDSIM_ALLOW_OPEN_RAY=1 ends this warning"
        log.warning("%s: everybody who reaches it can run code there (%s)", message, hint)

    def _report_failure(self, error: Exception) -> None:
        """Show a failure in the log, in /readyz and in the waiting reasons of jobs."""
        if self._stopping.is_set():
            return
        self._ray = None
        self._capacity.forget_nodes()
        known = isinstance(error, (RayUnavailable, StoreUnusable))
        words = str(error) if known else f"{type(error).__name__}: {error}"
        if words != self._logged:
            log.error("%s", words, exc_info=None if known else error)
        self._trouble, self._logged = make_public_message(error), words
        with contextlib.suppress(Exception):
            away = isinstance(error, RayUnavailable)
            trouble = f"Ray does not answer: {self._trouble}" if away else self._trouble
            update_waiting_reasons(self.store, self.settings.max_running, trouble)
