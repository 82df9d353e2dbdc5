"""The inside of a process that answers questions: lines of JSON on standard input and standard output."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from fedsim.base.memory_usage import end_first_without_memory
from fedsim.errors import FedsimError


def answer_standard_input(work: Callable[[Any], Any]) -> int:
    """Call `work` with each line of JSON on standard input, and write a line of JSON to standard output.

    The line is `{"answer": ...}`, or `{"error": ...}` for an error that fedsim raises on purpose, with the
    keys `code`, `message`, `hint` and `errors`. Any other error ends the process.

    Args:
        work: takes the decoded JSON; returns values that JSON can hold, or a pydantic model.

    Returns:
        The exit code, at the end of standard input.
    """
    end_first_without_memory()
    output = os.dup(1)
    # Other output goes to standard error, so that standard output holds only the answers.
    os.dup2(2, 1)
    with os.fdopen(output, "w", encoding="utf-8") as stream:
        for line in sys.stdin:
            stream.write(json.dumps(_answer_line(work, line), default=repr) + "\n")
            stream.flush()
    return 0


def _answer_line(work: Callable[[Any], Any], line: str) -> dict[str, Any]:
    try:
        answer = work(json.loads(line))
    except FedsimError as error:
        faults = [fault._asdict() for fault in error.errors]
        return {"error": {"code": error.code, "message": error.message, "hint": error.hint, "errors": faults}}
    return {"answer": answer.model_dump(mode="json") if isinstance(answer, BaseModel) else answer}


def limit_memory(size: int) -> None:
    """Limit the private memory of this process to `size` bytes; mapped files do not count.

    Beyond it allocations raise a `MemoryError`. Only Linux enforces the limit.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
