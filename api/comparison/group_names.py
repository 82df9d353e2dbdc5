"""Names of groups of runs, and what differs between them: labels of a sweep, or fields of the specs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from api.comparison.compared_run import ComparedRun
from jobs.spec.grid import FIELDS_WITHOUT_EFFECT
from jobs.spec.spec_text import CATALOGUE_SECTIONS

CATALOGUES = {"privacy": "kind"} | {path: next(iter(keys)) for path, keys in CATALOGUE_SECTIONS.items()}
"""Fields whose value has a name of its own, and the key of that name: `fedprox` needs no `algorithm=`."""

MOST_LETTERS = 40  # of one value
MOST_ITEMS = 4  # of a list
MOST_TERMS = 3  # of a name; of more terms, a name has only those that it needs
NO_FIELD = "–"

Rows: TypeAlias = Sequence[Sequence[ComparedRun]]
"""The runs of each group."""


@dataclass(frozen=True)
class FieldDifference:
    """A field of the specs that differs.

    Attributes:
        field: dotted path.
        values: a text for each group.
    """

    field: str
    values: list[str]


def shorten(value: Any) -> str:
    """Write a value of a spec in few words, never as JSON: `dirichlet beta=0.1`, `0.9, 0.99`."""
    if isinstance(value, Mapping):
        names = [shorten(value[key]) for key in ("name", "kind") if key in value]
        rest = [f"{key}={shorten(each)}" for key, each in value.items() if key not in ("name", "kind")]
        return _cut(" ".join([*names, *rest]))
    if isinstance(value, list | tuple):
        more = ["…"] if len(value) > MOST_ITEMS else []
        return _cut(", ".join([*map(shorten, value[:MOST_ITEMS]), *more]) or "none")
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


def _shorten_label(text: str) -> str:
    """Shorten a label; sweeps of older versions wrote a mapping or a list as JSON."""
    try:
        return shorten(json.loads(text)) if text[:1] in ("{", "[") else _cut(text)
    except ValueError:
        return _cut(text)


def make_plain_name(run: ComparedRun) -> str:
    """Return the name of a run, with short labels in place of JSON."""
    name = run.name
    for label in run.labels.values():
        if label[:1] in ("{", "["):
            name = name.replace(label, _shorten_label(label))
    return name


def list_differences(rows: Rows) -> list[FieldDifference]:
    """List the fields of the specs that differ between groups; names and unknown specs are left out."""
    specs = [[dict(_flatten(run.fields)) for run in row if run.fields] for row in rows]
    every = [spec for row in specs for spec in row]
    fields = dict.fromkeys(field for spec in every for field in spec)
    found = []
    for field in fields:
        marks = {
            tuple(sorted({json.dumps(spec.get(field), default=str) for spec in row})) for row in specs if row
        }
        if len(marks) > 1:
            owners = _find_owners(field, every)
            written = [dict.fromkeys(_write(spec, field, owners) for spec in row) for row in specs]
            texts = [", ".join(words) or NO_FIELD for words in written]
            found.append(FieldDifference(field, texts))
    return found


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a spec: `algorithm` has the name of the algorithm, `algorithm.mu` its parameter.

    A parameter that is a mapping, such as the blocks of a model, is one field: its keys are free words.
    """
    if not isinstance(value, Mapping) or path.rpartition(".")[0] in CATALOGUES:
        yield path, value
        return
    for name, each in value.items():
        if name == CATALOGUES.get(path):
            yield path, each
        else:
            yield from _flatten(each, f"{path}.{name}" if path else str(name))


def _find_owners(field: str, every: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the entries that have this parameter in one of the specs, such as `fedprox` for its `mu`."""
    section = _find_section(field)
    return {str(spec.get(section)) for spec in every if field in spec} if section else set()


def _write(spec: Mapping[str, Any], field: str, owners: Collection[str]) -> str:
    if field in spec:
        return shorten(spec[field])
    # A parameter that is not in the spec has its default, if the entry has it at all.
    return "default" if str(spec.get(_find_section(field))) in owners else NO_FIELD


def _find_section(field: str) -> str:
    return next((section for section in CATALOGUES if field.startswith(f"{section}.")), "")


def name_groups(rows: Rows) -> list[str]:
    """Return one name for each group: `fedprox mu=0.1`, `lr=0.1`.

    The name has the labels of a sweep, else the fields that differ. Groups without a difference have the name
    of their runs. All names are different, unless one run is given twice.
    """
    names = _join_terms(_list_label_terms(rows), len(rows))
    if len(set(names)) < len(rows) or "" in names:
        names = _join_terms(_list_field_terms(rows), len(rows))
    names = [name or _find_common_name(row) for name, row in zip(names, rows, strict=True)]
    for word in (lambda run: f"seed {run.seed}", make_plain_name, lambda run: run.run):
        counts = Counter(names)
        names = [
            f"{name}, {word(row[0])}" if counts[name] > 1 and len(row) == 1 and word(row[0]) != name else name
            for name, row in zip(names, rows, strict=True)
        ]
    return names


def _list_label_terms(rows: Rows) -> list[list[str]]:
    """List the terms of a sweep's labels, a text for each group; none if the runs are not of one sweep."""
    groups = {run.labels.get("group") for row in rows for run in row}
    if len(groups) != 1 or None in groups:
        return []
    shared = [
        {
            key: value
            for key, value in row[0].labels.items()
            if all(run.labels.get(key) == value for run in row)
        }
        for row in rows
    ]
    every = dict.fromkeys(key for labels in shared for key in labels)
    keys = [key for key in every if key != "seed" and len({labels.get(key) for labels in shared}) > 1]
    short = _shorten_paths(keys)
    return [
        [_make_label_term(key, short[key], labels[key]) if key in labels else "" for labels in shared]
        for key in keys
    ]


def _make_label_term(key: str, short: str, label: str) -> str:
    # The label of a named value, such as `skewed` of an axis `data`, says enough by itself.
    is_value = "." in key or re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?|true|false|null", label)
    return f"{short}={_shorten_label(label)}" if is_value and key not in CATALOGUES else _shorten_label(label)


def _shorten_paths(paths: Sequence[str]) -> dict[str, str]:
    """Return the last word of each path; the whole path if two paths have the same last word."""
    words = {path: path.rpartition(".")[2] for path in paths}
    counts = Counter(words.values())
    return {path: word if counts[word] == 1 else path for path, word in words.items()}


def _list_field_terms(rows: Rows) -> list[list[str]]:
    """List the terms of the fields that differ. The name of an entry needs no path: `fedprox mu=0.1`."""
    differences = [
        each
        for each in list_differences(rows)
        if each.field != "seed" and each.field.partition(".")[0] not in FIELDS_WITHOUT_EFFECT
    ]
    named = {each.field: each.values for each in differences if each.field in CATALOGUES}
    entries = [
        [_make_entry_term(section, values, place, differences) for place in range(len(rows))]
        for section, values in named.items()
    ]
    plain = [
        each for each in differences if each.field not in named and _find_section(each.field) not in named
    ]
    short = _shorten_paths([each.field for each in plain])
    return entries + [
        ["" if value == NO_FIELD else f"{short[each.field]}={value}" for value in each.values]
        for each in plain
    ]


def _make_entry_term(
    section: str, values: Sequence[str], place: int, differences: Sequence[FieldDifference]
) -> str:
    """Write an entry with the parameters in which other groups with this entry differ."""
    if values[place] in ("none", NO_FIELD):
        return f"no {section.rpartition('.')[2]}"
    words = [values[place]]
    same = [other for other, value in enumerate(values) if value == values[place]]
    for each in differences:
        own = each.values[place]
        is_own = _find_section(each.field) == section and own != NO_FIELD
        if is_own and any(each.values[other] != own for other in same):
            words.append(f"{each.field.removeprefix(f'{section}.')}={own}")
    return " ".join(words)


def _join_terms(terms: Sequence[Sequence[str]], size: int) -> list[str]:
    """Join the terms to one name for each group; of many terms only the first that tell the groups apart."""

    def join(most: int) -> list[str]:
        return [", ".join(filter(None, (texts[row] for texts in terms[:most]))) for row in range(size)]

    if len(terms) <= MOST_TERMS:
        return join(MOST_TERMS)
    enough = (most for most in range(1, len(terms) + 1) if len(set(join(most))) == size)
    return join(next(enough, MOST_TERMS))


def _find_common_name(row: Sequence[ComparedRun]) -> str:
    """Return the name that the runs of a group have in common, without the seed."""
    names = [make_plain_name(run) for run in row]
    common = names[0]
    while len(names) > 1 and common and not all(name.startswith(common) for name in names):
        common = common[:-1]
    if len(set(names)) == 1:
        return common
    return re.sub(r"[-_ .,:;]*(seed)?[-_ .=]*\d*$", "", common, flags=re.IGNORECASE) or names[0]
