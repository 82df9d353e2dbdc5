"""Check that a chain takes the inputs of a data set, and returns outputs of the shape that its task asks."""

from __future__ import annotations

import torch
from torch.func import functional_call

from fedsim.models.net import InputForm, Net

FEW_PARAMETERS = 1_000_000
"""A net with at most so many parameters is small: one pass of two examples takes milliseconds."""


def check_outputs(net: Net) -> None:
    """Check the outputs of a net; modules that are no chain were checked when they were probed.

    Raises:
        ValueError: the net does not take the inputs, or its outputs have another shape.
    """
    inputs = net.inputs
    if inputs is None or inputs.outputs is None or not net.is_chain:
        return
    is_small = net.count_parameters() <= FEW_PARAMETERS
    # Torch imports more for its meta device than a small net takes.
    found = _find_shape(net, inputs) if is_small else _find_shape_on_meta(net, inputs)
    if found is not None and found != inputs.outputs:
        raise ValueError(
            f"{net.name} returns outputs of shape {list(found)} for an example; "
            f"this data asks for {list(inputs.outputs)}"
        )


def _find_shape(net: Net, inputs: InputForm) -> tuple[int, ...]:
    """Return the shape of a net's outputs for one example."""
    params, x = net.init(seed=0), inputs.make_examples(2)
    try:
        with net.evaluation_mode(), torch.no_grad():
            return tuple(net(params, x).shape[1:])
    except Exception as error:
        raise _make_input_error(net, inputs, error) from error


def _find_shape_on_meta(net: Net, inputs: InputForm) -> tuple[int, ...] | None:
    """Find the shape on torch's meta device, which takes no time; None if a layer needs numbers."""
    x = inputs.make_examples(2).to("meta")
    state = {key: value.to("meta") for key, value in net.module.state_dict().items()}
    try:
        with net.evaluation_mode(), torch.no_grad():
            return tuple(functional_call(net.module, state, (x,)).shape[1:])
    except NotImplementedError:
        return None
    except Exception as error:
        if "meta" in str(error).lower():  # such as `x.item()`, or a constant on the CPU
            return None
        raise _make_input_error(net, inputs, error) from error


def _make_input_error(net: Net, inputs: InputForm, error: Exception) -> ValueError:
    what = "tokens" if inputs.vocabulary else "numbers"
    return ValueError(
        f"{net.name} does not take a batch of {what} of shape {[2, *inputs.shape]}: "
        f"{type(error).__name__}: {error}"
    )
