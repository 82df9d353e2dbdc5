"""Checkpoint: the state of a run after a round; `simulate(resume=...)` continues from it.

`fedsim.checkpoints` writes and reads it. The class is here, because the engine must not import that package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedsim.base.tree import Tree
from fedsim.clock.flights import InFlight
from fedsim.engine.evaluation.model_selection import BestModel, ChosenModel


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round.

    Attributes:
        round: the number of finished rounds.
        state: the server state.
        client_states: {client: client state} of every client that has trained, in parts that fit into memory.
        records: the records of rounds 1 to `round`, as plain data.
        digest: digest of the server state.
        memory_digest: digest of the client states; None if clients keep no state, or if the file has none.
        stack_size: number of clients that trained at once in that round; the last bits of the result depend
            on it. None if the file has none.
        chosen: the best model on the validation set until this round; None without a validation set.
        in_flight: the clients in flight after that round, with an asynchronous policy; else None.
        best: the model that is the result if the run ends now; None if it is that of `state`.
    """

    round: int
    state: Any
    client_states: Iterable[Mapping[int, Tree]] = ()
    records: Iterable[Mapping[str, Any]] = ()
    digest: str = ""
    stack_size: int | None = None
    chosen: ChosenModel | None = None
    memory_digest: str | None = None
    best: BestModel | None = None
    in_flight: InFlight | None = None
