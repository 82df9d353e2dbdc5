"""What the tests of the edge share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.api.service import RunningService, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A server without a token; its jobs are those of all tests of a file."""
    with running_service(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def http(service: RunningService) -> Iterator[httpx.Client]:
    """Plain HTTP to that server."""
    with httpx.Client(base_url=service.url, timeout=20) as client:
        yield client


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEDSIM_URL", "FEDSIM_TOKEN"):
        monkeypatch.delenv(name, raising=False)
