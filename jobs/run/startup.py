"""StartupWaiter: the log of a job's set-up, and the wait for free resources."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from actors.resources import Placement, parse_ray_nodes
from fedsim.engine.experiment import Experiment
from fedsim.errors import DoesNotFit, NoCapacityNow
from jobs.run.placement import choose_placement
from jobs.spec import JobSpec

log = logging.getLogger("fedsim.runner")

POLL_SECONDS = 1.0
"""Seconds between two looks at the free resources while a job waits."""

RETRY_SECONDS = 60.0
"""Seconds after which a job tries to place its workers, even if no resources seem free."""


class StartupWaiter:
    """Log the set-up of a job and wait for free resources; each message is written once.

    Args:
        write_warning: writes why the job waits among the job's events.
        is_stopped: returns whether the job must stop.
        has_capacity: returns whether the cluster seems to have enough free resources.
    """

    def __init__(
        self,
        write_warning: Callable[[str], object],
        is_stopped: Callable[[], bool],
        has_capacity: Callable[[], bool],
    ) -> None:
        self.write_warning, self.is_stopped, self.has_capacity = write_warning, is_stopped, has_capacity
        self._last_status, self._is_waiting = "", False

    def log_status(self, text: str) -> bool:
        """Log the status, unless it is the same as before; return whether it is new."""
        if text == self._last_status:
            return False
        self._last_status, self._is_waiting = text, False
        log.info(text)
        return True

    def wait_for_capacity(self, error: NoCapacityNow) -> bool:
        """Wait, for at most a minute, until resources are free; return False if the job must stop."""
        until = time.monotonic() + RETRY_SECONDS
        while not self.is_stopped():
            if not self._is_waiting:
                self._is_waiting = True
                log.info("waiting for free resources: %s", error.message)
                self.write_warning(f"waiting for free resources: {error.message}")
            if time.monotonic() >= until or self.has_capacity():
                return True
            time.sleep(POLL_SECONDS)
        return False


def has_free_capacity(experiment: Experiment, spec: JobSpec) -> bool:
    """Return whether the whole cluster, its nodes added up, has enough free resources for a run.

    Also return True if the run does not fit on the empty cluster: the next attempt then reports it.
    """
    import ray

    try:
        placement = choose_placement(experiment, spec, parse_ray_nodes(ray.nodes()))
    except DoesNotFit:
        return True
    return is_enough(ray.available_resources(), placement)


def is_enough(free: dict[str, float], placement: Placement) -> bool:
    """Return whether the free resources, by Ray's names, hold the workers and the server's GPU share."""
    gpus = placement.workers * placement.gpus + placement.server_gpus
    # Ray counts in steps of 0.0001.
    enough = free.get("CPU", 0.0) - placement.workers * placement.cpus, free.get("GPU", 0.0) - gpus
    return min(enough) > -1e-4
