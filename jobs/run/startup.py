"""What a job says, and what it waits for, while it is set up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import ray

from actors.resources import Placement, parse_ray_nodes
from fedsim.engine.experiment import Experiment
from fedsim.errors import DoesNotFit, NoCapacityNow
from jobs.run.placement import choose_placement
from jobs.spec import JobSpec

log = logging.getLogger("fedsim.runner")

POLL_SECONDS = 1.0
"""How often a job that waits looks whether there is room."""

TRY_SECONDS = 60.0
"""How often it tries to have its workers placed, whatever it sees: that takes a new coordinator each time."""


class StartupWaiter:
    """Says each thing once, however often it is tried.

    Args:
        warn: writes why a job waits where people see it.
        stopped: whether the job is to do no more.
        room: whether it seems worth while to try again.
    """

    def __init__(
        self, warn: Callable[[str], object], stopped: Callable[[], bool], room: Callable[[], bool]
    ) -> None:
        self.warn, self.stopped, self.room = warn, stopped, room
        self._last, self._waits = "", False

    def log_status(self, text: str) -> None:
        """Log what is being waited for."""
        if text != self._last:
            self._last, self._waits = text, False
            log.info(text)

    def wait_for_capacity(self, error: NoCapacityNow) -> bool:
        """Wait while others hold the room, a minute at most; whether to try again."""
        until = time.monotonic() + TRY_SECONDS
        while not self.stopped():
            if not self._waits:
                self._waits = True
                log.info("waiting for room: %s", error.message)
                self.warn(f"waiting for room: {error.message}")
            if time.monotonic() >= until or self.room():
                return True
            time.sleep(POLL_SECONDS)
        return False


def has_free_capacity(experiment: Experiment, spec: JobSpec) -> bool:
    """Whether the cluster has so much free as a run takes, on whichever nodes that is.

    True as well where the run would not fit on the whole cluster: who tries is told so.
    """
    try:
        placement = choose_placement(experiment, spec, parse_ray_nodes(ray.nodes()))
    except DoesNotFit:
        return True
    return is_enough(ray.available_resources(), placement)


def is_enough(free: dict[str, float], placement: Placement) -> bool:
    """Whether resources, by Ray's names of them, are enough for workers and the coordinator's share."""
    gpus = placement.workers * placement.gpus + placement.server_gpus
    # Ray counts in ten-thousandths.
    enough = free.get("CPU", 0.0) - placement.workers * placement.cpus, free.get("GPU", 0.0) - gpus
    return min(enough) > -1e-4
