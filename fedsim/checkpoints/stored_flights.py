"""Clients in flight on disk: the part of a checkpoint that only asynchronous runs have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsim.checkpoints.serialization import pack
from fedsim.checkpoints.storage import Folder
from fedsim.checkpoints.stored_files import StoredFile
from fedsim.clock.flights import Flight, InFlight

FLIGHTS = "flights"
"""The key in a manifest, and the beginning of the file's name; `OURS` of `checkpoint.py` lists it too."""


def save_flights(folder: Folder, round: int, in_flight: InFlight | None) -> dict[str, Any] | None:
    """Write the clients in flight after a round; return the entry of the file, None in a synchronous run.

    Clients of the same version share one server state, which is in the file once.
    """
    if in_flight is None:
        return None
    flights = in_flight.flights
    content = {
        "now": in_flight.now,
        "started": in_flight.started,
        "seconds": np.array([(each.end, each.start) for each in flights], np.float64),
        "numbers": np.array([(each.client, each.version, each.vanishes) for each in flights], np.int64),
        "states": in_flight.states,
    }
    return StoredFile.write(folder, FLIGHTS, round, pack(content)).to_entry()


def load_flights(
    folder: Folder, entry: Mapping[str, Any] | None, round: int, template: Any
) -> InFlight | None:
    """Read the clients in flight after a round; None in a synchronous run.

    Args:
        folder: of the file.
        entry: that `save_flights` returned.
        round: number of finished rounds.
        template: a server state of the right type.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    if not entry:
        return None
    file = StoredFile.from_entry(entry)
    # A version is the number of an earlier round.
    templates = {"states": dict.fromkeys(range(round), template)}
    held = file.unpack(folder, templates)
    flights = [
        Flight(end, client, version, start, bool(vanishes))
        for (end, start), (client, version, vanishes) in zip(
            held["seconds"].tolist(), held["numbers"].tolist(), strict=True
        )
    ]
    return InFlight(held["now"], held["started"], tuple(flights), held["states"])
