"""The values that a search may try for one field of a spec: a choice, or a range of numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedsim.errors import FieldError, SpecError
from jobs.spec.spec_text import parse_text

RANGE = re.compile(r"(?P<kind>uniform|log|int):(?P<low>[^.:\s]*(?:\.[^.:\s]+)?)\.\.(?P<high>[^:\s]+)")
NOTATION = "write log:0.001..1, uniform:0..1, int:1..5 or [0.01, 0.1]"


class Space(NamedTuple):
    """The values to try for one field.

    Attributes:
        kind: a list of values (choice), or numbers between `low` and `high`: uniform, uniform on a
            logarithmic scale (log), or whole (int). Both ends are possible values.
        values: of a choice.
        low: of a range.
        high: of a range.
    """

    kind: Literal["choice", "uniform", "log", "int"]
    values: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0

    def list_values(self) -> list[Any]:
        """Return all values of a choice or of whole numbers; [] for other ranges."""
        if self.kind == "int":
            return list(range(int(self.low), int(self.high) + 1))
        return list(self.values)

    def list_ends(self) -> list[Any]:
        """Return the values that show whether a spec accepts all of them."""
        return list(self.values) if self.kind == "choice" else [self.low, self.high]


def parse_spaces(spaces: Mapping[str, Any]) -> dict[str, Space]:
    """Read the values to try, by the path of the field.

    Args:
        spaces: a list of values, or a text such as `log:0.001..1`, for each path.

    Raises:
        SpecError: with every fault, its path below `space`; also if there is no path at all.

    Example:
        >>> parse_spaces({"local.lr": "log:0.001..1"})["local.lr"]
        Space(kind='log', values=(), low=0.001, high=1.0)
        >>> parse_spaces({"local.epochs": "int:1..3"})["local.epochs"].list_values()
        [1, 2, 3]
    """
    if not isinstance(spaces, Mapping) or not spaces:
        raise SpecError([FieldError("space", None, "names no field", "such as local.lr=log:0.001..1")])
    found, faults = dict[str, Space](), list[FieldError]()
    for path, value in spaces.items():
        try:
            found[str(path)] = _parse_space(value)
        except SpecError as error:
            faults += [FieldError(f"space.{path}", value, each.message, NOTATION) for each in error.errors]
        except ValueError as error:
            faults.append(FieldError(f"space.{path}", value, str(error), NOTATION))
    if faults:
        raise SpecError(faults)
    return found


def parse_space_items(items: Sequence[str]) -> dict[str, Any]:
    """Return values by path from `PATH=SPACE` items of the command line, for `parse_spaces`.

    Raises:
        SpecError: for every item that is not `PATH=SPACE`.
    """
    pairs = [item.partition("=") for item in items]
    wrong = [
        FieldError("space", item, "is not PATH=SPACE", "such as local.lr=log:0.001..1")
        for item, (path, sign, _) in zip(items, pairs, strict=True)
        if not sign or not all(path.strip().split("."))
    ]
    if wrong:
        raise SpecError(wrong)
    return {path.strip(): value.strip() for path, _, value in pairs}


def _parse_space(value: Any) -> Space:
    if isinstance(value, str):
        if found := RANGE.fullmatch(value):
            return _parse_range(found["kind"], found["low"], found["high"])
        value = parse_text(value)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("is neither a range nor a list of values")
    values = tuple(value)
    if any(values.index(each) < place for place, each in enumerate(values)):
        raise ValueError("names a value twice")
    return Space("choice", values)


def _parse_range(kind: Any, low_text: str, high_text: str) -> Space:
    number = int if kind == "int" else float
    try:
        low, high = number(low_text), number(high_text)
    except ValueError:
        raise ValueError(f"has an end that is no {'whole ' if kind == 'int' else ''}number") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError("needs two finite ends, the lower one first")
    if kind == "log" and low <= 0:
        raise ValueError("has no logarithm at its lower end, which has to be above 0")
    return Space(kind, (), low, high)
