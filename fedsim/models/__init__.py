"""The models, by the name that a spec gives them.

A model is a function of `input_shape`, `num_classes` and its own parameters (keyword-only, with defaults)
that returns any `nn.Module`. The children of an `nn.Sequential` are its blocks, the head last; any other
module may declare blocks. A model of texts also takes `vocabulary`, the number of tokens of the data.
Libraries that are slow to import or not always installed are imported when such a model is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from torch import nn

from fedsim.base.parameters import list_defaults
from fedsim.data.places import DataRoots
from fedsim.models.audio import mel_cnn
from fedsim.models.block_names import BlockPatterns
from fedsim.models.cnn import fedavg_cnn, fedgen_cnn, moon_cnn
from fedsim.models.distilbert import FirstToken, distilbert
from fedsim.models.googlenet import googlenet
from fedsim.models.initial_weights import InitialWeights
from fedsim.models.lenet import lenet5
from fedsim.models.libraries.hugging_face import NO_DATA_ROOTS
from fedsim.models.libraries.timm_models import timm
from fedsim.models.libraries.torchvision_models import torchvision
from fedsim.models.libraries.transformers_models import transformers
from fedsim.models.linear import logistic, mlp
from fedsim.models.lora import build_with_lora
from fedsim.models.net import InputForm, Net
from fedsim.models.output_shape import check_outputs
from fedsim.models.python_file import python
from fedsim.models.randomness import DROPOUT_REASON, RUNNING_STATISTICS_REASON
from fedsim.models.resnet import resnet9, resnet18, resnet34, resnet50
from fedsim.models.transformer import causal_transformer, small_transformer
from fedsim.models.unet import small_unet
from fedsim.models.vgg import vgg16, vgg19
from fedsim.plugins import Registry

ModelFunction: TypeAlias = Callable[..., nn.Module]

_OWN: dict[str, ModelFunction] = {
    "causal_transformer": causal_transformer,
    "distilbert": distilbert,
    "fedavg_cnn": fedavg_cnn,
    "fedgen_cnn": fedgen_cnn,
    "googlenet": googlenet,
    "lenet5": lenet5,
    "logistic": logistic,
    "mel_cnn": mel_cnn,
    "mlp": mlp,
    "moon_cnn": moon_cnn,
    "python": python,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet9": resnet9,
    "small_transformer": small_transformer,
    "small_unet": small_unet,
    "timm": timm,
    "torchvision": torchvision,
    "transformers": transformers,
    "vgg16": vgg16,
    "vgg19": vgg19,
}

MODELS = Registry("models", "model", _OWN, callable, "a function that makes a model")


def reads_tokens(name: str) -> bool:
    """Whether this is a model of texts."""
    return "vocabulary" in inspect.signature(MODELS[name]).parameters


def why_unstackable(name: str) -> str:
    """The reason why clients of a model with its defaults cannot be stacked; "" if they can.

    It is read from the parameters `norm` and `dropout`: building all models would take seconds, and need
    packages that are not always installed.

    Args:
        name: one of `MODELS`.
    """
    if MODELS[name] is distilbert:
        return FirstToken.unstackable
    defaults = list_defaults(MODELS[name])
    if defaults.get("norm") == "batch":
        return RUNNING_STATISTICS_REASON
    return DROPOUT_REASON if defaults.get("dropout") else ""


def make_net(
    name: str,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = 0,
    outputs: tuple[int, ...] | None = None,
    places: DataRoots = NO_DATA_ROOTS,
    blocks: BlockPatterns | None = None,
    lora: Mapping[str, Any] | None = None,
    initial: InitialWeights | None = None,
    **params: Any,
) -> Net:
    """Return the Net of a registered model.

    Args:
        name: one of `MODELS`.
        input_shape: of one example.
        num_classes: C.
        vocabulary: number of tokens; 0 for data without tokens.
        outputs: shape of the outputs that the learning task asks for one example; None for [num_classes],
            which is checked only for modules that have to run once.
        places: the data roots for published weights, and whether downloads are allowed.
        blocks: the blocks of a module that is no `nn.Sequential`; see `fedsim.models.block_names`.
        lora: arguments of `peft.LoraConfig` for adapters beside frozen weights; see `fedsim.models.lora`.
        initial: weights from which the model begins; None for its own initialisers.
        params: the model's own parameters.

    Raises:
        SpecError: if `pretrained` is a path outside the data roots, or `initial` does not fit.
        ValueError: if the model does not take such inputs, or cannot serve as a model.
        DataNotFound: if published weights are missing and cannot be downloaded.

    Example:
        >>> net = make_net("mlp", input_shape=(1, 8, 8), num_classes=10, hidden=16)
        >>> net.count_parameters()
        1210
    """
    wanted = (num_classes,) if outputs is None else tuple(outputs)
    inputs = InputForm(tuple(input_shape), vocabulary, wanted)
    build = make_builder(name, inputs, num_classes, places, **params)
    if lora is not None:
        build = partial(build_with_lora, build, lora)
    net = Net(build, name, blocks=blocks, inputs=inputs)
    if outputs is not None:
        check_outputs(net)
    if initial is not None:
        net.load_weights(initial)
    return net


def make_builder(
    name: str, inputs: InputForm, num_classes: int, places: DataRoots = NO_DATA_ROOTS, **params: Any
) -> Callable[[], nn.Module]:
    """Return a function that builds the module of a registered model.

    Args:
        name: one of `MODELS`.
        inputs: the form of the inputs.
        num_classes: C.
        places: the data roots for published weights, and whether downloads are allowed.
        params: the model's own parameters.

    Raises:
        ValueError: if the data has tokens, and the model does not read any.
    """
    build = partial(MODELS[name], input_shape=inputs.shape, num_classes=num_classes, **params)
    if "places" in inspect.signature(MODELS[name]).parameters:
        build = partial(build, places=places)
    if reads_tokens(name):
        return partial(build, vocabulary=inputs.vocabulary)
    if inputs.vocabulary:
        texts = ", ".join(filter(reads_tokens, MODELS))
        raise ValueError(f"takes numbers, but this data has tokens; models of texts: {texts}")
    return build


__all__ = ["MODELS", "make_builder", "make_net", "reads_tokens", "why_unstackable", *_OWN]
