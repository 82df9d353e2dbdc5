"""Joining a Ray cluster from this process, or having one of its own for a while."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from fedsim.errors import RayUnavailable
from jobs.settings import Settings


@contextmanager
def connected(settings: Settings) -> Iterator[None]:
    """A connection to the cluster that the settings name, or to a Ray of this process's own.

    A Ray that this process started ends with the block.

    Raises:
        RayUnavailable: the address is that of a dashboard, which takes jobs and no processes.
    """
    if (settings.ray_address or "").startswith(("http://", "https://")):
        raise RayUnavailable(
            f"{settings.ray_address} takes jobs, but a process has to be on the cluster to join it",
            "submit a job, or run this on the head with --ray-address auto (FEDSIM_RAY_ADDRESS=auto)",
        )
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    mine = not ray.is_initialized()
    if mine:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if settings.ray_address is None:
            options |= {"include_dashboard": False, "num_cpus": settings.ray_num_cpus or os.cpu_count()}
            if settings.ray_num_gpus is not None:
                options["num_gpus"] = settings.ray_num_gpus
        ray.init(address=settings.ray_address or "local", **options)
    try:
        yield
    finally:
        if mine:
            ray.shutdown()
