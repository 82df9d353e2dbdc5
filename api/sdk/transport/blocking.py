"""Make blocking methods of the awaited ones, with the same arguments and the same documentation.

    class JobHandle:
        cancel = run_blocking(AsyncJobHandle.cancel)

`JobHandle(awaited).cancel()` then runs `awaited.cancel()` to its end and returns its result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, such as one on a `BlockingSender`, and return its result.

    Raises:
        RuntimeError: the coroutine waits for an event loop.
    """
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    work.close()
    raise RuntimeError(f"{work!r} waits for an event loop, and there is none")


@overload
def run_blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]: ...
@overload
def run_blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], convert: Callable[[T], U]
) -> Callable[Concatenate[Any, P], U]: ...
def run_blocking(
    method: Callable[..., Coroutine[Any, Any, Any]], convert: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """Make a method that runs an awaited method to its end.

    Args:
        method: a coroutine method of the object in `_awaited`.
        convert: makes the blocking method's result of the awaited one, such as `JobHandle`.
    """

    def run(self: Any, *args: Any, **options: Any) -> Any:
        result = run_to_end(method(self._awaited, *args, **options))
        return result if convert is None else convert(result)

    return _copy_documentation(method, run)


@overload
def iterate_blocking(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]: ...
@overload
def iterate_blocking(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]], convert: Callable[[T], U]
) -> Callable[Concatenate[Any, P], Iterator[U]]: ...
def iterate_blocking(
    method: Callable[..., AsyncIterator[Any]], convert: Callable[[Any], Any] | None = None
) -> Callable[..., Iterator[Any]]:
    """Make a method that iterates over an asynchronous generator.

    Args:
        method: an asynchronous generator method of the object in `_awaited`.
        convert: makes the blocking method's items of the awaited ones.
    """

    def iterate(self: Any, *args: Any, **options: Any) -> Iterator[Any]:
        items = cast("AsyncGenerator[Any, None]", method(self._awaited, *args, **options))
        return _iterate(items, convert or (lambda item: item))

    return _copy_documentation(method, iterate)


def _iterate(items: AsyncGenerator[T, None], convert: Callable[[T], U]) -> Iterator[U]:
    try:
        while True:
            try:
                item = run_to_end(items.__anext__())
            except StopAsyncIteration:
                return
            yield convert(item)
    finally:
        run_to_end(items.aclose())


def _copy_documentation(method: Callable[..., Any], made: Callable[..., T]) -> Callable[..., T]:
    """Give a blocking method the docstring and the signature of the awaited one, for `help()`."""
    functools.update_wrapper(made, method)
    signature = inspect.signature(method)
    returns = str(signature.return_annotation).replace("Async", "")
    made.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
    return made
