"""The machine that a benchmark runs on: what stands beside its figures, and a Ray on it."""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path

import ray
import torch


def here() -> dict[str, str | int | None]:
    """What a figure depends on besides the code: the processor, its cores, the version of torch."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }


def start_ray(workers: int) -> None:
    """Start a quiet Ray on this machine, with room for at least so many workers of one core each."""
    ray.init(
        address="local",
        num_cpus=max(workers, os.cpu_count() or 1),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[1])}},
    )
