"""The text of a spec: YAML or JSON, and the `PATH=VALUE` overrides of the command line.

A spec is plain data. Tags, anchors, duplicate keys and keys that are not text are errors. Plain scalars
follow the core schema of YAML 1.2, not YAML 1.1: `1e-5` is a number, `no` is a text and `12:30` is not 750.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import yaml

from fedsim.errors import FieldError, SpecError
from jobs.spec.error_messages import MAX_DEPTH as MAX_PARTS
from jobs.spec.error_messages import MAX_SHOWN, shorten_value

MAX_CHARACTERS = 1_000_000
MAX_YAML_CHARACTERS = 100_000
"""The limit for YAML, which takes a hundred times as long to read as JSON."""

MAX_NODES = 20_000
"""The most keys and values of a text: more than any spec has."""

MAX_DEPTH = 40

CATALOGUE_SECTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "algorithm": {"name": "fedavg"},
        "model": {"name": "mlp"},
        "data.dataset": {"name": "digits"},
        "data.partition": {"kind": "dirichlet", "beta": 0.5, "min_size": 1},
        "clients.sampler": {"name": "uniform"},
        "local.optimizer": {"name": "sgd"},
        "local.schedule": {"name": "constant"},
        "attack": {"name": None},
        "aggregation": {"name": None},
        "compression": {"name": None},
        "devices.fleet": {"name": None},
        "devices.policy": {"name": "wait"},
    }
)
"""Sections that are an entry of a catalogue, with their defaults. The first key is that of the entry's name,
which may be written in place of the section; None: the section has no default."""

WORD_SECTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {**CATALOGUE_SECTIONS, "data.tests": {"kind": "global"}, "devices": {"fleet": None}}
)
"""Sections that may be written as one word: the value of their first key."""

REPLACES: Mapping[str, str] = MappingProxyType(
    {"local.steps": "local.epochs", "local.epochs": "local.steps", "model.path": "model.source"}
)
"""Setting the first field removes the second: it excludes it, or is the file whose text it is."""

_PLAIN = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, narrowed to plain data."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not allowed", problem_mark=event.start_mark
            )
        if getattr(event, "tag", None):
            raise yaml.MarkedYAMLError(
                problem=f"the tag {event.tag[:MAX_SHOWN]!r} is not allowed", problem_mark=event.start_mark
            )
        if self.depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=event.start_mark)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            problem = f"it holds more than {MAX_NODES:,} keys and values"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.MarkedYAMLError(problem="a key is not a text", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value[:MAX_SHOWN]!r} stands twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_number(self, node: Any) -> int | float:
        text = str(node.value)
        if node.tag.endswith(":int"):
            return int(text, 16) if text.startswith("0x") else int(text)
        return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))


def _add_plain_scalars(kind: Any) -> None:
    """Have a loader or a dumper take the plain scalars of `_PLAIN` for what they are."""
    for tag, pattern, first in _PLAIN:
        kind.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), list(first))


# PyYAML keeps these in class attributes: a new dict for this class leaves SafeLoader unchanged.
_Loader.yaml_implicit_resolvers = {}
_add_plain_scalars(_Loader)
for _tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    _Loader.add_constructor(_tag, _Loader.construct_number)


def parse_text(text: str) -> Any:
    """Parse YAML or JSON into plain data.

    Raises:
        SpecError: with path `spec`, if the text is neither, or holds something that a spec must not hold.
    """
    if len(text) > MAX_CHARACTERS:
        raise _make_text_error(f"is longer than {MAX_CHARACTERS:,} characters")
    try:
        if text.lstrip().startswith("{"):
            return _parse_json(text)
        return _parse_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise _make_text_error(f"cannot be read: {error.problem}{where}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _make_text_error(f"cannot be read: {str(error)[:200]}") from None


def _make_text_error(message: str) -> SpecError:
    return SpecError([FieldError("spec", None, message, "a spec is one plain YAML or JSON mapping")])


def _parse_yaml(text: str) -> Any:
    if len(text) > MAX_YAML_CHARACTERS:
        raise _make_text_error(
            f"is longer than {MAX_YAML_CHARACTERS:,} characters, which is the most for YAML"
        )
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _parse_json(text: str) -> Any:
    """Parse JSON; parse a text that only looks like JSON (YAML's flow style) as YAML."""
    try:
        data = json.loads(text, object_pairs_hook=_require_unique_keys)
    except json.JSONDecodeError:
        if len(text) > MAX_YAML_CHARACTERS:
            raise
        return _parse_yaml(text)
    _check_size(data)
    return data


def _check_size(data: Any) -> None:
    """Raise ValueError if plain data has too many levels, or too many keys and values."""
    level, nodes = [data], 1
    for _ in range(MAX_DEPTH):
        parents = [item for item in level if isinstance(item, (dict, list))]
        nodes += sum(len(item) * (2 if isinstance(item, dict) else 1) for item in parents)
        if nodes > MAX_NODES:
            raise ValueError(f"it holds more than {MAX_NODES:,} keys and values")
        level = [inner for item in parents for inner in _list_children(item)]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _list_children(item: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return item.values() if isinstance(item, dict) else item


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:MAX_SHOWN]!r} stands twice")
            seen.add(key)
    return mapping


def apply_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of the data with the values of `PATH=VALUE` items.

    A path into a section that is one word (`algorithm.mu` with `algorithm: fedprox`) expands the word to a
    mapping; a path into a missing section starts from the section's default. Of two fields that exclude each
    other (`local.steps` and `local.epochs`), setting one removes the other, unless both are set. Values are
    read as YAML.

    Raises:
        SpecError: for every item that is not `PATH=VALUE`, or whose path leads through a plain value.
    """
    pairs, errors = _parse_pairs(overrides)
    return _copy_with_values(data, pairs, errors)


def parse_set_items(items: Sequence[str]) -> dict[str, Any]:
    """Return fields by dotted path from `PATH=VALUE` items; values are read as YAML.

    Raises:
        SpecError: for every item that is not `PATH=VALUE`, or whose value cannot be read.
    """
    pairs, errors = _parse_pairs(items)
    if errors:
        raise SpecError(errors)
    return dict(pairs)


def set_fields(data: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the data with these fields set; like `apply_overrides`, with plain values.

    Raises:
        SpecError: for every path that has an empty part, or leads through a plain value.
    """
    pairs, errors = list[tuple[str, Any]](), list[FieldError]()
    for path, value in fields.items():
        if all(path.split(".")):
            pairs.append((path, copy.deepcopy(value)))
        else:
            errors.append(FieldError("set", path[:200], "is not a path", "for example: local.lr"))
    return _copy_with_values(data, pairs, errors)


def _parse_pairs(items: Sequence[str]) -> tuple[list[tuple[str, Any]], list[FieldError]]:
    pairs, errors = list[tuple[str, Any]](), list[FieldError]()
    for item in items:
        path, equals, text = item.partition("=")
        path = path.strip()
        if not equals or not all(path.split(".")):
            errors.append(FieldError("set", item, "is not PATH=VALUE", "for example: local.lr=0.01"))
            continue
        try:
            pairs.append((path, parse_text(text)))
        except SpecError as error:
            errors.extend(FieldError(path, text, e.message, e.hint) for e in error.errors)
    return pairs, errors


def _copy_with_values(
    data: Mapping[str, Any], pairs: Sequence[tuple[str, Any]], errors: list[FieldError]
) -> dict[str, Any]:
    """Return a copy of the data with these values; raise `errors` together with the errors found here."""
    result = copy.deepcopy(dict(data))
    _remove_replaced_fields(result, dict(pairs))
    for path, value in pairs:
        try:
            _write_value(result, path.split("."), value)
        except SpecError as error:
            errors.extend(
                FieldError(path[:MAX_SHOWN], shorten_value(value), e.message, e.hint) for e in error.errors
            )
    if errors:
        raise SpecError(errors)
    return result


def _remove_replaced_fields(data: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Remove the fields that are excluded by the fields about to be set."""
    for path, other in REPLACES.items():
        section, _, field = other.partition(".")
        if fields.get(path) is not None and other not in fields and isinstance(data.get(section), dict):
            data[section].pop(field, None)


def _write_value(data: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    if len(parts) > MAX_PARTS:
        hint = f"{MAX_PARTS} parts are enough"
        raise SpecError([FieldError("set", None, f"is a path of {len(parts):,} parts", hint)])
    section = data
    for depth, part in enumerate(parts[:-1], start=1):
        path = ".".join(parts[:depth])
        inner = _open_section(section.get(part), path, parts[depth])
        if not isinstance(inner, dict):
            raise SpecError(
                [
                    FieldError(
                        path, inner, f"{path[:MAX_SHOWN]!r} is a plain value here", "set that path itself"
                    )
                ]
            )
        section[part] = inner
        section = inner
    section[parts[-1]] = value


def _open_section(value: Any, path: str, next_part: str) -> Any:
    """Return the section at a path as a mapping; return a plain value as it is."""
    defaults = WORD_SECTIONS.get(path, {})
    if value is None and next_part not in ("name", "kind"):
        return {key: default for key, default in defaults.items() if default is not None}
    if value is None:
        return {}
    if isinstance(value, str) and defaults:
        return {next(iter(defaults)): value}
    if isinstance(value, list) and path == "data.tests" and value and isinstance(value[0], str):
        return {"kind": value[0], "also": value[1:]}
    return value


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """PyYAML's dumper, in C where it is there: the one in Python takes 30 ms for a spec.

    It quotes the texts that `parse_text` would read as numbers, such as `1e-3`, which YAML 1.1 does not.
    """


_Dumper.yaml_implicit_resolvers = {
    first: list(found) for first, found in yaml.SafeDumper.yaml_implicit_resolvers.items()
}
_add_plain_scalars(_Dumper)


def dump_spec(data: Mapping[str, Any]) -> str:
    """Return a spec as YAML for people: fields in their order, letters and signs as they are."""
    found: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return found
