"""What the whole suite shares: one Ray, because each start costs seconds."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The machine decides how long an example takes, so no deadline; no folder of past examples is left behind.
settings.register_profile("fedsim", deadline=None, database=None, derandomize=True, max_examples=60)
settings.load_profile("fedsim")

# The GPUs of the tests are numbers, whatever this machine has. Ray's processes have it from here.
os.environ.setdefault("FEDSIM_LOGICAL_GPUS", "1")


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


REQUIRED = ("chromium", "PostgreSQL", "dataset-fashion-mnist", "could not import", "the extra '")
"""What a skip must not be for where everything is installed (FEDSIM_REQUIRE_ALL=1, as in CI)."""

UNPACKED = ("data root",)
"""Nor for this, which every skip for want of a data set names, where FEDSIM_DATA says that they are there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, so that of two processes none works alone on them at the end."""
    items.sort(key=lambda item: "reference" not in item.path.parts)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Where everything is installed, a skip for want of it is a failure."""
    outcome = yield
    _require_all(outcome.get_result())  # type: ignore[attr-defined]


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """The same for a module that skips itself when it is read."""
    outcome = yield
    _require_all(outcome.get_result())  # type: ignore[attr-defined]


def _require_all(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and os.environ.get("FEDSIM_REQUIRE_ALL"):
        reason = str(report.longrepr)
        required = REQUIRED + UNPACKED * bool(os.environ.get("FEDSIM_DATA"))
        if any(name.lower() in reason.lower() for name in required):
            report.outcome, report.longrepr = "failed", f"nothing may be missing here: {reason}"
