"""How many clients train at once, where nobody says."""

from __future__ import annotations

from typing import Literal, TypeAlias

from fedsim.base import tree
from fedsim.clients.population import Population
from fedsim.models.net import Net
from fedsim.training.flops import example_flops

StackSetting: TypeAlias = int | Literal["auto", "off"]
"""A width; "off" for one by one; "auto" for what the model and the device suggest."""

GPU_STACK_SIZE = 64
"""How many small clients a GPU gets at once; where they do not fit, a pool goes on with half as many."""

GPU_STEP_FLOPS = 2 * 10**9
"""A local step of fewer operations keeps a GPU waiting for the next kernel most of the time."""


def choose_stack_size(stack: StackSetting, population: Population, device: str) -> int:
    """The width of a run: the same for the same spec and kind of device, since the last bits depend on it.

    On a GPU "auto" is `GPU_WIDTH` where a local step of every architecture is small, and one by one where
    some client's step is enough for the GPU by itself. On a CPU it is one by one: only wide stacks of the
    smallest models are faster there, by a fifth at most, and a cohort has too few of these for all workers.
    Nothing is measured, and the number of workers does not count.

    Args:
        stack: what the spec says.
        population: whose models and batches.
        device: "cpu" or "cuda".
    """
    if isinstance(stack, int):
        return stack
    if stack == "off" or not any(net.stackable for net in population.nets):
        return 1
    small = device != "cpu" and all(_step_flops(net, population) <= GPU_STEP_FLOPS for net in population.nets)
    return min(GPU_STACK_SIZE, population.cohort_size) if small else 1


def _step_flops(net: Net, population: Population) -> int:
    dataset = population.dataset
    example = dataset.normalise(tree.wrap_array(dataset.train.x[:1]))[0]
    return population.local.batch_size * example_flops(net, net.parameters, example)
