"""What the whole suite shares: one Ray, because each start costs seconds."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray in this session with 8 logical CPUs and 2 logical GPUs."""
    import ray

    ray.init(
        address="local",
        num_cpus=8,
        num_gpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    yield
    ray.shutdown()
