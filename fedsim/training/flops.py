"""Floating-point operations of a model, counted while it runs once, by the formulas of torch's own counter.

Only what dominates is counted, as torch does: matrix products, convolutions and attention, two operations for
a product and its addition. What the engine runs is not what is counted but what the model is: the module as
it was built, one forward pass in training mode and the backward pass for those parameters that train.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedsim.models.net import Net

COUNTED_ON = 2
"""Examples in the batch that is counted: one alone has no batch statistics."""


class _Dispatch:
    """Counts every operation on its way to torch."""

    total = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        result = operation(*args, **given)
        formula: Callable[..., int] | None = flop_registry.get(operation._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **given, out_val=result)
        return result


class _Count(_Dispatch, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode.

    FlopCounterMode itself loads torch's compiler when it sees its first operation, for seconds; so does every
    mode whose own class has the method, which is why this one inherits it.
    """


def example_flops(
    net: Net,
    trainable: Collection[str],
    example: Tensor,
    start: str | None = None,
    moves_input: bool = False,
) -> int:
    """Operations of one example's part in a local step.

    Args:
        net: the model.
        trainable: keys that the step moves: the backward pass goes as far down as the first of them, and
            crosses what is frozen above it. None of them: only the forward pass.
        example: an input as the model reads it, without the batch dimension, on the CPU.
        start: the block that reads it; None for the first.
        moves_input: whether the step asks besides, or only, in which direction the input should move.
    """
    module = net.module if start is None else _module_from(net, start)
    state = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in module.state_dict().items()}
    weights = [state[key].requires_grad_() for key in net.parameters if key in trainable]
    x = example.expand(COUNTED_ON, *example.shape).contiguous()
    weights += [x.requires_grad_()] if moves_input else []
    # The other kernels of attention have no formula on a CPU; in products of matrices it is all counted.
    count = _Count()  # type: ignore[no-untyped-call]
    with net.training_mode(), torch.random.fork_rng(devices=[]), sdpa_kernel(SDPBackend.MATH), count:
        output: Tensor = functional_call(module, state, (x,))
        if weights:
            torch.autograd.grad(output.sum(), weights, allow_unused=True)
    return int(count.total) // COUNTED_ON


def _module_from(net: Net, start: str) -> nn.Module:
    """The module from this block on; keys keep their names."""
    blocks = list(net.module.named_children())[net.block_names.index(start) :]
    return nn.Sequential(OrderedDict(blocks))


@lru_cache(maxsize=16)
def input_flops(net: Net, input_shape: Sequence[int]) -> tuple[int, int]:
    """Operations of one input that is made up: in a step that moves it, and in one that learns from it."""
    x = torch.zeros(tuple(input_shape))
    return example_flops(net, (), x, moves_input=True), example_flops(net, net.parameters, x)
