"""Actors that the tests here share one after another: starting them is what takes time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.actor_group import ActorGroup
from actors.resources import Placement


@pytest.fixture(scope="package")
def actor_group(ray_cluster: None) -> Iterator[ActorGroup]:
    actor_group = ActorGroup(Placement(2, 0.5, 0))
    yield actor_group
    actor_group.close()
