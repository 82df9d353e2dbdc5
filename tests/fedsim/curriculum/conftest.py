"""Actors that the tests here share one after another: starting them is what takes time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.actor_group import ActorGroup
from tests.open_actors import open_actors


@pytest.fixture(scope="package")
def actor_group(ray_cluster: None) -> Iterator[ActorGroup]:
    with open_actors(2) as actor_group:
        yield actor_group
