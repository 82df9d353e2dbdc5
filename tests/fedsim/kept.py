"""Runs that are checkpointed, for the tests of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.base.digest import digest
from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.clients.population import Population
from fedsim.clock.devices import Devices
from fedsim.core import Algorithm, ServerState
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from tests.fedsim.methods import Everything, quick


def method(name: str) -> Algorithm:
    return Everything() if name == "everything" else quick(name)


def run(
    algorithm: Algorithm,
    population: Population,
    folder: Path | str,
    *,
    every: int = 2,
    rounds: int | None = None,
    resume: bool = False,
    devices: Devices | None = None,
) -> tuple[list[RoundResult], SerialPool]:
    """A run that is checkpointed, or one that goes on."""
    pool, kept = SerialPool(algorithm, population), Checkpoints(str(folder), {"algorithm": "it"})
    checkpoint = kept.load(lambda: algorithm.init_server_state(population.context(0))) if resume else None
    results = []
    for result in simulate(algorithm, population, pool, rounds=rounds, resume=checkpoint, devices=devices):
        results.append(result)
        kept.note_round(result)
        if result.round % every == 0:
            kept.save(result, pool, population.settings.rounds)
    return results, pool


def same_memories(a: SerialPool, b: SerialPool) -> None:
    assert a.client_states().keys() == b.client_states().keys()
    for client, memory in a.client_states().items():
        assert digest(memory) == digest(b.client_states()[client])


@dataclass(frozen=True, kw_only=True)
class Wrapped(ServerState):
    base: Any
    scores: Any
    odd: Any
