"""What the end-to-end tests share: one server with a Ray of its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from jobs.local_ray import stop_ray
from tests.e2e.server import Server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("home"))
    try:
        server.start()
        yield server
    finally:
        server.stop()
        stop_ray(server.settings)


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as client:
        yield client
