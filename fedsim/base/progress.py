"""Work that says on the way how far it is: generators that return their result at the end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_to_end(work: Generator[Any, None, Result]) -> Result:
    """The result of such work, run to its end in silence."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
