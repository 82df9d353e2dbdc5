"""Every image model of timm by its name: `model: {name: timm, arch: convnext_atto}` (the extra `timm`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedsim.base.extras import import_extra
from fedsim.base.parameters import make_spec_error, suggest_name
from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.data.places import DataRoots
from fedsim.models.inputs import image_shape
from fedsim.models.libraries.hugging_face import NO_DATA_ROOTS, WEIGHT_FILES, make_missing_weights_error

LOADING_PARAMETERS = frozenset(
    {"cache_dir", "checkpoint_path", "model_name", "pretrained_cfg", "pretrained_cfg_overlay"}
)


def timm(
    input_shape: tuple[int, ...],
    num_classes: int,
    places: DataRoots = NO_DATA_ROOTS,
    *,
    arch: str,
    pretrained: bool = False,
    **params: Any,
) -> nn.Module:
    """An image model of timm, as its own code has it.

    Args:
        input_shape: `(channels, height, width)`; timm adapts the first layer to the channels.
        num_classes: C; the last layer is made for them.
        places: whether downloads are allowed.
        arch: its name in timm, such as `convnext_atto`, or with a tag of its weights (`resnet18.a1_in1k`).
        pretrained: whether to begin from timm's published weights, from the cache of the Hugging Face hub or
            to be downloaded.
        params: further arguments of timm's function, such as `drop_rate`, or `img_size` of a vision
            transformer.

    Raises:
        SpecError: if timm has no such architecture.
        ValueError: if the inputs are no images, the architecture does not take the parameters, or the package
            timm is not installed.
        DataNotFound: if the weights are not in the cache and cannot be downloaded.
    """
    channels, *_ = image_shape(input_shape, 1)
    prepare_torchvision()
    library = import_extra("timm", "timm")
    name, _, tag = arch.partition(".")
    if not library.is_model(name):
        hint = suggest_name(name, library.list_models())
        raise make_spec_error("arch", arch, "timm has no such model", hint)
    tags = library.list_pretrained(f"{name}.*")
    if (tag or pretrained) and (arch if tag else name) not in [*tags, *(each.split(".")[0] for each in tags)]:
        hint = f"it has {', '.join(tags) or 'none'}"
        raise make_spec_error("arch", arch, "timm has no such published weights", hint)
    # Of the library's loader: they read any file or address.
    for loading in LOADING_PARAMETERS & params.keys():
        message = "cannot be set: fedsim chooses where weights are read"
        raise make_spec_error(loading, params[loading], message, "begin from own weights with `init`")
    if pretrained and torch.get_default_device().type != "meta":
        params = {**params, "pretrained": True, **_find_weights(library, arch, places)}
    try:
        module: nn.Module = library.create_model(arch, num_classes=num_classes, in_chans=channels, **params)
    except OSError as error:
        raise make_missing_weights_error(library.get_pretrained_cfg(arch).hf_hub_id, places) from error
    except (TypeError, ValueError, AssertionError, ArithmeticError, LookupError, AttributeError) as error:
        raise ValueError(f"timm's {arch} does not take these parameters: {error}") from None
    return module


def _find_weights(library: Any, arch: str, places: DataRoots) -> dict[str, Any]:
    """Return the argument that names published weights in the cache; {} to download them."""
    repository = library.get_pretrained_cfg(arch).hf_hub_id
    hub = import_extra("huggingface_hub", "timm")
    for file in WEIGHT_FILES:
        if isinstance(path := hub.try_to_load_from_cache(repository, file), str):
            return {"pretrained_cfg_overlay": {"file": path}}
    if not places.download:
        raise make_missing_weights_error(repository, places)
    return {}
