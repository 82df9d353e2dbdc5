"""The number type of local training: float32, TF32 or bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedsim.errors import SettingsError

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]
"""The value of `local.precision` in a spec."""


@contextmanager
def use_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Set how a GPU multiplies float32 numbers within the block, and make its results reproducible.

    Products use TF32 if `precision` is "tf32", and full float32 otherwise. By default torch computes
    convolutions in TF32. The fastest cuDNN algorithms and the gradients of fused attention kernels may add in
    a different order each time. The block uses deterministic cuDNN algorithms, and computes attention as
    matrix products and a softmax. On a CPU the block changes nothing.

    Args:
        precision: the number type of local training.
        device: the device of local training.

    Raises:
        SettingsError: `precision` is "tf32" and the device is a CPU.
    """
    if device.type != "cuda":
        if precision == "tf32":
            raise SettingsError(
                "local.precision 'tf32' is a number type of GPUs, and these clients train on a CPU",
                "give the workers a share of a GPU (resources.gpus_per_worker), or take float32",
            )
        yield
        return
    wanted, before = "tf32" if precision == "tf32" else "ieee", _flags()
    _set_flags(wanted, wanted, wanted, deterministic=True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        _set_flags(*before)


def _flags() -> tuple[str, str, str, bool]:
    cuda: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    return cuda.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, cudnn.deterministic


def _set_flags(products: str, convolutions: str, recurrent: str, deterministic: bool) -> None:
    cuda: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    # First by the older names: torch refuses to read them if they say something else.
    cuda.allow_tf32, cudnn.allow_tf32 = products == "tf32", "tf32" in (convolutions, recurrent)
    cuda.fp32_precision = products
    cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = convolutions, recurrent
    cudnn.deterministic = deterministic


def lower_precision(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which forward passes run in bfloat16 if `precision` is "bf16" (torch's autocast).

    Parameters, gradients, momentum and the operations that autocast excludes stay in float32.
    """
    if precision != "bf16":
        return nullcontext()
    # No cache of cast parameters: local steps change parameters in place, and stacked parameters are views.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
