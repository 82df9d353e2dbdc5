"""Checkpoint: a run after a round, from which `simulate` goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedsim.base.tree import Tree
from fedsim.engine.model_selection import ChosenModel


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round.

    Attributes:
        round: how many rounds are finished.
        state: the server state.
        client_states: what every client that has been visited keeps, in parts that fit into memory.
        records: of rounds 1 to `round`, as plain data.
        digest: of the state.
        memory_digest: of the memories; None where clients keep nothing, or the checkpoint does not say.
        width: how many clients trained at once in that round, on which the last bits depend; None where the
            checkpoint does not say.
        chosen: the model that validation has chosen until then; None where there is none.
    """

    round: int
    state: Any
    client_states: Iterable[Mapping[int, Tree]] = ()
    records: Iterable[Mapping[str, Any]] = ()
    digest: str = ""
    stack_size: int | None = None
    chosen: ChosenModel | None = None
    memory_digest: str | None = None
