"""Models of Hugging Face transformers: `model: {name: transformers, ...}` (the optional extra `text`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedsim.base.parameters import make_spec_error, suggest_name
from fedsim.data.places import DataPath, DataRoots
from fedsim.models.inputs import image_shape, token_length
from fedsim.models.libraries.hugging_face import (
    NO_DATA_ROOTS,
    import_transformers,
    load_published,
    refuse_loading_config,
)

Task: TypeAlias = Literal["sequence-classification", "causal-lm", "image-classification"]

CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "sequence-classification": "AutoModelForSequenceClassification",
        "causal-lm": "AutoModelForCausalLM",
        "image-classification": "AutoModelForImageClassification",
    }
)


LOADING_SETTINGS = frozenset(
    {
        *("architecture", "attn_implementation", "auto_map", "backbone", "backbone_config"),
        *("backbone_kwargs", "experts_implementation", "model_args", "quantization_config"),
    }
)
"""Settings of a configuration, or of its parts, by which the library loads code or files."""


def transformers(
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = 0,
    places: DataRoots = NO_DATA_ROOTS,
    *,
    task: Task,
    arch: str | None = None,
    pretrained: DataPath | None = None,
    **config: Any,
) -> nn.Module:
    """A model of Hugging Face transformers; the names of its parameters are those of its library.

    Texts are token numbers, and token 0 is padding: the attention does not see it.

    Args:
        input_shape: `(length,)` for texts, `(channels, height, width)` for images.
        num_classes: C.
        vocabulary: number of tokens of the data; 0 for images.
        places: the data roots for published weights, and whether downloads are allowed.
        task: `sequence-classification` (logits [C]), `causal-lm` (logits [length, vocabulary]) or
            `image-classification` (logits [C]).
        arch: the architecture of a random start: the `model_type` of a configuration, such as `bert`.
        pretrained: published weights: a folder in a data root, at the same path on every node, or a name of
            the Hugging Face hub, in every node's cache or to be downloaded. The last layer begins anew if the
            weights have none for this task and these classes.
        config: settings of the configuration, such as `hidden_size`.

    Raises:
        SpecError: if there is no such architecture or setting, or `pretrained` is a path outside the data
            roots.
        ValueError: if the model cannot take the inputs or has no form for the task, or the package
            transformers is not installed.
        DataNotFound: if the weights are missing and cannot be downloaded.
    """
    if (arch is None) == (pretrained is None):
        raise ValueError("needs either 'arch', for a random start, or 'pretrained', for published weights")
    library = import_transformers()
    fixed = _fit_to_texts if task != "image-classification" else _fit_to_images
    kind = getattr(library, CLASSES[task])
    if arch is not None:
        made = _make_config(library, arch, config)
    else:
        made = load_published(library.AutoConfig, str(pretrained), places, trust_remote_code=False)
        _require_settings(made, config)
        for name, value in config.items():
            setattr(made, name, value)
    refuse_loading_config(made)
    fixed(made, input_shape, vocabulary, config, pretrained)
    if task != "causal-lm":
        made.num_labels = num_classes
    if type(made) not in kind._model_mapping:
        raise ValueError(f"{made.model_type} has no form for {task}")
    if pretrained is None or torch.get_default_device().type == "meta":
        model: nn.Module = kind.from_config(made)
    else:
        anew = {"ignore_mismatched_sizes": True, "dtype": torch.float32, "trust_remote_code": False}
        model = load_published(kind, pretrained, places, config=made, **anew)
    model.register_forward_pre_hook(_name_tokens if vocabulary else _name_pixels, with_kwargs=True)
    return model


def _make_config(library: Any, arch: str, settings: Mapping[str, Any]) -> Any:
    """Return the configuration of an architecture; the library ignores settings that it does not know."""
    if arch not in library.CONFIG_MAPPING:
        hint = suggest_name(arch, library.CONFIG_MAPPING.keys())
        raise make_spec_error("arch", arch, "transformers has no such architecture", hint)
    _require_settings(library.CONFIG_MAPPING[arch](), settings)
    try:
        return library.CONFIG_MAPPING[arch](**settings)
    except Exception as error:  # the library checks settings with errors of its own kinds
        raise ValueError(f"{arch} does not take these settings: {error}") from None


def _require_settings(config: Any, settings: Mapping[str, Any]) -> None:
    """Raise an error for a name that is no setting of the architecture.

    Arguments of the library that load files or run the code of a repository are none.
    """
    for name, value in settings.items():
        if loading := LOADING_SETTINGS & set(_list_names({name: value})):
            message = f"cannot set {min(loading)}: it names files or code"
            raise make_spec_error(name, value, message, "leave it out")
        if not hasattr(config, name) or callable(getattr(config, name)) or name.startswith("_"):
            known = [each for each in config.to_dict() if not each.startswith("_")]
            message = f"is no setting of {config.model_type}"
            raise make_spec_error(name, value, message, suggest_name(name, known))


def _list_names(settings: object) -> Iterator[str]:
    """Yield the names of all settings, also of those of a configuration's parts."""
    if isinstance(settings, Mapping):
        yield from map(str, settings)
    if isinstance(settings, Mapping | list | tuple):
        for value in settings.values() if isinstance(settings, Mapping) else settings:
            yield from _list_names(value)


def _fit_to_texts(
    config: Any,
    input_shape: tuple[int, ...],
    vocabulary: int,
    settings: Mapping[str, Any],
    pretrained: str | None,
) -> None:
    """Set the vocabulary and the padding of a configuration, and check the length of the texts."""
    length, known = token_length(input_shape, vocabulary), getattr(config, "vocab_size", vocabulary)
    if pretrained is not None and vocabulary > known:
        raise ValueError(
            f"{pretrained} knows {known} tokens, but this data has {vocabulary}; "
            "use the tokenizer that belongs to the weights"
        )
    if pretrained is None and "vocab_size" not in settings:
        config.vocab_size = vocabulary
        for name in ("bos_token_id", "eos_token_id"):
            setattr(config, name, None)
    config.pad_token_id = 0
    config.use_cache = False
    most = getattr(config, "max_position_embeddings", length)
    if length > most:
        raise ValueError(f"takes texts of at most {most} tokens; these have {length}")


def _fit_to_images(
    config: Any,
    input_shape: tuple[int, ...],
    vocabulary: int,
    settings: Mapping[str, Any],
    pretrained: str | None,
) -> None:
    """Set the channels and the size of the images in a configuration of a random start."""
    channels, height, width = image_shape(input_shape, 1)
    if pretrained is not None:
        return
    fitting = {"num_channels": channels, "image_size": height if height == width else [height, width]}
    for name, value in fitting.items():
        if hasattr(config, name) and name not in settings:
            setattr(config, name, value)


def _name_tokens(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
    """Turn the call `model(tokens)` into the arguments of a model of texts."""
    return (), {"input_ids": args[0].long(), "attention_mask": (args[0] != 0).long(), **kwargs}


def _name_pixels(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
    """Turn the call `model(images)` into the arguments of a model of images."""
    return (), {"pixel_values": args[0], **kwargs}
