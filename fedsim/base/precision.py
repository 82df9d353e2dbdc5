"""The number types in which local steps multiply."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedsim.errors import SettingsError

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]
"""The number type of local steps."""


@contextmanager
def use_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """How products in single precision are made inside: as they are written, or in TF32 where that is asked.

    Left to itself torch makes convolutions on a GPU in TF32, and the fastest algorithm of cuDNN may add in
    another order every time; neither is so inside unless somebody asks for it. So may the fused kernels of
    attention, in their gradients: inside, attention is products of matrices and a softmax. On a CPU there is
    nothing to choose.

    Args:
        precision: of the local training.
        device: where it is done.

    Raises:
        SettingsError: for TF32 on a CPU.
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
    _set_flags(wanted, wanted, deterministic=True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        _set_flags(*before)


def _flags() -> tuple[str, str, bool]:
    cuda: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    return cuda.fp32_precision, cudnn.conv.fp32_precision, cudnn.deterministic


def _set_flags(products: str, convolutions: str, deterministic: bool) -> None:
    cudnn: Any = torch.backends.cudnn
    torch.backends.cuda.matmul.fp32_precision = products
    cudnn.conv.fp32_precision, cudnn.deterministic = convolutions, deterministic


def lower_precision(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The forward passes of a local step inside: in bfloat16 where that is asked, as torch's autocast has it.

    Parameters, gradients, momentum and whatever torch holds to need it stay in single precision.
    """
    if precision != "bf16":
        return nullcontext()
    # Without a cache of what was cast: steps change parameters in place, and stacked ones are views.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
