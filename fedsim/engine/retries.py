"""A client's work under the fault policy: tried once, tried again, or left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from fedsim.core.error_attribution import attribute_client_error, format_error
from fedsim.engine.faults import Faults
from fedsim.errors import StackTooLarge

Value = TypeVar("Value")


@dataclass(frozen=True)
class AttemptResult(Generic[Value]):
    """What became of it.

    Attributes:
        value: what the work gave; None where the client is left out.
        again: how often it was tried again before it went well.
        error: why the client is left out, in one line; None where it is not.
    """

    value: Value | None
    retries: int = 0
    error: str | None = None


def attempt_with_retries(
    work: Callable[[int], Value], *, client: int, stage: str, faults: Faults, device: torch.device
) -> AttemptResult[Value]:
    """Do one client's work as the policy has it.

    Args:
        work: it; takes how often it was tried before. Until it returns it must leave nothing behind.
        client: whose.
        stage: what it is called where it goes wrong, such as "train".
        faults: the policy.
        device: where it runs; what a failed attempt left in a GPU's cache is freed before the next.

    Raises:
        ClientFailed: if it raised every time, and the policy is not to skip.
        OutOfMemory: if that is why.
        StackTooWide: as it is, whatever the policy: no client failed, and all of them are trained again.
    """
    reason = ""
    for attempt in range(faults.client_attempts):
        if attempt and device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            return AttemptResult(work(attempt), attempt)
        except StackTooLarge:
            raise
        except Exception as error:
            # Whoever kept the error would keep its frames, and with them the memory that ran out.
            reason = format_error(error)
            if faults.client_error != "skip" and attempt + 1 == faults.client_attempts:
                raise attribute_client_error(client, stage, error) from error
    return AttemptResult(None, error=reason)
