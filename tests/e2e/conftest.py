"""What the end-to-end tests share: one server with a Ray of its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.server import Server, running_server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("home")) as started:
        yield started


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as client:
        yield client
