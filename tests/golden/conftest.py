"""Actors that the cases share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.actor_group import ActorGroup
from tests.open_actors import open_actors


@pytest.fixture(scope="package", params=[1, 2])
def actor_group(request: pytest.FixtureRequest, ray_cluster: None) -> Iterator[ActorGroup]:
    """One actor, then two."""
    with open_actors(request.param) as actor_group:
        yield actor_group
