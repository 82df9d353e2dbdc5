"""What the tests of the actors share: actor_groups, because starting actors is what takes time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.actor_group import ActorGroup
from tests.open_actors import open_actors


@pytest.fixture(scope="package", params=[2, pytest.param(5, marks=pytest.mark.weekly)])
def actor_group(request: pytest.FixtureRequest, ray_cluster: None) -> Iterator[ActorGroup]:
    """Actors that several runs share one after another; five of them only each week.

    For this package alone: other tests in the same Ray ask for all of its room.
    """
    with open_actors(request.param) as actor_group:
        yield actor_group
