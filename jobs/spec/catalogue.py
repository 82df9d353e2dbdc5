"""The catalogue: all names of a spec, such as its algorithms and models, with their parameters."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from fedsim.algorithms import ALGORITHMS
from fedsim.algorithms.costs import MethodCost, read_costs
from fedsim.base.paper_docs import read_paper
from fedsim.base.parameter_docs import read_parameter_docs
from fedsim.base.parameters import Parameter, Range, list_parameters
from fedsim.clock.asynchronous import Asynchronous
from fedsim.clock.fleets import FLEETS, Fleet
from fedsim.clock.policies import POLICIES, Policy
from fedsim.core import Algorithm
from fedsim.core.optimizers import OPTIMIZERS, LocalOptimizer
from fedsim.core.purposes import find_purpose
from fedsim.core.schedules import SCHEDULES, Schedule
from fedsim.data import DATASETS, PARTITIONS
from fedsim.learning_tasks.tasks import LEARNING_TASKS
from fedsim.models import MODELS, why_unstackable
from fedsim.plugins import Registry
from fedsim.samplers import SAMPLERS, Sampler
from fedsim.uploads import AGGREGATORS, ATTACKS, COMPRESSORS, Aggregator, Attack, Compressor
from jobs.kinds import Kind

Entry = dict[str, Any]

_PLAIN: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    types.NoneType: "null",
}


def catalogue(kind: Kind) -> list[Entry]:
    """Return all entries of one kind, sorted by name.

    Args:
        kind: one of `Kind`.

    Returns:
        Entries with `name`, `summary`, `parameters` (a JSON schema of an object), `plugin` (the plug-in's
        package and version, "" for fedsim's own) and further fields of the kind.
    """
    registry, describe = _ENTRIES[kind]
    find_plugin = registry.source if isinstance(registry, Registry) else lambda name: ""
    return [describe(name, entry) | {"plugin": find_plugin(name)} for name, entry in sorted(registry.items())]


def filter_by_purpose(algorithms: list[Entry], word: str) -> list[Entry]:
    """Return the entries of the algorithms for a purpose; those with it as their main purpose come first.

    Raises:
        RequestError: there is no such purpose.
    """
    purpose = find_purpose(word)
    found = [entry for entry in algorithms if purpose in entry["purposes"]]
    return sorted(found, key=lambda entry: entry["purposes"].index(purpose) > 0)


def _describe_algorithm(name: str, algorithm: type[Algorithm]) -> Entry:
    module = inspect.getmodule(algorithm)
    source = inspect.cleandoc(module.__doc__ or "") if module else ""
    title = source.split("\n\n")[0].rstrip(".")
    paper = read_paper(source)
    costs = read_costs().get(name) if name in ALGORITHMS.own else None
    return {
        "name": name,
        "summary": _first_line(algorithm),
        "parameters": _make_schema(algorithm),
        "purposes": list(algorithm.purposes),
        "paper": title,
        "citation": paper.cite() if paper else "",
        "authors": list(paper.authors) if paper else [],
        "venue": paper.venue if paper else "",
        "year": paper.year if paper else None,
        "source": paper.source if paper else "",
        "costs": costs and _describe_costs(costs),
        "documentation": source,
        "uploads": {payload: str(reduction) for payload, reduction in algorithm.uploads.items()},
        "keeps_memory": algorithm.stateful,
        "tasks": [task for task in LEARNING_TASKS if task in algorithm.tasks],
    }


def _describe_costs(costs: MethodCost) -> Entry:
    """Return what travels, and traffic and computing relative to FedAvg, with three digits."""
    traffic, computing = (float(f"{share:.3g}") for share in (costs.traffic, costs.computing))
    return asdict(costs) | {"traffic": traffic, "computing": computing}


def _describe_model(name: str, function: Callable[..., Any]) -> Entry:
    why_not = why_unstackable(name)
    return {
        "name": name,
        "summary": _first_line(function),
        "parameters": _make_schema(function),
        "stacks": not why_not,
        "why_not_stacked": why_not,
    }


def _describe_dataset(name: str, entry: Any) -> Entry:
    return {
        "name": name,
        "summary": entry.summary,
        "parameters": _make_schema(entry.load),
        "looks": entry.locations,
        "get": entry.how_to_get,
    }


def _describe_partition(name: str, entry: Any) -> Entry:
    return {
        "name": name,
        "summary": entry.summary,
        "parameters": _make_schema(entry.make),
        "shares": entry.shares_examples,
    }


_Setting: TypeAlias = (
    LocalOptimizer | Schedule | Sampler | Attack | Aggregator | Compressor | Fleet | Policy | Asynchronous
)


def _describe_setting(name: str, setting: type[_Setting]) -> Entry:
    return {"name": name, "summary": _first_line(setting), "parameters": _make_schema(setting)}


_ENTRIES: Mapping[str, tuple[Mapping[str, Any], Callable[[str, Any], Entry]]] = {
    "algorithms": (ALGORITHMS, _describe_algorithm),
    "models": (MODELS, _describe_model),
    "datasets": (DATASETS, _describe_dataset),
    "partitions": (PARTITIONS, _describe_partition),
    "samplers": (SAMPLERS, _describe_setting),
    "attacks": (ATTACKS, _describe_setting),
    "aggregators": (AGGREGATORS, _describe_setting),
    "compressors": (COMPRESSORS, _describe_setting),
    "optimizers": (OPTIMIZERS, _describe_setting),
    "schedules": (SCHEDULES, _describe_setting),
    "fleets": (FLEETS, _describe_setting),
    "policies": (POLICIES, _describe_setting),
}


def _first_line(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "").split("\n")[0].rstrip(".")


def _make_schema(function: Callable[..., Any]) -> Entry:
    """Return the parameters as the JSON schema of an object without other properties."""
    found, meanings = list_parameters(function), read_parameter_docs(function)
    return {
        "type": "object",
        "properties": {each.name: _make_property(each, meanings.get(each.name, "")) for each in found},
        "required": [parameter.name for parameter in found if parameter.required],
        "additionalProperties": False,
    }


def _make_property(parameter: Parameter, meaning: str) -> Entry:
    schema = _make_type_schema(parameter.kind) | ({"description": meaning} if meaning else {})
    if not parameter.required:
        default: Any = parameter.default
        if isinstance(default, tuple):
            default = list(default)
        schema["default"] = dict(default) if isinstance(default, Mapping) else default
    return schema


def _make_type_schema(kind: Any) -> Entry:
    """Return the JSON schema of a parameter's type annotation; {} for other annotations."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = next((each for each in arguments[1:] if isinstance(each, Range)), Range())
        return {**_make_type_schema(arguments[0]), **_make_bounds(bounds)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_make_type_schema(each) for each in arguments]}
    if origin in (tuple, list):
        return {"type": "array", "items": _make_type_schema(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object"}
    return {"type": _PLAIN[kind]} if kind in _PLAIN else {}


def _make_bounds(bounds: Range) -> Entry:
    named = {
        "minimum": bounds.minimum,
        "maximum": bounds.maximum,
        "exclusiveMinimum": bounds.above,
        "exclusiveMaximum": bounds.below,
    }
    return {name: bound for name, bound in named.items() if bound is not None}
