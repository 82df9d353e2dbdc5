"""Every classification model of torchvision by its name: `model: {name: torchvision, arch: resnet18}`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import nn

from fedsim.base.parameters import make_spec_error, suggest_name
from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.data.places import DataRoots
from fedsim.errors import DataNotFound
from fedsim.models.libraries.hugging_face import NO_DATA_ROOTS

OWN_TRANSFORM = ("googlenet", "inception_v3")
"""Models whose published weights expect inputs that the model itself transforms (`transform_input`)."""


def torchvision(
    input_shape: tuple[int, ...],
    num_classes: int,
    places: DataRoots = NO_DATA_ROOTS,
    *,
    arch: str,
    weights: str | None = None,
    **params: Any,
) -> nn.Module:
    """A classification model of torchvision, as its own code has it.

    Args:
        input_shape: of one example; most architectures need 3 channels.
        num_classes: C; with `weights` the last layer is made anew for them.
        places: whether downloads are allowed.
        arch: its name in torchvision, such as `mobilenet_v3_small`.
        weights: published weights, `DEFAULT` or a name such as `IMAGENET1K_V1`, from torch's cache or to be
            downloaded. None starts from random weights.
        params: further arguments of torchvision's function, such as `dropout`.

    Raises:
        SpecError: if torchvision has no such architecture or no such weights.
        ValueError: if the architecture does not take the parameters.
        DataNotFound: if the weights are not in the cache and cannot be downloaded.
    """
    prepare_torchvision()
    from torchvision import models

    known = models.list_models(module=models)
    if arch not in known:
        raise make_spec_error(
            "arch", arch, "torchvision has no such classification model", suggest_name(arch, known)
        )
    chosen = None if weights is None else _find_weights(models.get_model_weights(arch), arch, weights)
    outputs = num_classes if chosen is None else len(chosen.meta["categories"])
    if chosen is not None and arch in OWN_TRANSFORM:
        params = {"transform_input": True, "init_weights": False, **params}
    try:
        module: Any = models.get_model(arch, weights=None, num_classes=outputs, **params)
    except (TypeError, ValueError, AssertionError, ArithmeticError, LookupError, AttributeError) as error:
        raise ValueError(f"torchvision's {arch} does not take these parameters: {error}") from None
    if chosen is not None:
        if torch.get_default_device().type != "meta":
            module.load_state_dict(_load_weights(chosen, places))
        if arch == "googlenet" and "aux_logits" not in params:  # torchvision leaves them out too
            module.aux_logits, module.aux1, module.aux2 = False, None, None
        _replace_last_layer(module, outputs, num_classes)
    made: nn.Module = module
    return made


def _find_weights(kinds: Any, arch: str, name: str) -> Any:
    """Return the published weights of this name."""
    names = ["DEFAULT", *(each.name for each in kinds)]
    if name not in names:
        raise make_spec_error("weights", name, f"{arch} has no such weights", suggest_name(name, names))
    return kinds[name]


def _load_weights(chosen: Any, places: DataRoots) -> Any:
    """Return a state dict from torch's cache, or from the network if that is allowed."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(chosen.url).path).name
    if not file.exists() and not places.download:
        raise DataNotFound(
            f"the weights {chosen} are not in {file.parent}, and downloads are not allowed",
            f"put {chosen.url} there, or set data.download to true",
        )
    try:
        return chosen.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        hint = f"put {chosen.url} into {file.parent}"
        raise DataNotFound(f"the weights {chosen} cannot be loaded: {error}", hint) from error


def _replace_last_layer(module: nn.Module, outputs: int, num_classes: int) -> None:
    """Make every layer with one output for each published class anew, for the classes of the data."""
    if outputs == num_classes:
        return
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and layer.out_features == outputs:
                setattr(parent, name, nn.Linear(layer.in_features, num_classes, layer.bias is not None))
            elif isinstance(layer, nn.Conv2d) and layer.out_channels == outputs:
                setattr(parent, name, nn.Conv2d(layer.in_channels, num_classes, layer.kernel_size[0]))
