"""What a method says of its rounds, as curves and marks of a report; so does the page in `method.js`.

No method is known by name. A number that changes is a curve, a list of numbers a curve for each place; texts,
and lists of texts, are marks where they change; of a list of whole numbers, such as clients, who came and who
went is a mark. Such a list X may be cut short: where there is a list newly_X, its members are the marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jobs.store.records import RoundRecord

MOST_LINES = 8
MOST_MARKS = 24
"""Of one name: what changes nearly every round is no mark."""

MOST_NAMED = 4

Values = list[Any]
"""One value of the method, record by record; None where it was not told."""


class MethodChange(NamedTuple):
    """Something that changes.

    Attributes:
        place: in which record, from 0.
        text: what, in words.
        lasting: the part of the words that goes on from there, as a phase does.
    """

    place: int
    text: str
    lasting: str


def flatten_values(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values by dotted names; a mapping from each client's number to a whole number is a list."""
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
    """The curves of a method by name, each of lines `(name, values)`; what never changes is none."""
    histories = _histories(records)
    drawn = {name: [*_lines(name, values, histories)] for name, values in histories.items()}
    varying = {name: [line for line in lines if _varies(line[1])] for name, lines in drawn.items()}
    return {name: lines for name, lines in varying.items() if lines}


def find_method_changes(records: Sequence[RoundRecord]) -> list[MethodChange]:
    """Where what a method says in words changes, all of one round together."""
    every: dict[int, list[MethodChange]] = {}
    histories = _histories(records)
    for name, values in histories.items():
        if f"newly_{name}" in histories:
            continue
        found = list(_changes(_words(name), values, _kind(name, values)))
        if len(found) <= MOST_MARKS and any(mark.place for mark in found):
            for mark in found:
                every.setdefault(mark.place, []).append(mark)
    return [_together(every[place]) for place in sorted(every)]


def _together(found: Sequence[MethodChange]) -> MethodChange:
    lasting = "; ".join(mark.lasting for mark in found if mark.lasting)
    return MethodChange(found[0].place, "; ".join(mark.text for mark in found), lasting)


def _histories(records: Sequence[RoundRecord]) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for index, record in enumerate(records):
        for name, value in flatten_values(record.method):
            found.setdefault(name, [None] * len(records))[index] = value
    return found


def _kind(name: str, values: Values) -> str:
    """`number`, `words`, `members` (whole numbers), `numbers` or `nothing` for what is not drawn."""
    told = [value for value in values if value not in (None, [])]
    kinds = [_kind_of(value) for value in told]
    # Whole numbers in one round are no clients where there are fractions in another.
    kind = "numbers" if "numbers" in kinds else next(iter(kinds), "nothing")
    return "nothing" if kind == "members" and "cluster" in name else kind


def _kind_of(value: Any) -> str:
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
    return len({value for value in values if _is_number(value)}) > 1


def _lines(name: str, values: Values, histories: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
    kind, lists = _kind(name, values), [value if isinstance(value, list) else None for value in values]
    if kind == "number":
        yield _words(name), values
    elif kind == "members" and f"{name}_clients" not in histories and f"{name}_count" not in histories:
        yield f"{_words(name)}, how many", [None if each is None else len(each) for each in lists]
    elif kind == "numbers":
        for place in range(min(MOST_LINES, max(len(each or ()) for each in lists))):
            points = [each[place] if each is not None and place < len(each) else None for each in lists]
            yield f"{_words(name)} {place + 1}", points


def _changes(words: str, values: Values, kind: str) -> Iterator[MethodChange]:
    if kind == "words":
        yield from _find_text_changes(
            words, [None if value is None else _format_value(value) for value in values]
        )
    elif kind == "members" and words.startswith("newly "):
        yield from (
            MethodChange(index, f"{words}: {_few(who)}", "") for index, who in enumerate(values) if who
        )
    elif kind == "members":
        lists = [value or [] for value in values]
        for index, (before, now) in enumerate(zip([[], *lists], lists, strict=False)):
            if moved := _describe_client_changes(before, now):
                yield MethodChange(index, f"{words}: {moved}", "")


def _find_text_changes(words: str, texts: Sequence[str | None]) -> Iterator[MethodChange]:
    around = [None, *texts, None]
    for index, (before, text, after) in enumerate(zip(around, texts, around[2:], strict=False)):
        if text in (None, before):
            continue
        # With nothing before and after it, it is said in passing.
        lasts = index == 0 or before is not None or after is not None
        yield MethodChange(index, f"{words}: {text}", f"{words}: {text}" if lasts else "")


def _describe_client_changes(before: list[int], now: list[int]) -> str:
    if before and not now:
        return "none"
    came = [each for each in now if each not in before]
    went = [each for each in before if each not in now]
    return " ".join(f"{sign} {_few(who)}" for sign, who in (("+", came), ("−", went)) if who)


def _few(clients: list[int]) -> str:
    return str(len(clients)) if len(clients) > MOST_NAMED else ", ".join(map(str, clients))


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ").replace(".", ": ")
