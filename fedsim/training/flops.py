"""Count the floating-point operations (FLOPs) of a model while it runs once, by the formulas of torch.

As in torch, only the dominant operations count: matrix products, convolutions and attention, with two
operations for one multiplication and addition. The count is a property of the model, not of the engine's
kernels: the original module makes one forward pass in training mode, and the backward pass for the
parameters that train.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedsim.models.net import Net, Params
from fedsim.models.probe import skip_breakpoints
from fedsim.models.state import list_children

COUNTED_ON = 2
"""Examples in the counted batch: a single example has no batch statistics."""

MANY_VALUES = 10**7
"""Weights and activations of a model that is not large, by a rough bound."""


class _Dispatch:
    """Adds up the FLOPs of every torch operation."""

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
    """Context manager that counts FLOPs.

    torch's `FlopCounterMode` takes seconds to load the compiler at its first operation. So does every mode
    whose own class defines `__torch_dispatch__`, so this class inherits the method from `_Dispatch`.
    """


class FlopCounter:
    """Counts the FLOPs of all operations of torch inside its `with` blocks.

    Args:
        is_active: False counts nothing, and costs nothing.
    """

    def __init__(self, is_active: bool = True) -> None:
        self.is_active, self._count = is_active, _Count()  # type: ignore[no-untyped-call]

    def __enter__(self) -> None:
        if self.is_active:
            self._count.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        if self.is_active:
            self._count.__exit__(*error)  # type: ignore[no-untyped-call]

    def take_total(self) -> int:
        """Return the FLOPs since the last call."""
        total, self._count.total = self._count.total, 0
        return int(total)


def example_flops(
    net: Net,
    trainable: Collection[str],
    example: Tensor,
    start: str | None = None,
    moves_input: bool = False,
) -> int:
    """Return the FLOPs of one example in a local step.

    Args:
        net: the model.
        trainable: keys that the step moves. The backward pass goes down to the first of them, through frozen
            layers above it. If empty, only the forward pass counts.
        example: an input of the model without the batch dimension, on the CPU.
        start: the block that reads the input; None for the first block.
        moves_input: whether the step also needs the gradient by the input.
    """
    # On the meta device a pass takes no memory, however large the model is. But it loads torch's compiler,
    # which takes longer than the whole count of a small model.
    is_large = net.runs_without_values and _bound_values(net, example) > MANY_VALUES
    device = torch.device("meta" if is_large else "cpu")
    run, state = _make_forward(net, start, device)
    weights = [state[key].requires_grad_() for key in net.parameters if key in trainable]
    x = example.to(device).expand(COUNTED_ON, *example.shape).contiguous()
    weights += [x.requires_grad_()] if moves_input else []
    # Other attention kernels have no formula on a CPU; the MATH kernel uses matrix products, which count.
    count = _Count()  # type: ignore[no-untyped-call]
    alone = torch.random.fork_rng(devices=[])
    with (
        net.training_mode(),
        alone,
        skip_breakpoints(),
        sdpa_kernel(SDPBackend.MATH),
        _decompose_layers(),
        count,
    ):
        output = run(state, x)
        if weights:
            torch.autograd.grad(output.sum(), weights, allow_unused=True)
    return int(count.total) // COUNTED_ON


@contextmanager
def _decompose_layers() -> Iterator[None]:
    """Have torch run an LSTM as matrix products, which count: oneDNN runs it as one operation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this is slower
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _bound_values(net: Net, example: Tensor) -> int:
    """Return a rough bound of a model's weights and activations: each layer has the places of the input."""
    shapes = [value.shape for value in net.module.parameters()]
    return sum(max(shape, default=1) * example.numel() + shape.numel() for shape in shapes)


def _make_forward(
    net: Net, start: str | None, device: torch.device
) -> tuple[Callable[[Params, Tensor], Tensor], dict[str, Tensor]]:
    """Return the forward pass from a block on, by the original module, and parameters to run it with."""
    if not net.is_chain:
        described = net.module.state_dict()
        zeros = {key: _make_zeros(described[key], device) for key in net.keys}
        return lambda state, x: net.run_blocks(state, x, start=start), zeros
    module = net.module if start is None else _module_from(net, start)
    own = {name: _make_zeros(value, device) for name, value in module.state_dict().items()}
    return lambda state, x: functional_call(module, dict(state), (x,)), own


def _make_zeros(like: Tensor, device: torch.device) -> Tensor:
    return torch.zeros(like.shape, dtype=like.dtype, device=device)


def _module_from(net: Net, start: str) -> nn.Module:
    """Return the module from this block on; keys keep their names."""
    blocks = list_children(net.module)[net.block_names.index(start) :]
    return nn.Sequential(OrderedDict(blocks))


@lru_cache(maxsize=16)
def input_flops(net: Net, input_shape: Sequence[int]) -> tuple[int, int]:
    """Return the FLOPs of one synthetic input: in a step that moves it, and in a step that trains on it."""
    x = torch.zeros(tuple(input_shape))
    return example_flops(net, (), x, moves_input=True), example_flops(net, net.parameters, x)
