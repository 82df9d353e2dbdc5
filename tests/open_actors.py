"""Actors for a test or a fixture, which end with its block."""

from __future__ import annotations

from contextlib import closing

from actors.actor_group import ActorGroup
from actors.resources import Placement


def open_actors(workers: int) -> closing[ActorGroup]:
    """Start so many actors, each on half a core; the end of the block closes them."""
    return closing(ActorGroup(Placement(workers, 0.5, 0)))
