"""Run one client's work under the fault policy: retry it, leave the client out, or raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from fedsim.base import tree
from fedsim.base.error_attribution import attribute_client_error, format_error, is_out_of_memory
from fedsim.base.tree import Tree
from fedsim.engine.faults import Faults
from fedsim.errors import ClientFailed, StackTooLarge
from fedsim.models.net import Net

Value = TypeVar("Value")


@dataclass(frozen=True)
class AttemptResult(Generic[Value]):
    """The result of one client's work.

    Attributes:
        value: the return value of the work; None if the client is left out.
        retries: number of failed attempts before the successful one.
        error: the error of a client that is left out, in one line; None otherwise.
    """

    value: Value | None
    retries: int = 0
    error: str | None = None


def attempt_with_retries(
    work: Callable[[int], Value], *, client: int, stage: str, faults: Faults, device: torch.device
) -> AttemptResult[Value]:
    """Run one client's work under the fault policy.

    Args:
        work: a function of the number of earlier attempts. If it raises, it must have changed nothing.
        client: the client's number.
        stage: the name of the work in error messages, such as "train".
        faults: the fault policy.
        device: the device of the work; the GPU cache of a failed attempt is freed before the next attempt.

    Raises:
        ClientFailed: every attempt raised, and the policy is not "skip".
        OutOfMemory: every attempt raised, the last for lack of memory, and the policy is not "skip".
        StackTooLarge: a stack needs too much memory, whatever the policy; its clients must train again.
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
            if isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error):
                # Such as a class outside of a loss's range: all later work of this process on the GPU fails.
                raise attribute_client_error(client, stage, error) from error
            # Whoever kept the error would keep its frames, and with them the memory that ran out.
            reason = format_error(error)
            if faults.client_error != "skip" and attempt + 1 == faults.client_attempts:
                raise attribute_client_error(client, stage, error) from error
    return AttemptResult(None, error=reason)


@contextmanager
def refuse_changes(net: Net, broadcast: Tree, *, client: int, stage: str) -> Iterator[None]:
    """Refuse a client that changes a tensor of the broadcast in place, under every fault policy.

    All clients of a process read the same tensors, so the next clients would get other numbers.

    Args:
        net: of the client. If its forward pass changes weights in place, nothing is refused.
        broadcast: the payloads that the client reads.
        client: the client's number.
        stage: the name of the work in error messages, such as "train".

    Raises:
        ClientFailed: a tensor was changed; the message has its name.
    """
    # Torch counts the changes of each tensor, but for those made in inference mode.
    leaves = () if net.changes_weights else tree.leaves(broadcast)
    read = {name: leaf for name, leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_inference()}
    before = {name: leaf._version for name, leaf in read.items()}
    yield
    if changed := next((name for name, version in before.items() if read[name]._version != version), ""):
        message = (
            f"it changed the broadcast {changed} in place, which all clients read; change a .clone() of it"
        )
        raise ClientFailed(client, stage, message)
