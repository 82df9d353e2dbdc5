"""What clients receive besides the broadcast: once in the store where several receive the same."""

from __future__ import annotations

from typing import Any

import pytest
import ray
import torch

from actors.actor_group import ActorGroup
from actors.client_messages import SharedMessage, pack_client_messages, unpack_client_messages
from actors.ray_pool import RayPool
from actors.resources import Placement
from fedsim.algorithms import FedEnsemble
from fedsim.base.digest import digest
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.server_messages import (
    make_instructions,
)
from fedsim.engine.simulation import simulate
from tests.fedsim.federations import federation


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was put away, in the place of Ray's object store; a reference is a position."""
    put_away: list[Any] = []

    def put(value: Any) -> int:
        put_away.append(value)
        return len(put_away) - 1

    monkeypatch.setattr(ray, "put", put)
    monkeypatch.setattr(ray, "get", lambda reference: put_away[reference])
    return put_away


def test_models_that_several_clients_receive_are_put_away_once(store: list[Any]) -> None:
    population, algorithm = federation(), FedEnsemble(mode="permutation", models=3)
    state, ctx = make_initial_state(algorithm, population), population.context(0)
    instructions = make_instructions(algorithm, ctx, state, range(10))
    written = pack_client_messages(instructions)
    assert all(isinstance(letter, SharedMessage) for letter in written.values())
    assert len(store) == 3
    found = unpack_client_messages(written, None)
    assert {client: digest(value) for client, value in found.items()} == {
        client: digest(value) for client, value in instructions.items()
    }


def test_what_one_client_alone_receives_travels_with_its_message(store: list[Any]) -> None:
    ones = torch.ones(2)
    sent = {0: {"a": ones}, 1: {"a": ones.clone()}, 2: {}, 3: {}, 4: {"a": ones, "b": {}}}
    written = pack_client_messages(sent)
    assert store == []
    assert digest(unpack_client_messages(written, torch.device("cpu"))) == digest(sent)


@pytest.mark.slow
def test_actors_read_what_was_put_away(ray_cluster: None) -> None:
    population, algorithm = federation(cohort_size=6, rounds=2), FedEnsemble(mode="permutation", models=2)
    expected = simulate(algorithm, population, SerialPool(algorithm, population))
    pool = RayPool(algorithm, population, ActorGroup(Placement(2, 0.5, 0)))
    try:
        found = [result.digest for result in simulate(algorithm, population, pool)]
    finally:
        pool.close()
    assert found == [result.digest for result in expected]
