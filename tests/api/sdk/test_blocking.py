"""How an awaited method becomes one that blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from api.sdk.transport.blocking import iterate_blocking, run_blocking, run_to_end


class Awaited:
    """Counts, and notes when a generator is closed."""

    def __init__(self) -> None:
        self.closed = False

    async def double(self, number: int) -> int:
        """Double a number."""
        return 2 * number

    async def count(self, end: int) -> AsyncIterator[int]:
        """Count."""
        try:
            for number in range(end):
                yield await self.double(number)
        finally:
            self.closed = True


class Blocks:
    def __init__(self) -> None:
        self._awaited = Awaited()

    double = run_blocking(Awaited.double)
    text = run_blocking(Awaited.double, str)
    count = iterate_blocking(Awaited.count)


def test_a_method_runs_to_its_end_and_its_result_is_converted() -> None:
    assert Blocks().double(3) == 6
    assert Blocks().text(number=3) == "6"
    assert (Blocks.double.__doc__, Blocks.double.__name__) == ("Double a number.", "double")


def test_a_generator_is_iterated_and_closed_with_its_iterator() -> None:
    blocks = Blocks()
    assert list(blocks.count(3)) == [0, 2, 4]
    items = blocks.count(3)
    assert next(items) == 0
    blocks._awaited.closed = False
    items.close()  # type: ignore[attr-defined]
    assert blocks._awaited.closed


def test_it_works_inside_a_running_event_loop() -> None:
    """As in a notebook."""

    async def main() -> list[int]:
        return list(Blocks().count(2))

    assert asyncio.run(main()) == [0, 2]


def test_a_coroutine_that_waits_for_a_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match="waits for an event loop"):
        run_to_end(asyncio.sleep(0))
