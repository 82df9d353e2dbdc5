"""The journal of a table: one JSON line for every finished run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

FOLDER = Path(__file__).parents[1] / "results"


class Entry(BaseModel):
    """One finished run.

    Attributes:
        key: fingerprint of the spec, seed included.
        labels: the cell when it was run, for people; the key is what counts.
        seed: of the run.
        rounds: that were run.
        final: the last round's metrics.
        best: the round with the best metric of the table, and its value.
        tail: mean of that metric over the last 10 rounds, as far as they were scored.
        curve: that metric by round.
        bytes: simulated traffic of all rounds, down and up.
        cost: updates and flops of all rounds' training, tuning_updates and tuning_flops of fine-tuning; {} in
            lines that were written before these were counted.
        seconds: of the rounds, by the clock.
        digest: of the last server state.
        code: the version of the code.
    """

    model_config = ConfigDict(frozen=True)

    key: str
    labels: dict[str, str]
    seed: int
    rounds: int
    final: dict[str, float]
    best: dict[str, float]
    tail: float
    curve: dict[int, float]
    bytes: dict[str, int]
    cost: dict[str, int] = {}
    seconds: float
    digest: str
    code: str

    def shown(self, what: str, metric: str) -> float:
        """The figure for a table: of the `final` round, of the `best`, or the `tail`'s mean."""
        return {"final": self.final[metric], "best": self.best["value"], "tail": self.tail}[what]

    def other(self, name: str) -> float | None:
        """Another figure of the run: of its last round, or summed over all; None if unknown."""
        known: dict[str, float] = {**self.final, **self.bytes, **self.cost}
        return known.get(name)


class Journal:
    """Finished runs in a file that only grows.

    Args:
        folder: where the journals are.
        name: of the table.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.file = folder / f"{name}.jsonl"

    def read(self) -> dict[str, Entry]:
        """All finished runs by key; a line that was cut off by a crash does not count."""
        if not self.file.is_file():
            return {}
        entries = (self._parsed(line) for line in self.file.read_text("utf-8").splitlines())
        return {entry.key: entry for entry in entries if entry is not None}

    def append(self, entry: Entry) -> None:
        """Write one run down; it is on the disk when this returns."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        broken = self.file.is_file() and not self.file.read_bytes().endswith(b"\n")
        with self.file.open("a", encoding="utf-8") as opened:
            opened.write(("\n" if broken else "") + entry.model_dump_json() + "\n")
            opened.flush()
            os.fsync(opened.fileno())

    @staticmethod
    def _parsed(line: str) -> Entry | None:
        try:
            data: Any = json.loads(line)
        except json.JSONDecodeError:
            return None
        return Entry.model_validate(data)


def rounded(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Metrics as they are kept: six digits are finer than any difference that matters."""
    return {name: round(value, 6) for name, value in values}
