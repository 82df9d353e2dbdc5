"""Two runs, compared by the digests of their rounds: read from files or from jobs, then round by round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from api.reports.run_files import no_records, read_records


class Marks(NamedTuple):
    """The digests of one round.

    Attributes:
        state: of the server state.
        memories: of what the clients keep; None for methods whose clients keep nothing.
        width: how many clients trained at once, which is no part of the comparison.
    """

    state: str
    memories: str | None
    width: int = 1

    def agrees(self, other: Marks | None) -> bool:
        """Whether another round has the same digests."""
        return other is not None and self[:2] == other[:2]


class Difference(NamedTuple):
    """A round in which two runs differ; None stands for a run that has no such round."""

    round: int
    first: Marks | None
    second: Marks | None

    def parts(self) -> list[tuple[str, str | None, str | None]]:
        """What differs: its name, and what each run has."""
        first, second = self.first or Marks("", None), self.second or Marks("", None)
        named = (("state", first.state, second.state), ("memories", first.memories, second.memories))
        return [(name, one or None, other or None) for name, one, other in named if one != other]

    @property
    def widths(self) -> tuple[int, int] | None:
        """How many clients trained at once in each, where that differs: then rounding does too."""
        if self.first is None or self.second is None or self.first.width == self.second.width:
            return None
        return self.first.width, self.second.width


class Verdict(NamedTuple):
    """What a comparison found.

    Attributes:
        rounds: how many rounds agree, up to the first that differs.
        difference: the first round that differs; None if there is none.
    """

    rounds: int
    difference: Difference | None


def compare(first: Mapping[int, Marks], second: Mapping[int, Marks]) -> Verdict:
    """Compare two runs round by round; a round that only one of them has is a difference too."""
    agreed = 0
    for number in sorted({*first, *second}):
        one, other = first.get(number), second.get(number)
        if one is None or not one.agrees(other):
            return Verdict(agreed, Difference(number, one, other))
        agreed += 1
    return Verdict(agreed, None)


def marks(records: Iterable[Mapping[str, Any]]) -> dict[int, Marks]:
    """The digests of round records, by round.

    Raises:
        KeyError, TypeError: for what is no record of a round.
    """
    return {int(record["round"]): _marks(record) for record in records}


def _marks(record: Mapping[str, Any]) -> Marks:
    width = (record.get("engine") or {}).get("width", 1)
    return Marks(str(record["digest"]), record.get("memory_digest"), int(width))


def read_marks(path: Path) -> dict[int, Marks]:
    """The digests of a run in files; see `read_records`.

    Raises:
        SettingsError: if there are no round records.
    """
    try:
        return marks(read_records(path))
    except (ValueError, KeyError, TypeError) as error:
        raise no_records(path, f"{type(error).__name__}: {error}") from None
