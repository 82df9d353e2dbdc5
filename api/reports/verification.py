"""Two runs, compared by the digests of their rounds: read from files or from jobs, then round by round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from api.reports.run_files import make_no_records_error, read_records


class RoundDigests(NamedTuple):
    """The digests of one round.

    Attributes:
        state: of the server state.
        memories: of what the clients keep; None for methods whose clients keep nothing.
        width: how many clients trained at once, which is no part of the comparison.
    """

    state: str
    client_states: str | None
    stack_size: int = 1

    def agrees(self, other: RoundDigests | None) -> bool:
        """Whether another round has the same digests."""
        return other is not None and self[:2] == other[:2]


class Difference(NamedTuple):
    """A round in which two runs differ; None stands for a run that has no such round."""

    round: int
    first: RoundDigests | None
    second: RoundDigests | None

    def list_differing_digests(self) -> list[tuple[str, str | None, str | None]]:
        """What differs: its name, and what each run has."""
        first, second = self.first or RoundDigests("", None), self.second or RoundDigests("", None)
        named = (
            ("state", first.state, second.state),
            ("memories", first.client_states, second.client_states),
        )
        return [(name, one or None, other or None) for name, one, other in named if one != other]

    @property
    def stack_sizes(self) -> tuple[int, int] | None:
        """How many clients trained at once in each, where that differs: then rounding does too."""
        if self.first is None or self.second is None or self.first.stack_size == self.second.stack_size:
            return None
        return self.first.stack_size, self.second.stack_size


class Verdict(NamedTuple):
    """What a comparison found.

    Attributes:
        rounds: how many rounds agree, up to the first that differs.
        difference: the first round that differs; None if there is none.
    """

    rounds: int
    difference: Difference | None


def compare_digests(first: Mapping[int, RoundDigests], second: Mapping[int, RoundDigests]) -> Verdict:
    """Compare two runs round by round; a round that only one of them has is a difference too."""
    agreed = 0
    for number in sorted({*first, *second}):
        one, other = first.get(number), second.get(number)
        if one is None or not one.agrees(other):
            return Verdict(agreed, Difference(number, one, other))
        agreed += 1
    return Verdict(agreed, None)


def list_digests(records: Iterable[Mapping[str, Any]]) -> dict[int, RoundDigests]:
    """The digests of round records, by round.

    Raises:
        KeyError, TypeError: for what is no record of a round.
    """
    return {int(record["round"]): _marks(record) for record in records}


def _marks(record: Mapping[str, Any]) -> RoundDigests:
    width = (record.get("engine") or {}).get("width", 1)
    return RoundDigests(str(record["digest"]), record.get("memory_digest"), int(width))


def read_digests(path: Path) -> dict[int, RoundDigests]:
    """The digests of a run in files; see `read_records`.

    Raises:
        SettingsError: if there are no round records.
    """
    try:
        return list_digests(read_records(path))
    except (ValueError, KeyError, TypeError) as error:
        raise make_no_records_error(path, f"{type(error).__name__}: {error}") from None
