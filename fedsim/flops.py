"""Floating-point operations of a model, counted while it runs once, by the formulas of torch's own counter.

Only what dominates is counted, as torch does: matrix products, convolutions and attention, two operations for
a product and its addition. What the engine runs is not what is counted but what the model is: the module as
it was built, one forward pass in training mode and the backward pass for those parameters that train.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .net import Net

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


def example_flops(net: Net, trainable: Collection[str], example: Tensor) -> int:
    """Operations of one example's part in a local step.

    Args:
        net: the model.
        trainable: keys that the step moves: the backward pass goes as far down as the first of them, and
            crosses what is frozen above it. None of them: only the forward pass.
        example: an input as the model reads it, without the batch dimension, on the CPU.
    """
    module = net.module
    state = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in module.state_dict().items()}
    weights = [state[key].requires_grad_() for key in net.parameters if key in trainable]
    x = example.expand(COUNTED_ON, *example.shape).contiguous()
    # The other kernels of attention have no formula on a CPU; in products of matrices it is all counted.
    count = _Count()  # type: ignore[no-untyped-call]
    with net.training(), torch.random.fork_rng(devices=[]), sdpa_kernel(SDPBackend.MATH), count:
        output: Tensor = functional_call(module, state, (x,))
        if weights:
            torch.autograd.grad(output.sum(), weights, allow_unused=True)
    return int(count.total) // COUNTED_ON
