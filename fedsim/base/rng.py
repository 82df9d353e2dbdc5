"""Random streams, each made from an address (seed, purpose, numbers): the source of all random numbers.

The address alone fixes a stream. The shuffle of client 7 in round 3 is the same in every worker and pool,
whatever was drawn before. Therefore another worker can repeat the work of a lost one with the same result.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def stream(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return the random stream at this address.

    >>> first = stream(0, "shuffle", 3, 7).permutation(5)  # round 3, client 7
    >>> again = stream(0, "shuffle", 3, 7).permutation(5)
    >>> (first == again).all().item()
    True
    >>> other = stream(0, "shuffle", 3, 8).permutation(5)  # client 8
    >>> (first == other).all().item()
    False

    Args:
        seed: the experiment's seed, >= 0.
        purpose: the use of the random numbers ("cohort", "shuffle", "partition", ...). Streams of different
            purposes are independent.
        numbers: the place in the run, such as (round, client); each >= 0. One purpose has the same count of
            numbers everywhere: NumPy reads (3,) and (3, 0) as one address.

    Returns:
        A NumPy generator, independent of every stream with another address.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *numbers])


def torch_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed for a `torch.Generator`, fixed by this address (see `stream`)."""
    return int(stream(seed, purpose, *numbers).integers(2**63))


@contextmanager
def torch_stream(seed: int, purpose: str, *numbers: int) -> Iterator[None]:
    """Seed torch's default generators at this address within the block, and restore them after it.

    Use it for code that takes no generator, such as dropout and the initialisers in `torch.nn`. It seeds the
    generator of the CPU and, if this process uses a GPU, the generator of that GPU.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        address = torch_seed(seed, purpose, *numbers)
        torch.default_generator.manual_seed(address)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(address)
        yield


@contextmanager
def construction_stream(seed: int, purpose: str, *numbers: int) -> Iterator[None]:
    """`torch_stream` for code that makes a model: it also seeds NumPy's and Python's default generators."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    address = torch_seed(seed, purpose, *numbers)
    np.random.seed(address % 2**32)
    random.seed(address)
    try:
        with torch_stream(seed, purpose, *numbers):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
