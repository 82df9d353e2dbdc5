"""How many clients train at once, where nobody says."""

from __future__ import annotations

from typing import Literal, TypeAlias

from . import tree
from .flops import example_flops
from .net import Net
from .population import Population

Stack: TypeAlias = int | Literal["auto", "off"]
"""A width; "off" for one by one; "auto" for what the model and the device suggest."""

GPU_WIDTH = 64
"""How many small clients a GPU gets at once; where they do not fit, a pool goes on with half as many."""

STEP_FLOPS = 2 * 10**9
"""A local step of fewer operations keeps a GPU waiting for the next kernel most of the time."""


def width_of(stack: Stack, population: Population, device: str) -> int:
    """The width of a run: the same for the same spec and kind of device, since the last bits depend on it.

    On a CPU "auto" is one by one: there a step is computed and not waited for, and convolutions over grouped
    channels take longer than one after another. On a GPU it is `GPU_WIDTH` where a local step of every
    architecture is small, and one by one where some client's step is enough for the GPU by itself.

    Args:
        stack: what the spec says.
        population: whose models and batches.
        device: "cpu" or "cuda".
    """
    if isinstance(stack, int):
        return stack
    if stack == "off" or device == "cpu" or not any(net.stackable for net in population.nets):
        return 1
    most = max(_step_flops(net, population) for net in population.nets)
    return min(GPU_WIDTH, population.cohort_size) if most <= STEP_FLOPS else 1


def _step_flops(net: Net, population: Population) -> int:
    dataset = population.dataset
    example = dataset.normalise(tree.borrow(dataset.train.x[:1]))[0]
    return population.local.batch_size * example_flops(net, net.parameters, example)
