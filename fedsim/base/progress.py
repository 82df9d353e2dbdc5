"""Work with progress: a generator that yields its progress and returns its result at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from time import perf_counter
from typing import Any, TypeVar

Result = TypeVar("Result")
Step = TypeVar("Step")
Event = TypeVar("Event")


def run_to_end(work: Generator[Step, None, Result], on_step: Callable[[Step], Any] | None = None) -> Result:
    """Run the generator to its end, and return its result.

    Args:
        work: yields its progress.
        on_step: receives each progress; None ignores it.
    """
    result = list[Result]()
    for step in _iterate(work, result):
        if on_step is not None:
            on_step(step)
    return result[0]


def relay_progress(
    work: Generator[Step, None, Result], make_event: Callable[[Step], Event], seconds: float = 0.0
) -> Generator[Event, None, Result]:
    """Run the generator to its end, yield events of its progress, and return its result.

    Args:
        work: yields its progress.
        make_event: makes the event of a progress.
        seconds: between two events at least; a progress that comes sooner is left out.
    """
    told_at, result = perf_counter(), list[Result]()
    for step in _iterate(work, result):
        if perf_counter() - told_at >= seconds:
            told_at = perf_counter()
            yield make_event(step)
    return result[0]


def _iterate(work: Generator[Step, None, Result], result: list[Result]) -> Iterator[Step]:
    """Yield the progress of the generator, and append its result to the list."""
    result.append((yield from work))
