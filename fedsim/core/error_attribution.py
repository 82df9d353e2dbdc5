"""Errors that a method's code raises, named: who raised, where, and whether memory ran out."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedsim.errors import ClientFailed, FedsimError, MethodFailed, OutOfMemory

MEMORY_MARKS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""How errors of torch without a type of their own say that memory ran out."""

MEMORY_HINT = "use fewer workers per node, a smaller local.batch_size or a smaller model"


@contextmanager
def attribute_server_errors(algorithm: object, stage: str) -> Iterator[None]:
    """Name what a method's server code raises inside.

    Args:
        algorithm: the method.
        stage: its hook.

    Raises:
        MethodFailed: with the error as text; fedsim's own errors go through as they are.
        OutOfMemory: if that is what it was.
    """
    try:
        yield
    except FedsimError:
        raise
    except Exception as error:
        name = type(algorithm).__name__
        if is_out_of_memory(error):
            raise OutOfMemory(f"{name} ran out of memory in {stage}: {error}", MEMORY_HINT) from error
        raise MethodFailed(name, stage, format_error(error), format_traceback(error)) from error


def attribute_client_error(client: int, stage: str, error: Exception) -> FedsimError:
    """Name what a client's code raised."""
    if isinstance(error, FedsimError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(f"client {client} ran out of memory in {stage}: {error}", MEMORY_HINT)
    return ClientFailed(client, stage, format_error(error), format_traceback(error))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or beside it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in MEMORY_MARKS)


def format_error(error: BaseException) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {error}"


def format_traceback(error: BaseException) -> str:
    """Where the error was raised, for the log."""
    return "".join(traceback.format_exception(error))
