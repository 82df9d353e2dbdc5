"""Error messages for the fields of a spec: path, value, a sentence and a hint, from pydantic's errors.

The hints read ranges and choices from the JSON schema, so that they always agree with the check.
"""

from __future__ import annotations

import difflib
import json
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from fedsim.errors import FieldError

MAX_DEPTH = 12
MAX_VALUES = 10_000
MAX_TEXT = 10_000

MAX_SOURCE = 100_000
"""The limit for the text of a Python file with a model."""
MAX_TRANSLATED = 200
"""Errors of one spec that get a message: each looks for a similar name, and thousands would take seconds."""

MAX_SHOWN = 200

EXACT_BITS = 53
"""Bits of the largest whole numbers that JavaScript does not round."""

LARGEST_BITS = 64
"""Bits of the largest whole number in an answer, as a number."""

MOST_DIGITS_BITS = 600
"""Bits of the largest whole number that an error shows with all digits, as text."""

SENTENCES = MappingProxyType(
    {
        "missing": "is missing",
        "int_type": "is not a whole number",
        "float_type": "is not a number",
        "finite_number": "is not a finite number",
        "string_type": "is not a text",
        "string_too_short": "is empty",
        "string_too_long": "is too long",
        "greater_than": "is too small",
        "greater_than_equal": "is too small",
        "less_than": "is too large",
        "less_than_equal": "is too large",
        "model_type": "is not a section with fields of its own",
        "model_attributes_type": "is not a section with fields of its own",
    }
)

TAGS = frozenset({"<one>", "<several>"})
"""The names of a union's alternatives in pydantic's locations; no field has such a name."""

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]


def join_path(path: Path) -> str:
    """Return the path as text: `("model", 0)` becomes `model.0`."""
    return _make_encodable(".".join(str(part)[:MAX_SHOWN] for part in path)) or "spec"


def _make_encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def find_value_faults(value: Any, path: Path = ()) -> Iterator[FieldError]:
    """Find values that no field may hold: no JSON, text that no database stores, too deep nesting."""
    if len(path) > MAX_DEPTH:
        yield FieldError(
            join_path(path), shorten_value(value), "is nested too deeply", f"{MAX_DEPTH} levels are enough"
        )
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str) or not 0 < len(key) <= MAX_SHOWN or _is_unprintable(key):
                yield FieldError(
                    join_path(path),
                    shorten_value(key),
                    "has a key that is not a short plain text",
                    "rename it",
                )
            else:
                yield from find_value_faults(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from find_value_faults(item, (*path, index))
    else:
        is_source = path[:1] == ("model",) and path[-1] == "source"
        sentence = _find_leaf_fault(value, MAX_SOURCE if is_source else MAX_TEXT)
        if sentence:
            yield FieldError(
                join_path(path), shorten_value(value), sentence, "write a plain YAML or JSON value"
            )


def _find_leaf_fault(value: Any, limit: int) -> str:
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        if len(value) > limit:
            return "is too long"
        return "holds characters that cannot be stored" if _is_unprintable(value) else ""
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**63 else "is too large to be stored"
    if isinstance(value, float):
        return "" if math.isfinite(value) else "is not a finite number"
    return f"is a {type(value).__name__}, which a spec cannot hold"


def _is_unprintable(text: str) -> bool:
    return any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" for c in text)


def count_values(value: Any) -> int:
    """Count the values of a spec; stop above `MAX_VALUES`."""
    total, stack = 0, [value]
    while stack and total <= MAX_VALUES:
        item = stack.pop()
        total += 1
        if isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return total


def shorten_value(value: Any) -> Any:
    """Return the value for an error: unchanged if it is short plain JSON, else the start of its text.

    A whole number that JavaScript would round is text too.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        if len(text.encode()) <= MAX_SHOWN and not holds_large_number(value, EXACT_BITS):
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    if isinstance(value, int) and value.bit_length() > MOST_DIGITS_BITS:
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = _make_encodable(value if isinstance(value, str) else repr(value))
    except RecursionError:
        return "a value that is nested too deeply to be shown"
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a value with a whole number that is too long to be shown"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def holds_large_number(value: Any, bits: int) -> bool:
    """Return whether plain data holds a whole number of more bits."""
    if isinstance(value, Mapping):
        return any(holds_large_number(each, bits) for each in value.values())
    if isinstance(value, (list, tuple)):
        return any(holds_large_number(each, bits) for each in value)
    return isinstance(value, int) and value.bit_length() > bits


def translate_errors(error: ValidationError, schema: Schema) -> list[FieldError]:
    """Translate pydantic's errors into fedsim's messages, one per path, and the first `MAX_TRANSLATED`."""
    found: dict[str, FieldError] = {}
    items = error.errors(include_url=False)
    for item in items[:MAX_TRANSLATED]:
        fault = _translate_error(item, schema)
        found.setdefault(fault.path, fault)
    if (rest := len(items) - MAX_TRANSLATED) > 0:
        found["spec"] = FieldError("spec", None, f"has {rest:,} more errors", "fix these first")
    return list(found.values())


def _translate_error(item: Mapping[str, Any], schema: Schema) -> FieldError:
    kind, context = item["type"], item.get("ctx", {})
    path = _remove_tags(item["loc"], schema)
    if kind == "fedsim":
        field = context["field"]
        value = item["input"]
        if field:
            path, value = (*path, field), _read_field(value, field)
        return FieldError(join_path(path), shorten_value(value), context["message"], context["hint"])
    if kind == "extra_forbidden":
        return _make_unknown_field_error(path, item["input"], schema)
    value = None if kind == "missing" else shorten_value(item["input"])
    nodes = find_schema_nodes(schema, path)
    if kind == "missing" and path == ("algorithm",):
        return FieldError("algorithm", None, "is missing", "the smallest spec is: algorithm: fedavg")
    sentence = SENTENCES.get(kind, "is none of what this version allows here")
    return FieldError(join_path(path), value, sentence, f"allowed: {describe_allowed(schema, nodes)}")


def _read_field(section: Any, field: str) -> Any:
    for name in field.split("."):
        section = section.get(name) if isinstance(section, Mapping) else getattr(section, name, None)
    return section


def _make_unknown_field_error(path: Path, value: Any, schema: Schema) -> FieldError:
    name = join_path(path)
    siblings = field_names(schema, path[:-1])
    where = f"of '{join_path(path[:-1])}'" if path[:-1] else "of a spec"
    return FieldError(
        name, shorten_value(value), f"is not a field {where}", _guess_hint(str(path[-1]), siblings, schema)
    )


def _guess_hint(wrong: str, siblings: Sequence[str], schema: Schema) -> str:
    sections = [section for section in field_names(schema, ()) if wrong in field_names(schema, (section,))]
    close = [f"{section}.{wrong}" for section in sections]
    if close := close or difflib.get_close_matches(wrong.lower(), siblings, n=1):
        return f"did you mean {close[0]!r}?"
    return f"fields here: {', '.join(siblings)}"


def expand_variants(schema: Schema, node: Schema) -> list[Schema]:
    """Return the alternatives of a schema node, with references resolved."""
    if "$ref" in node:
        return expand_variants(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[1]])
    if "anyOf" in node or "oneOf" in node:
        options = [*node.get("anyOf", ()), *node.get("oneOf", ())]
        return [v for option in options for v in expand_variants(schema, option)]
    return [node]


def find_schema_nodes(schema: Schema, path: Path) -> list[Schema]:
    """Return the schema nodes that describe a path; [] for an unknown path."""
    nodes: list[Schema] = [schema]
    for part in path:
        options = [v for node in nodes for v in expand_variants(schema, node)]
        nodes = [v["properties"][part] for v in options if part in v.get("properties", {})]
        if isinstance(part, int):
            nodes = [v["items"] for v in options if "items" in v]
    return nodes


def field_names(schema: Schema, path: Path) -> list[str]:
    """Return the fields of a section, in the order of the schema."""
    options = [v for node in find_schema_nodes(schema, path) for v in expand_variants(schema, node)]
    return [name for v in options if v.get("additionalProperties") is False for name in v["properties"]]


def _remove_tags(location: Sequence[str | int], schema: Schema) -> Path:
    """Return the location without the names that pydantic adds for the alternatives of a union."""
    path: Path = ()
    for part in location:
        options = [v for node in find_schema_nodes(schema, path) for v in expand_variants(schema, node)]
        inside = "items" if isinstance(part, int) else "properties"
        if any(inside in v and part not in TAGS for v in options):
            path = (*path, part)
    return path


def describe_allowed(schema: Schema, nodes: Sequence[Schema]) -> str:
    """Describe the allowed values of a node: `a number above 0 and at most 1`."""
    options = [v for node in nodes for v in expand_variants(schema, node)]
    return " or ".join(dict.fromkeys(_describe_node(v) for v in options)) or "nothing"


def _describe_node(node: Schema) -> str:
    if "const" in node:
        return repr(node["const"])
    if "enum" in node:
        return ", ".join(repr(value) for value in node["enum"])
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "a text",
        "null": "null",
        "object": "a mapping",
        "array": "a list",
        "boolean": "true or false",
    }
    text = words[node["type"]]
    if node["type"] == "object" and node.get("properties"):
        return f"{text} with {', '.join(node['properties'])}"
    if "maxLength" in node:
        return f"{text} of 1 to {node['maxLength']} characters"
    return f"{text} {_describe_range(node)}".rstrip()


def _describe_range(node: Schema) -> str:
    if "minimum" in node and "maximum" in node:
        return f"from {_format_number(node['minimum'])} to {_format_number(node['maximum'])}"
    words = {
        "exclusiveMinimum": "above",
        "minimum": "of at least",
        "exclusiveMaximum": "below",
        "maximum": "at most",
    }
    return " and ".join(f"{word} {_format_number(node[key])}" for key, word in words.items() if key in node)


def _format_number(number: float) -> str:
    return f"{number:,}".replace(",", "_")
