"""Descriptions of parameters, read from Google-style docstrings.

The catalogue shows the text of an entry `mu: weight of the proximal term.` beside the parameter `mu`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

_SECTION = re.compile(r"(Args|Attributes):$")
_ENTRY = re.compile(r" {4}(?P<names>\w+(?:, \w+)*): (?P<text>.*)$")
_FURTHER = re.compile(r" {8,}(?P<text>\S.*)$")


def read_parameter_docs(thing: Callable[..., Any]) -> dict[str, str]:
    """Read the sections `Args:` and `Attributes:` of the docstring of a function or a class.

    Args:
        thing: the function or class. A class inherits the entries of its base classes; its own come first.

    Returns:
        {parameter: its description, one paragraph without the last full stop}. An entry for several names
        (`a, b: text`) describes each of them.
    """
    found: dict[str, str] = {}
    for each in reversed(inspect.getmro(thing)) if inspect.isclass(thing) else (thing,):
        found.update(_read_entries(inspect.cleandoc(each.__doc__ or "")))
    return found


def _read_entries(text: str) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    words: list[str] = []
    inside = False
    for line in [*filter(str.strip, text.splitlines()), "the end"]:
        if inside and (more := _FURTHER.match(line)):
            words.append(more["text"])
            continue
        yield from ((name, " ".join(words).removesuffix(".")) for name in names)
        names, words = [], []
        if inside and (entry := _ENTRY.match(line)):
            names, words = entry["names"].split(", "), [entry["text"]]
        elif not line.startswith(" "):
            inside = _SECTION.match(line) is not None
