"""Steps of a joint local loop that are recorded once and played again: on a GPU as a CUDA graph.

A small step is hundreds of kernels that take microseconds each; playing a graph starts all of them at once.
What a recording reads and writes is always in the same place, so a batch is copied into that of the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from fedsim.core.batches import Batch

LEAST_STEPS = 8
"""A recording takes about as long as a few steps, so it is made where at least so many are to come."""


class Recording(Protocol):
    """Work that was recorded."""

    def replay(self) -> None:
        """Do it."""


Recorder: TypeAlias = Callable[[Callable[[], None]], Recording]
"""Records work without doing it."""


class CudaRecording:
    """Work as a CUDA graph.

    Args:
        work: has run before; it asks no tensor for its value, and changes its tensors in place.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            work()

    def replay(self) -> None:
        """Have the GPU do it again."""
        self.graph.replay()


class RecordedStep:
    """A step, recorded for batches of one shape.

    Args:
        record: makes the recording.
        step: does the step for (batch, dims).
        batch, dims: one of these batches, as `feeding.joint_batch` gives them.
    """

    def __init__(self, record: Recorder, step: Callable[[Batch, Any], None], batch: Batch, dims: Any) -> None:
        self.shapes = [(each.shape, each.dtype) for each in _tensors(batch)]
        self.batch: Batch = _copy_value(batch)
        self.recording = record(partial(step, self.batch, dims))

    def fits_batch(self, batch: Batch) -> bool:
        """Whether the recording is of such a batch."""
        return self.shapes == [(each.shape, each.dtype) for each in _tensors(batch)]

    def replay_on(self, batch: Batch) -> None:
        """The step, on this batch."""
        for mine, theirs in zip(_tensors(self.batch), _tensors(batch), strict=True):
            mine.copy_(theirs)
        self.recording.replay()


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of a batch, those of the batches in its noise among them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from _tensors(each)


def _copy_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: _copy_value(each) for key, each in value.items()}
    return Batch(*map(_copy_value, value)) if isinstance(value, Batch) else value
