"""Curves and changes that an algorithm reports in its round records, for a report and for the page.

No algorithm is known by name; the type of a value decides how it is drawn:

    a number                 one curve, if it changes                     temperature: 4.5
    text, true or false      a change where it differs from before        phase: "2 of 3"
    a list of texts          a change where it differs from before        open_blocks: ["conv1", "head"]
    a list of integers       clients or rounds: a change for each that    frozen: [3, 17]
                             is added or removed, and a curve of their number
    a list of other numbers  one curve for each place of the list         quantiles: [0.1, 0.4]
    integers by client       the name contains "cluster": the clusters    clusters: [0, 2, 1, 0]

A record may hold only the first items of a long list X. Beside a list `newly_X`, X itself gives no changes;
beside a number `X_clients` or `X_count`, X gives no curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from jobs.store.records import RoundRecord

MOST_LINES = 8
MOST_CHANGES = 24
"""Changes of one name. A value that changes more often, such as in every round, gives no changes at all."""

MOST_NAMED = 4

Values = list[Any]
"""One value of the algorithm, record by record; None where the record does not have it."""


class MethodChange(NamedTuple):
    """A change that the algorithm reports.

    Attributes:
        place: index of the record, from 0.
        text: all changes of that round, e.g. `phase: 2 of 2; frozen: none`.
        lasting: the part of `text` that stays true in later rounds, e.g. `phase: 2 of 2`.
    """

    place: int
    text: str
    lasting: str


def format_name(name: str) -> str:
    """Write a name for people: `client_curriculum.mean_loss` becomes `client curriculum: mean loss`."""
    return name.replace("_", " ").replace(".", ": ")


def flatten_values(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """List nested values by dotted names; a mapping from client numbers to integers becomes a list."""
    for key, value in mapping.items():
        if isinstance(value, Mapping) and _is_by_client(value):
            yield prefix + key, list(value.values())
        elif isinstance(value, Mapping):
            yield from flatten_values(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _is_by_client(value: Mapping[str, Any]) -> bool:
    numbered = len(value) > 1 and all(key == str(place) for place, key in enumerate(value))
    return numbered and all(isinstance(each, int) for each in value.values())


def find_method_curves(records: Sequence[RoundRecord]) -> dict[str, list[tuple[str, Values]]]:
    """Return the curves of each name as lines `(title, values)`; a line that never changes is left out."""
    histories = _histories(records)
    drawn = {name: [*_lines(name, values, histories)] for name, values in histories.items()}
    varying = {name: [line for line in lines if _varies(line[1])] for name, lines in drawn.items()}
    return {name: lines for name, lines in varying.items() if lines}


def find_method_changes(records: Sequence[RoundRecord]) -> list[MethodChange]:
    """Return the changes, at most one entry for each round."""
    every: dict[int, list[MethodChange]] = {}
    histories = _histories(records)
    for name, values in histories.items():
        if f"newly_{name}" in histories:
            continue
        changes = _changes(format_name(name), values, _find_kind(name, values))
        found = list(islice(changes, MOST_CHANGES + 1))
        if len(found) <= MOST_CHANGES and any(change.place for change in found):
            for change in found:
                every.setdefault(change.place, []).append(change)
    return [_join_changes(every[place]) for place in sorted(every)]


def find_clusters(records: Sequence[RoundRecord], clients: int) -> list[int] | None:
    """Return the cluster of each client, as the algorithm reported it last; None without clusters.

    Args:
        records: round records, in order.
        clients: least length of the list. A shorter list is no list of clients, e.g. the sizes of clusters.
    """
    for record in reversed(records):
        for name, value in flatten_values(record.method):
            is_list = "cluster" in name and isinstance(value, list) and len(value) >= max(1, clients)
            if is_list and all(isinstance(each, int) for each in value):
                return list(value)
    return None


def _join_changes(found: Sequence[MethodChange]) -> MethodChange:
    lasting = "; ".join(change.lasting for change in found if change.lasting)
    return MethodChange(found[0].place, "; ".join(change.text for change in found), lasting)


def _histories(records: Sequence[RoundRecord]) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for index, record in enumerate(records):
        for name, value in flatten_values(record.method):
            found.setdefault(name, [None] * len(records))[index] = value
    return found


def _find_kind(name: str, values: Values) -> str:
    """Return `number`, `words`, `members` (integers), `numbers`, or `nothing` if the value is not drawn."""
    kinds = [_find_kind_of_value(value) for value in values if value not in (None, [])]
    # A list with fractions in any round is no list of clients.
    kind = "numbers" if "numbers" in kinds else next(iter(kinds), "nothing")
    return "nothing" if kind == "members" and "cluster" in name else kind


def _find_kind_of_value(value: Any) -> str:
    if not isinstance(value, list):
        return "number" if _is_number(value) else "words"
    if any(isinstance(each, str) for each in value):
        return "words"
    if not all(each is None or _is_number(each) for each in value):
        return "nothing"
    return "members" if all(isinstance(each, int) for each in value) else "numbers"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _varies(values: Values) -> bool:
    return len({value for value in values if value is not None}) > 1


def _lines(name: str, values: Values, histories: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
    kind, lists = _find_kind(name, values), [value if isinstance(value, list) else None for value in values]
    if kind == "number":
        yield format_name(name), [value if _is_number(value) else None for value in values]
    elif kind == "members" and f"{name}_clients" not in histories and f"{name}_count" not in histories:
        yield f"number of {format_name(name)}", [None if each is None else len(each) for each in lists]
    elif kind == "numbers":
        for place in range(min(MOST_LINES, max(len(each or ()) for each in lists))):
            points = [each[place] if each is not None and place < len(each) else None for each in lists]
            yield f"{format_name(name)} {place + 1}", points


def _changes(title: str, values: Values, kind: str) -> Iterator[MethodChange]:
    if kind == "words":
        texts = [None if value is None else _format_value(value) for value in values]
        yield from _find_text_changes(title, texts)
    elif kind == "members" and title.startswith("newly "):
        for index, clients in enumerate(values):
            if clients:
                yield MethodChange(index, f"{title}: {_format_clients(clients)}", "")
    elif kind == "members":
        lists = [value or [] for value in values]
        for index, (before, now) in enumerate(zip([[], *lists], lists, strict=False)):
            if moved := _describe_client_changes(before, now):
                yield MethodChange(index, f"{title}: {moved}", "")


def _find_text_changes(title: str, texts: Sequence[str | None]) -> Iterator[MethodChange]:
    around = [None, *texts, None]
    for index, (before, text, after) in enumerate(zip(around, texts, around[2:], strict=False)):
        if text in (None, before):
            continue
        # A text of one round alone, with none before and after it, does not last.
        lasts = index == 0 or before is not None or after is not None
        yield MethodChange(index, f"{title}: {text}", f"{title}: {text}" if lasts else "")


def _describe_client_changes(before: list[int], now: list[int]) -> str:
    if before and not now:
        return "none"
    old, new = set(before), set(now)
    added = [each for each in now if each not in old]
    removed = [each for each in before if each not in new]
    signed = (("+", added), ("−", removed))
    return " ".join(f"{sign} {_format_clients(clients)}" for sign, clients in signed if clients)


def _format_clients(clients: list[int]) -> str:
    return str(len(clients)) if len(clients) > MOST_NAMED else ", ".join(map(str, clients))


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
