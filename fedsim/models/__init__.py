"""The models, by the name that a spec gives them.

A model is a function of `input_shape`, `num_classes` and its own parameters (keyword-only, with defaults)
that returns an `nn.Sequential` of named blocks, the head last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from torch import nn

from ..net import Net
from .lenet import lenet5
from .linear import logistic, mlp

ModelFunction: TypeAlias = Callable[..., nn.Sequential]

MODELS: Mapping[str, ModelFunction] = {
    "lenet5": lenet5,
    "logistic": logistic,
    "mlp": mlp,
}


def make_net(name: str, *, input_shape: tuple[int, ...], num_classes: int, **params: Any) -> Net:
    """The Net of a registered model.

    Args:
        name: one of `MODELS`.
        input_shape: of one example.
        num_classes: C.
        params: the model's own parameters.

    Raises:
        ValueError: if the model does not take such inputs.
    """
    build = partial(MODELS[name], input_shape=input_shape, num_classes=num_classes, **params)
    return Net(build, name)


__all__ = ["MODELS", "lenet5", "logistic", "make_net", "mlp"]
