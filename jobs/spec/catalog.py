"""The catalogue: what a spec may name, with the parameters of each entry as a JSON schema."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from fedsim.algorithms import ALGORITHMS
from fedsim.base.parameter_docs import read_parameter_docs
from fedsim.base.parameters import Parameter, Range, list_parameters
from fedsim.core import Algorithm
from fedsim.data import DATASETS, PARTITIONS
from fedsim.models import MODELS, why_unstackable
from fedsim.plugins import Registry

Kind = Literal["algorithms", "models", "datasets", "partitions"]
Entry = dict[str, Any]

_PLAIN: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    types.NoneType: "null",
}


def catalogue(kind: Kind) -> list[Entry]:
    """Every entry of one kind, by name.

    Args:
        kind: "algorithms", "models", "datasets" or "partitions".

    Returns:
        Entries with `name`, `summary`, `parameters` (a JSON schema of an object), `plugin` (the package and
        version that bring it, "" for fedsim's own) and what else the kind has to say.
    """
    registry, describe = _ENTRIES[kind]
    return [
        describe(name, entry) | {"plugin": registry.source(name)} for name, entry in sorted(registry.items())
    ]


def _algorithm(name: str, algorithm: type[Algorithm]) -> Entry:
    module = inspect.getmodule(algorithm)
    source = inspect.cleandoc(module.__doc__ or "") if module else ""
    title = source.split("\n\n")[0].rstrip(".")
    return {
        "name": name,
        "summary": _first_line(algorithm),
        "parameters": _schema(algorithm),
        "paper": title,
        "documentation": source,
        "uploads": {payload: str(reduction) for payload, reduction in algorithm.uploads.items()},
        "keeps_memory": algorithm.stateful,
    }


def _model(name: str, function: Callable[..., Any]) -> Entry:
    why_not = why_unstackable(name)
    return {
        "name": name,
        "summary": _first_line(function),
        "parameters": _schema(function),
        "stacks": not why_not,
        "why_not_stacked": why_not,
    }


def _dataset(name: str, entry: Any) -> Entry:
    return {
        "name": name,
        "summary": entry.summary,
        "parameters": _schema(entry.load),
        "looks": entry.locations,
        "get": entry.how_to_get,
    }


def _partition(name: str, entry: Any) -> Entry:
    return {
        "name": name,
        "summary": entry.summary,
        "parameters": _schema(entry.make),
        "shares": entry.shares_examples,
    }


_ENTRIES: Mapping[str, tuple[Registry[Any], Callable[[str, Any], Entry]]] = {
    "algorithms": (ALGORITHMS, _algorithm),
    "models": (MODELS, _model),
    "datasets": (DATASETS, _dataset),
    "partitions": (PARTITIONS, _partition),
}


def _first_line(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "").split("\n")[0].rstrip(".")


def _schema(function: Callable[..., Any]) -> Entry:
    """The parameters as the JSON schema of an object; nothing else is allowed in it."""
    found, meanings = list_parameters(function), read_parameter_docs(function)
    return {
        "type": "object",
        "properties": {each.name: _property(each, meanings.get(each.name, "")) for each in found},
        "required": [parameter.name for parameter in found if parameter.required],
        "additionalProperties": False,
    }


def _property(parameter: Parameter, meaning: str) -> Entry:
    schema = _type(parameter.kind) | ({"description": meaning} if meaning else {})
    if not parameter.required:
        default: Any = parameter.default
        if isinstance(default, tuple):
            default = list(default)
        schema["default"] = dict(default) if isinstance(default, Mapping) else default
    return schema


def _type(kind: Any) -> Entry:
    """The JSON schema of a type annotation, as far as parameters use them."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = next((each for each in arguments[1:] if isinstance(each, Range)), Range())
        return {**_type(arguments[0]), **_bounds(bounds)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_type(each) for each in arguments]}
    if origin in (tuple, list):
        return {"type": "array", "items": _type(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object"}
    return {"type": _PLAIN[kind]} if kind in _PLAIN else {}


def _bounds(bounds: Range) -> Entry:
    named = {
        "minimum": bounds.minimum,
        "maximum": bounds.maximum,
        "exclusiveMinimum": bounds.above,
        "exclusiveMaximum": bounds.below,
    }
    return {name: bound for name, bound in named.items() if bound is not None}
