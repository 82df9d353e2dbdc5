"""Work with progress: a generator that yields its progress and returns its result at the end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_to_end(work: Generator[Any, None, Result]) -> Result:
    """Run the generator to its end, ignore its progress and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
