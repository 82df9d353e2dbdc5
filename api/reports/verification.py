"""Compares two runs by the digests of their rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from api.reports.run_files import make_no_records_error, read_records


class RoundDigests(NamedTuple):
    """The digests of one round.

    Attributes:
        state: digest of the server state.
        client_states: digest of the client states; None for an algorithm without client states.
        stack_size: clients of one stack; not compared.
    """

    state: str
    client_states: str | None
    stack_size: int = 1

    def agrees(self, other: RoundDigests | None) -> bool:
        """Return whether another round has the same digests; client states count if both rounds have them."""
        if other is None or self.state != other.state:
            return False
        return None in (self.client_states, other.client_states) or self.client_states == other.client_states


class Difference(NamedTuple):
    """The first round in which two runs differ; None for the digests of a run that has no such round."""

    round: int
    first: RoundDigests | None
    second: RoundDigests | None

    @property
    def missing(self) -> Literal["first", "second"] | None:
        """The run that has no such round; None if both have it."""
        if self.first is None:
            return "first"
        return "second" if self.second is None else None

    def list_differing_digests(self) -> list[tuple[str, str | None, str | None]]:
        """List the differing digests as (JSON key, digest of the first run, digest of the second run)."""
        first, second = self.first or RoundDigests("", None), self.second or RoundDigests("", None)
        named = (
            ("state", first.state, second.state),
            ("memories", first.client_states, second.client_states),
        )
        differing = [(name, one or None, other or None) for name, one, other in named if one != other]
        if self.missing is None and None in (first.client_states, second.client_states):
            return [each for each in differing if each[0] == "state"]
        return differing

    @property
    def stack_sizes(self) -> tuple[int, int] | None:
        """The stack sizes of both runs if they differ: then rounding differs too."""
        if self.first is None or self.second is None or self.first.stack_size == self.second.stack_size:
            return None
        return self.first.stack_size, self.second.stack_size


class Verdict(NamedTuple):
    """The result of a comparison.

    Attributes:
        rounds: number of equal rounds before the first difference.
        difference: the first round that differs; None if all rounds are equal.
        only_with_client_states: the run, "first" or "second", that alone has client states in a round:
            they are not compared. None if both runs have them, or none.
    """

    rounds: int
    difference: Difference | None
    only_with_client_states: Literal["first", "second"] | None = None


def compare_digests(first: Mapping[int, RoundDigests], second: Mapping[int, RoundDigests]) -> Verdict:
    """Compare two runs round by round; a round of only one run is a difference too."""
    agreed = 0
    for number in sorted({*first, *second}):
        one, other = first.get(number), second.get(number)
        if one is None or not one.agrees(other):
            return Verdict(agreed, Difference(number, one, other))
        agreed += 1
    return Verdict(agreed, None, _find_only_with_client_states(first, second))


def _find_only_with_client_states(
    first: Mapping[int, RoundDigests], second: Mapping[int, RoundDigests]
) -> Literal["first", "second"] | None:
    """Find the run that has client states in a round in which the other one has none."""
    for number in first.keys() & second.keys():
        one, other = first[number].client_states, second[number].client_states
        if (one is None) != (other is None):
            return "second" if one is None else "first"
    return None


def list_digests(records: Iterable[Mapping[str, Any]]) -> dict[int, RoundDigests]:
    """Return the digests of round records, by round number.

    Raises:
        KeyError, TypeError: an item is no round record.
    """
    return {int(record["round"]): _read_round_digests(record) for record in records}


def _read_round_digests(record: Mapping[str, Any]) -> RoundDigests:
    width = (record.get("engine") or {}).get("width", 1)
    return RoundDigests(str(record["digest"]), record.get("memory_digest"), int(width))


def read_digests(path: Path) -> dict[int, RoundDigests]:
    """Read the digests of a run from files; see `read_records`.

    Raises:
        SettingsError: there are no round records.
    """
    try:
        return list_digests(read_records(path))
    except (ValueError, KeyError, TypeError) as error:
        raise make_no_records_error(path, f"{type(error).__name__}: {error}") from None
