"""Every random stream, made from (seed, purpose, numbers): nothing else in fedsim draws random numbers.

A stream is addressed, not consumed: the shuffle of client 7 in round 3 is the same whichever actor makes
it, whatever was drawn before, and on every pool. That is what lets a dead actor's work be done again
elsewhere with the same result.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def stream(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """The random stream at this address.

    Args:
        seed: the experiment's seed, >= 0.
        purpose: what the numbers are for ("cohort", "shuffle", "partition", ...); another purpose is an
            independent stream.
        numbers: where in the run, such as (round, client), each >= 0.

    Returns:
        A NumPy generator, independent of every stream with another address.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *numbers])


def torch_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed for a `torch.Generator` at this address."""
    return int(stream(seed, purpose, *numbers).integers(2**63))


@contextmanager
def torch_stream(seed: int, purpose: str, *numbers: int) -> Iterator[None]:
    """Torch's default generators, seeded at this address within the block and restored after it.

    For code that takes no generator, such as the initialisers inside `torch.nn`, and dropout. They are those
    of the CPU and, where this process works on a GPU, of that: what is computed there draws from it.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        address = torch_seed(seed, purpose, *numbers)
        torch.default_generator.manual_seed(address)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(address)
        yield
