"""Record one step of a stacked local loop and replay it for later batches: on a GPU as a CUDA graph.

A small step is hundreds of kernels of some microseconds each; replaying a graph starts all of them at once.
A recording always reads and writes the same tensors, so each new batch is copied into the recorded batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from fedsim.core.batches import Batch

LEAST_STEPS = 8
"""Record a step only if at least this many steps follow: recording takes about as long as a few steps."""


class Recording(Protocol):
    """Recorded work that can run again."""

    def replay(self) -> None:
        """Run the recorded work once."""


Recorder: TypeAlias = Callable[[Callable[[], None]], Recording]
"""Function that records some work without running it."""


class CudaRecording:
    """Recording of some work as a CUDA graph.

    Args:
        work: must have run before; it never asks a tensor for its value and changes its tensors in place.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            work()

    def replay(self) -> None:
        """Run the graph on the GPU once."""
        self.graph.replay()


class RecordedStep:
    """One training step, recorded for batches of one shape.

    Args:
        record: makes the recording.
        step: runs the step on (batch, dims).
        batch, dims: an example of these batches, as `make_joint_batch` returns it.
    """

    def __init__(self, record: Recorder, step: Callable[[Batch, Any], None], batch: Batch, dims: Any) -> None:
        self.shapes = [(each.shape, each.dtype) for each in _tensors(batch)]
        self.batch: Batch = _copy_value(batch)
        self.recording = record(partial(step, self.batch, dims))

    def fits_batch(self, batch: Batch) -> bool:
        """Return whether the batch has the shapes and number types of the recorded batch."""
        return self.shapes == [(each.shape, each.dtype) for each in _tensors(batch)]

    def replay_on(self, batch: Batch) -> None:
        """Run the recorded step on this batch."""
        for mine, theirs in zip(_tensors(self.batch), _tensors(batch), strict=True):
            mine.copy_(theirs)
        self.recording.replay()


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield all tensors of a batch, including the tensors of batches in its noise."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from _tensors(each)


def _copy_value(value: Any) -> Any:
    """Copy a batch and all tensors in it."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: _copy_value(each) for key, each in value.items()}
    return Batch(*map(_copy_value, value)) if isinstance(value, Batch) else value
