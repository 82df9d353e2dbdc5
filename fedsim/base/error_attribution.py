"""Error attribution: convert an error of an algorithm's code into one that names the client or the hook."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fedsim.errors import ClientFailed, FedsimError, MethodFailed, OutOfMemory

MEMORY_MARKS = (
    *("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED"),
    "CUBLAS_STATUS_NOT_INITIALIZED",  # there is no memory for cuBLAS itself
)
"""Texts in the `RuntimeError`s of torch that mean that memory ran out."""

FOREIGN = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",
)
"""Beginnings of the file names of fedsim, of Python and of installed packages."""

MEMORY_HINT = (
    "use fewer workers per node, a larger resources.gpus_per_worker if they have a GPU, "
    "a smaller local.batch_size or a smaller model"
)


MOST_CHARACTERS = 10_000
"""Most characters of an error's message: one that holds data may have megabytes, and enters records."""


@contextmanager
def attribute_server_errors(algorithm: object, stage: str) -> Iterator[None]:
    """Convert an error of the algorithm's server code, raised within the block, into a `FedsimError`.

    A `FedsimError` passes unchanged.

    Args:
        algorithm: the algorithm.
        stage: the hook that runs in the block, such as "aggregate".

    Raises:
        MethodFailed: the code raised an error; the message has it as text.
        OutOfMemory: the code ran out of memory.
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
    """Convert a client's error into `ClientFailed` or `OutOfMemory`; a `FedsimError` stays as it is."""
    if isinstance(error, FedsimError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(f"client {client} ran out of memory in {stage}: {error}", MEMORY_HINT)
    return ClientFailed(client, stage, format_error(error), format_traceback(error))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on the CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in MEMORY_MARKS)


def format_error(error: BaseException) -> str:
    """Return an error in one line: "ValueError: no examples", with its place if that is a user's code."""
    place = _find_own_place(error)
    message = str(error)
    if len(message) > MOST_CHARACTERS:
        message = f"{message[:MOST_CHARACTERS]} …"
    text = f"{type(error).__name__}: {message}" + (f" ({place})" if place else "")
    return escape_surrogates(text)


def escape_surrogates(text: str) -> str:
    """Return a text that UTF-8 can encode: the name of a file, which an error may hold, need not be UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _find_own_place(error: BaseException) -> str:
    """Return the innermost line outside fedsim and installed packages: "method.py:54, loss"; "" for none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(frame.filename.startswith(root) for root in FOREIGN)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}, {own[-1].name}" if own else ""


def format_traceback(error: BaseException) -> str:
    """Return the traceback of an error as text, for the log."""
    return "".join(traceback.format_exception(error))
