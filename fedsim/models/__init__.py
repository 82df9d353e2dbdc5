"""The models, by the name that a spec gives them.

A model is a function of `input_shape`, `num_classes` and its own parameters (keyword-only, with defaults)
that returns an `nn.Sequential` of named blocks, the head last. A model of texts takes `vocabulary` as well,
the number of tokens, which is the data's to know. Libraries that are slow to import or not always installed
are imported when such a model is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from torch import nn

from fedsim.base.parameters import list_parameters
from fedsim.data.places import DataRoots
from fedsim.models.audio import mel_cnn
from fedsim.models.cnn import fedavg_cnn, fedgen_cnn, moon_cnn
from fedsim.models.distilbert import NOWHERE, FirstToken, distilbert
from fedsim.models.googlenet import googlenet
from fedsim.models.lenet import lenet5
from fedsim.models.linear import logistic, mlp
from fedsim.models.net import DRAWS, RUNNING, Net
from fedsim.models.resnet import resnet9, resnet18, resnet34, resnet50
from fedsim.models.transformer import small_transformer
from fedsim.models.vgg import vgg16, vgg19
from fedsim.plugins import Registry

ModelFunction: TypeAlias = Callable[..., nn.Sequential]

_OWN: dict[str, ModelFunction] = {
    "distilbert": distilbert,
    "fedavg_cnn": fedavg_cnn,
    "fedgen_cnn": fedgen_cnn,
    "googlenet": googlenet,
    "lenet5": lenet5,
    "logistic": logistic,
    "mel_cnn": mel_cnn,
    "mlp": mlp,
    "moon_cnn": moon_cnn,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet9": resnet9,
    "small_transformer": small_transformer,
    "vgg16": vgg16,
    "vgg19": vgg19,
}

MODELS = Registry("models", "model", _OWN, callable, "a function that makes a model")


def reads_tokens(name: str) -> bool:
    """Whether this model is one of texts."""
    return "vocabulary" in inspect.signature(MODELS[name]).parameters


def why_unstackable(name: str) -> str:
    """Why many clients of a model cannot train as one with its defaults, "" if they can.

    Read from its parameters `norm` and `dropout`: to build all models takes seconds, and packages that are
    not always installed.

    Args:
        name: one of `MODELS`.
    """
    if MODELS[name] is distilbert:
        return FirstToken.unstackable
    defaults = {each.name: each.default for each in list_parameters(MODELS[name])}
    if defaults.get("norm") == "batch":
        return RUNNING
    return DRAWS if defaults.get("dropout") else ""


def make_net(
    name: str,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = 0,
    places: DataRoots = NOWHERE,
    **params: Any,
) -> Net:
    """The Net of a registered model.

    Args:
        name: one of `MODELS`.
        input_shape: of one example.
        num_classes: C.
        vocabulary: how many token numbers there are, 0 for data that is not tokens.
        places: where published weights may lie, and whether they may be fetched.
        params: the model's own parameters.

    Raises:
        SpecError: if it is to start from published weights outside the data roots.
        ValueError: if the model does not take such inputs.
        DataNotFound: if it starts from published weights that cannot be had.
    """
    build = partial(MODELS[name], input_shape=input_shape, num_classes=num_classes, **params)
    if params.get("pretrained") is not None:
        build = partial(build, places=places)
    if reads_tokens(name):
        build = partial(build, vocabulary=vocabulary)
    elif vocabulary:
        texts = ", ".join(filter(reads_tokens, MODELS))
        raise ValueError(f"reads numbers, and this data is tokens; models of texts: {texts}")
    return Net(build, name)


__all__ = ["MODELS", "make_net", "reads_tokens", "why_unstackable", *_OWN]
