"""Check that a chain of blocks returns outputs of the shape that the learning task asks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from fedsim.models.net import Net

FEW_PARAMETERS = 1_000_000
"""A net with at most so many parameters is small: one pass of two examples takes milliseconds."""


def check_outputs(net: Net) -> None:
    """Check the shape of a net's outputs; modules that are no chain were checked when they were probed.

    Raises:
        ValueError: the net does not take the inputs, or its outputs have another shape.
    """
    if net.inputs is None or net.inputs.outputs is None or not net.is_chain:
        return
    found = find_output_shape(net)
    if found is not None and found != net.inputs.outputs:
        raise ValueError(
            f"{net.name} returns outputs of shape {list(found)} for an example; "
            f"this data asks for {list(net.inputs.outputs)}"
        )


def find_output_shape(net: Net) -> tuple[int, ...] | None:
    """Return the shape of a chain's outputs for one example; None if it cannot run without numbers.

    A large net runs on torch's meta device, which has shapes and no numbers, so that it takes no time. A
    small net runs on zeros: torch imports more for its meta device than the net takes.
    """
    if net.inputs is None:
        return None
    with torch.device("cpu" if net.count_parameters() <= FEW_PARAMETERS else "meta"):
        x = torch.zeros((2, *net.inputs.shape), dtype=torch.long if net.inputs.vocabulary else torch.float32)
        state: Mapping[str, Tensor] = {
            key: torch.zeros(value.shape, dtype=value.dtype) for key, value in net.module.state_dict().items()
        }
    try:
        with net.evaluation_mode(), torch.no_grad():
            return tuple(functional_call(net.module, dict(state), (x,)).shape[1:])
    except (RuntimeError, NotImplementedError):  # a layer that reads numbers
        return None
