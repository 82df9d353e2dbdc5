"""A module compiled into direct function calls of (params, x).

This is faster than calling modules, and without state: `torch.func` can take gradients and stack clients. A
module that is not known here runs through `torch.func.functional_call`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedsim.models.layers import BatchNorm, Residual, batch_norm
from fedsim.models.state import Params, list_children, list_constants, move_constants, select_keys

Step: TypeAlias = Callable[[Params, Tensor], Tensor]


def is_chain(module: nn.Module) -> bool:
    """Return whether the module is the composition of its children: an `nn.Sequential` without hooks."""
    return type(module).forward is nn.Sequential.forward and not _is_patched(module)


def compile_module(module: nn.Module, prefix: str) -> list[Step]:
    """The module as a list of functions of (params, x).

    Args:
        module: a child of a model.
        prefix: its name in the model.
    """
    if is_chain(module):
        return _compile_chain(module, prefix)
    make = _LAYERS.get(type(module))
    # The functions of single layers take all weights from `params`, which has no frozen ones.
    if make is None or _is_patched(module) or list_constants(module):
        return [_compile_any(module, prefix)]
    return [make(module, prefix)]


def _is_patched(module: nn.Module) -> bool:
    """Return whether a module has hooks, or a `forward` of its own beside that of its class."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _compile_chain(module: nn.Module, prefix: str) -> list[Step]:
    children = [(f"{prefix}.{name}", child) for name, child in list_children(module)]
    return [step for path, child in _move_pooling_first(children) for step in compile_module(child, path)]


def _move_pooling_first(children: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Swap ReLU and the max pooling after it.

    Max commutes with every monotone function: values and gradients are the same, computed on a quarter of the
    numbers.
    """
    ordered = list(children)
    for i in range(len(ordered) - 1):
        if type(ordered[i][1]) is nn.ReLU and type(ordered[i + 1][1]) is nn.MaxPool2d:
            ordered[i], ordered[i + 1] = ordered[i + 1], ordered[i]
    return ordered


def _linear(module: nn.Linear, prefix: str) -> Step:
    weight, bias = f"{prefix}.weight", f"{prefix}.bias"
    if module.bias is None:
        return lambda params, x: F.linear(x, params[weight])
    return lambda params, x: F.linear(x, params[weight], params[bias])


def _conv2d(module: nn.Conv2d, prefix: str) -> Step:
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        return _compile_any(module, prefix)
    weight, bias = f"{prefix}.weight", f"{prefix}.bias"
    stride, padding, dilation, groups = module.stride, module.padding, module.dilation, module.groups

    def call(params: Params, x: Tensor) -> Tensor:
        kernel, shift = params[weight], None if module.bias is None else params[bias]
        if multiplies_matrices(x, kernel, module):
            return convolve_by_matrices(x, kernel, shift, stride, padding)
        return F.conv2d(x, kernel, shift, stride, padding, dilation, groups)

    return call


MATRIX_VALUES = 2**21
"""Largest matrix of patches, for one client of a stack: 8 MiB in single precision."""


def multiplies_matrices(x: Tensor, kernel: Tensor, module: nn.Conv2d) -> bool:
    """Whether a convolution of a stack on a GPU is faster as one product of matrices.

    `torch.func.vmap` makes one grouped convolution of the kernels of many clients, for which cuDNN starts
    work client by client. A product of stacked matrices starts once for all. Large inputs are left to cuDNN:
    a matrix of patches repeats each number for every place of the kernel. So are gradients by the input
    within the loss, for which `torch.func.vmap` has no rule.
    """
    inside = torch._C._functorch
    if x.device.type == "cpu" or not inside.is_batchedtensor(kernel) or inside.is_gradtrackingtensor(x):
        return False
    if module.groups != 1 or module.dilation != (1, 1) or x.dim() != 4:
        return False
    places = kernel.shape[-2] * kernel.shape[-1] // (module.stride[0] * module.stride[1])
    return x.numel() * places <= MATRIX_VALUES


def convolve_by_matrices(
    x: Tensor, kernel: Tensor, bias: Tensor | None, stride: tuple[int, ...], padding: tuple[int, ...]
) -> Tensor:
    """Convolve as a product of two matrices: the kernels, and the patches of the input.

    Args:
        x: `[batch, channels, height, width]`.
        kernel: `[outputs, channels, rows, columns]`.
        bias: `[outputs]`; None for none.
        stride: of rows and columns.
        padding: zeros at both ends of rows and columns.

    Returns:
        `[batch, outputs, height, width]`, as `torch.nn.functional.conv2d`.
    """
    outputs, channels, rows, columns = kernel.shape
    if any(padding):
        x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    patches = x.unfold(2, rows, stride[0]).unfold(
        3, columns, stride[1]
    )  # [batch, channels, h, w, rows, columns]
    batch, _, height, width = patches.shape[:4]
    matrix = patches.permute(1, 4, 5, 0, 2, 3).reshape(channels * rows * columns, batch * height * width)
    product = kernel.reshape(outputs, channels * rows * columns) @ matrix
    if bias is not None:
        product = product + bias[:, None]
    # Modules of a user may view it, as the output of conv2d.
    return product.view(outputs, batch, height, width).transpose(0, 1).contiguous()


def _group_norm(module: nn.GroupNorm, prefix: str) -> Step:
    if not module.affine:
        return lambda params, x: F.group_norm(x, module.num_groups, eps=module.eps)
    weight, bias = f"{prefix}.weight", f"{prefix}.bias"
    return lambda params, x: F.group_norm(x, module.num_groups, params[weight], params[bias], module.eps)


def _batch_norm(module: BatchNorm, prefix: str) -> Step:
    momentum, eps = module.momentum, module.eps
    if momentum is None or not module.track_running_stats:
        return _compile_any(module, prefix)
    mean, variance = f"{prefix}.running_mean", f"{prefix}.running_var"
    weight, bias = f"{prefix}.weight", f"{prefix}.bias"

    def call(params: Params, x: Tensor) -> Tensor:
        gain, shift = (params[weight], params[bias]) if module.affine else (None, None)
        return batch_norm(x, params[mean], params[variance], gain, shift, module.training, momentum, eps)

    return call


def _residual(module: Residual, prefix: str) -> Step:
    steps = _compile_chain(module, prefix)

    def call(params: Params, x: Tensor) -> Tensor:
        out = x
        for step in steps:
            out = step(params, out)
        return x + out

    return call


def _max_pool2d(module: nn.MaxPool2d, prefix: str) -> Step:
    """Pool pairs of rows, then pairs of columns: the same numbers in a third to a tenth of the time.

    This is used only without gradients, because equal values would share a gradient that pooling gives to the
    first of them; and only if channels are the last dimension in memory, as on a CPU.
    """
    if not _pools_by_two(module):
        return lambda params, x: module(x)

    def call(params: Params, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or x.device.type != "cpu" or x.dim() != 4 or x.stride(1) != 1:
            return F.max_pool2d(x, 2)
        count, channels, height, width = x.shape
        even = x[:, :, : height // 2 * 2, : width // 2 * 2].permute(0, 2, 3, 1)
        pairs = even.reshape(count, height // 2, 2, width // 2, 2 * channels)
        rows = torch.maximum(pairs[:, :, 0], pairs[:, :, 1])
        return torch.maximum(rows[..., :channels], rows[..., channels:]).permute(0, 3, 1, 2)

    return call


def _pools_by_two(module: nn.MaxPool2d) -> bool:
    """Whether the layer takes the maximum of every 2 x 2, without any other option."""
    sizes = {module.kernel_size, module.stride}
    return (
        sizes <= {2, (2, 2)}
        and module.padding == 0
        and module.dilation == 1
        and not (module.ceil_mode or module.return_indices)
    )


def _relu(module: nn.ReLU, prefix: str) -> Step:
    return lambda params, x: F.relu(x)


def _flatten(module: nn.Flatten, prefix: str) -> Step:
    first, last = module.start_dim, module.end_dim
    return lambda params, x: x.flatten(first, last)


def _compile_any(module: nn.Module, prefix: str) -> Step:
    """Any module, through functional_call; batch statistics are updated in the caller's tensors."""
    names = {name: f"{prefix}.{name}" for name in select_keys(module)}
    constants = list_constants(module)
    if not names and not constants:
        return lambda params, x: module(x)

    def call(params: Params, x: Tensor) -> Tensor:
        mine = {name: params[key] for name, key in names.items()}
        mine |= move_constants(constants, x.device)
        output: Tensor = functional_call(module, mine, (x,))
        return output

    return call


_LAYERS: dict[type[nn.Module], Callable[[Any, str], Step]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.GroupNorm: _group_norm,
    BatchNorm: _batch_norm,
    Residual: _residual,
    nn.MaxPool2d: _max_pool2d,
    nn.ReLU: _relu,
    nn.Flatten: _flatten,
}
