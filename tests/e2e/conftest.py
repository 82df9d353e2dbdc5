"""What the end-to-end tests share: one server with a Ray of its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.server import Server, running_server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # The variable of another Ray of the user must reach neither the service's Ray nor its drivers.
    other = {"RAY_AUTH_TOKEN": "of another Ray"}
    with running_server(tmp_path_factory.mktemp("home"), **other) as started:
        yield started


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as client:
        yield client
