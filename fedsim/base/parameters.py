"""Parameters of algorithms, models, data sets and partitions: read from signatures, checked before a run.

The parameters are the keyword-only arguments of a function, or the fields of a keyword-only dataclass. Their
annotations may be plain types, `Literal` for a choice, a union with None, and `Annotated[float, Range(...)]`
for a range. A whole number without a maximum is at most `MOST_COUNT`. The catalogue lists the parameters;
`find_parameter_faults` finds every fault of the values of a spec.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from fedsim.errors import FieldError, SpecError


class Range(NamedTuple):
    """The allowed range of a number; None means no bound.

    Attributes:
        minimum: the smallest allowed value.
        maximum: the largest allowed value.
        above: the number must be greater than this value.
        below: the number must be less than this value.
    """

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: object) -> bool:
        number = typing.cast(float, value)
        return (
            (self.minimum is None or number >= self.minimum)
            and (self.maximum is None or number <= self.maximum)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        words = {
            "of at least": self.minimum,
            "above": self.above,
            "of at most": self.maximum,
            "below": self.below,
        }
        return " and ".join(
            f"{word} {_format_bound(bound)}" for word, bound in words.items() if bound is not None
        )


def _format_bound(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


MOST_COUNT = 10_000_000
"""The bound of every whole number that has no bound of its own: no run has more clients, steps or units."""

MOST_SUGGESTED = 100
"""Unknown parameters with a hint each: looking for a similar name takes time."""

Positive = Annotated[float, Range(above=0)]
Share = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(1)]
Layers = Annotated[int, Range(1, 1000)]
Seed = Annotated[int, Range(0, 2**63 - 1)]


class Parameter(NamedTuple):
    """One parameter of an algorithm, a model, a data set or a partition.

    Attributes:
        name: the key in the spec.
        kind: the type annotation, with `Range` metadata if the number has bounds.
        default: the default value; `inspect.Parameter.empty` if the spec must give a value.
    """

    name: str
    kind: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether the spec must give a value: the parameter has no default."""
        return self.default is inspect.Parameter.empty


def list_parameters(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """List the keyword-only arguments of a function, in order."""
    hints = typing.get_type_hints(function, include_extras=True)
    arguments = inspect.signature(function).parameters.values()
    return tuple(Parameter(a.name, hints[a.name], a.default) for a in arguments if a.kind is a.KEYWORD_ONLY)


def list_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return {name: default} of the keyword-only arguments of a function; see `Parameter.default`."""
    return {parameter.name: parameter.default for parameter in list_parameters(function)}


def suggest_name(name: str, choices: Iterable[str]) -> str:
    """Return a hint for an unknown name: "did you mean 'digits'?", or a list of the known names."""
    names = sorted(choices)
    by_lower = {each.lower(): each for each in names}
    if close := difflib.get_close_matches(name.lower(), by_lower, n=1):
        return f"did you mean {by_lower[close[0]]!r}?"
    return f"one of: {', '.join(names)}" if names else "there are none"


def find_parameter_faults(function: Callable[..., Any], given: Mapping[str, Any]) -> list[FieldError]:
    """Find unknown parameters, missing parameters and values of a wrong type or range.

    No parameter is unknown to a function that takes any keyword (`**params`).

    Args:
        function: the function that takes the parameters.
        given: {parameter: value}.

    Returns:
        Every fault, with the parameter's name as its path.
    """
    known = {p.name: p for p in list_parameters(function)}
    takes_any = any(a.kind is a.VAR_KEYWORD for a in inspect.signature(function).parameters.values())
    unknown = [] if takes_any else [name for name in given if name not in known]
    faults = [
        FieldError(
            name, given[name], "no such parameter", suggest_name(name, known) if at < MOST_SUGGESTED else ""
        )
        for at, name in enumerate(unknown)
    ]
    faults += [
        FieldError(n, None, "has to be given", "it has no default")
        for n, p in known.items()
        if p.required and n not in given
    ]
    for name, value in given.items():
        if name in known and (wanted := describe_mismatch(value, known[name].kind)):
            faults.append(FieldError(name, value, f"has to be {wanted}", _advise(known[name])))
    return faults


def find_field_faults(settings: Any) -> list[FieldError]:
    """Find values of a wrong type or range in the fields of a dataclass, and of the dataclasses in it.

    A default is never wrong. A field whose annotation is no plain type, range or choice may have any value.

    Args:
        settings: such as an algorithm with its hyper-parameters.

    Returns:
        Every fault; its path begins with the name of the class, such as `DataCurriculum.base.mu`.

    Example:
        >>> from fedsim.algorithms import FedProx
        >>> [(fault.path, fault.message) for fault in find_field_faults(FedProx(mu=-1.0))]
        [('FedProx.mu', 'has to be a number of at least 0')]
    """
    return list(_find_field_faults(settings, type(settings).__name__))


def _find_field_faults(settings: Any, path: str) -> Iterator[FieldError]:
    try:
        known = {parameter.name: parameter for parameter in list_parameters(type(settings))}
    except (NameError, TypeError, ValueError):  # the class has annotations that cannot be read here
        known = {}
    for name in (field.name for field in dataclasses.fields(settings)):
        value, parameter = getattr(settings, name), known.get(name)
        if dataclasses.is_dataclass(value):
            yield from _find_field_faults(value, f"{path}.{name}")
        elif (
            parameter
            and _is_plain_kind(parameter.kind)
            and value != parameter.default
            and (wanted := describe_mismatch(value, parameter.kind))
        ):
            yield FieldError(f"{path}.{name}", value, f"has to be {wanted}", _advise(parameter))


def _is_plain_kind(kind: Any) -> bool:
    """Whether an annotation is made of plain types, ranges and choices."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _is_plain_kind(get_args(kind)[0])
    if origin in (typing.Union, types.UnionType, tuple, list):
        return all(each is ... or _is_plain_kind(each) for each in get_args(kind))
    return origin is Literal or kind in (float, int, bool, str, types.NoneType)


def _advise(parameter: Parameter) -> str:
    """Return the hint for a bad value: that of the annotation's limit, else the parameter's default."""
    kinds = (parameter.kind, *get_args(parameter.kind))
    limits = [limit for kind in kinds if get_origin(kind) is Annotated for limit in get_args(kind)[1:]]
    if hints := [limit.hint for limit in limits if hasattr(limit, "hint")]:
        return str(hints[0])
    return "it has no default" if parameter.required else f"the default is {format_value(parameter.default)}"


def format_value(value: object) -> str:
    """Format a value as a spec writes it: `null`, `true`, `[0.3, 0.6]`; a string stays as it is."""
    if isinstance(value, str):
        return value or '""'
    return json.dumps(value, default=dict)


def make_spec_error(path: str, value: object, message: str, hint: str = "") -> SpecError:
    """Make a `SpecError` with one fault, such as a value that does not suit the data set."""
    return SpecError([FieldError(path, value, message, hint)])


def describe_mismatch(value: object, kind: Any) -> str | None:
    """Return None if the value fits the annotation, else the wanted value in words: "a number above 0"."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _range_mismatch(value, *get_args(kind))
    if origin is Literal:
        return None if value in get_args(kind) else "one of " + ", ".join(map(repr, get_args(kind)))
    if origin in (typing.Union, types.UnionType):
        wanted = [describe_mismatch(value, each) for each in get_args(kind)]
        return None if None in wanted else " or ".join(w for w in wanted if w)
    if origin in (tuple, list):
        kinds = get_args(kind)
        return _sequence(value, kinds[0], len(kinds) if origin is tuple and ... not in kinds else None)
    if origin in (dict, Mapping):
        return None if isinstance(value, Mapping) else "a mapping"
    if kind is int and _plain(value, int) is None and abs(typing.cast(int, value)) > MOST_COUNT:
        return f"a whole number {Range(-MOST_COUNT, MOST_COUNT)}"
    return _plain(value, kind)


def _range_mismatch(value: object, kind: Any, bounds: Range) -> str | None:
    is_open = kind is int and bounds.maximum is None and bounds.below is None
    wanted = _plain(value, int) if kind is int else describe_mismatch(value, kind)
    if wanted is None and is_open and typing.cast(int, value) > MOST_COUNT:
        bounds = bounds._replace(maximum=MOST_COUNT)
    if wanted is None and value in bounds:
        return None
    return f"{_type_name(kind)} {bounds}"


def _sequence(value: object, kind: Any, length: int | None) -> str | None:
    if (
        isinstance(value, list | tuple)
        and length in (None, len(value))
        and all(describe_mismatch(each, kind) is None for each in value)
    ):
        return None
    return f"a list{f' of {length}' if length else ''}, each {describe_mismatch(object(), kind)}"


def _plain(value: object, kind: Any) -> str | None:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return None
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return None
    return _type_name(kind)


def _type_name(kind: Any) -> str:
    names: dict[Any, str] = {
        float: "a number",
        int: "a whole number",
        bool: "true or false",
        str: "text",
        types.NoneType: "null",
    }
    return names.get(kind, str(kind))
