"""How many clients train at once, where nobody says."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import nn

from . import tree
from .flops import example_flops
from .net import Net
from .population import Population

Stack: TypeAlias = int | Literal["auto", "off"]
"""A width; "off" for one by one; "auto" for what the model and the device suggest."""

GPU_WIDTH = 64
"""How many small clients a GPU gets at once; where they do not fit, a pool goes on with half as many."""

GPU_STEP_FLOPS = 2 * 10**9
"""A local step of fewer operations keeps a GPU waiting for the next kernel most of the time."""

CPU_WIDTHS = (32, 64)
"""The fewest and the most clients that a CPU gets at once: fewer gain nothing, and more leave its caches."""

CPU_STEP_FLOPS = 25 * 10**6
"""In a local step of fewer operations, more time goes into calling torch than into what it computes."""

CPU_PARAMETERS = 10**6
"""Larger models are not stacked on a CPU unasked: a stack holds some copies of each."""

CPU_STACKS = 4
"""So many stacks a cohort is left to have on a CPU, so that several workers have something to do."""


def width_of(stack: Stack, population: Population, device: str) -> int:
    """The width of a run: the same for the same spec and kind of device, since the last bits depend on it.

    On a GPU "auto" is `GPU_WIDTH` where a local step of every architecture is small, and one by one where
    some client's step is enough for the GPU by itself. On a CPU it is a quarter of the cohort, if that is at
    least 32 and up to 64, where the steps are tiny; else one by one, since convolutions over grouped channels
    take longer than one after another. Nothing is measured, and the number of workers does not count.

    Args:
        stack: what the spec says.
        population: whose models and batches.
        device: "cpu" or "cuda".
    """
    if isinstance(stack, int):
        return stack
    if stack == "off" or not any(net.stackable for net in population.nets):
        return 1
    if device != "cpu":
        return min(GPU_WIDTH, population.cohort_size) if _small(population, GPU_STEP_FLOPS) else 1
    fewest, widest = CPU_WIDTHS
    width = min(widest, population.cohort_size // CPU_STACKS)
    stacks = width >= fewest and all(_plain(net) for net in population.nets)
    return width if stacks and _small(population, CPU_STEP_FLOPS) else 1


def _small(population: Population, flops: int) -> bool:
    """Whether a local step of every architecture is at most so many operations."""
    return all(_step_flops(net, population) <= flops for net in population.nets)


def _step_flops(net: Net, population: Population) -> int:
    dataset = population.dataset
    example = dataset.normalise(tree.borrow(dataset.train.x[:1]))[0]
    return population.local.batch_size * example_flops(net, net.parameters, example)


def _plain(net: Net) -> bool:
    """Whether it is a small model of the layers that stacks were measured with on a CPU."""
    known = all(
        isinstance(module, nn.Linear | nn.Conv2d | nn.GroupNorm)
        for module in net.module.modules()
        if next(module.parameters(recurse=False), None) is not None
    )
    return known and net.stackable and net.count() <= CPU_PARAMETERS
