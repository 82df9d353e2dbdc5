"""Published weights of Hugging Face: from a folder in a data root, from the cache, or from the network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedsim.base.extras import import_extra
from fedsim.base.parameters import make_spec_error
from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.data.places import DataRoots, leaves_root
from fedsim.errors import DataNotFound

NO_DATA_ROOTS = DataRoots()

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""Files of weights of the Hugging Face libraries; a large model has an index with one of these names."""


def import_transformers() -> Any:
    """Return the library transformers, which imports torchvision.

    Raises:
        ValueError: if it is not installed.
    """
    prepare_torchvision()
    return import_extra("transformers", "text")


def load_published(kind: Any, name: str, places: DataRoots, **settings: Any) -> Any:
    """Return `kind.from_pretrained(name, **settings)`, from the network only if that is allowed.

    Args:
        kind: a class of transformers, for a configuration or a model.
        name: a folder in a data root, or a name of the Hugging Face hub.
        places: the data roots, and whether downloads are allowed.
        settings: further arguments.

    Raises:
        SpecError: with path `pretrained`, if the name is a path outside the data roots.
        DataNotFound: if the weights are missing and cannot be downloaded.
    """
    folder = _find_folder(places, name)
    # A folder is never downloaded, even if downloads are allowed.
    source, fetch = (name, places.download) if folder is None else (str(folder), False)
    try:
        loaded = _load_from_cache(kind, source, fetch, **settings)
    except OSError as error:
        if folder is not None:
            raise DataNotFound(
                f"the weights in {folder} cannot be read", "put a complete copy there"
            ) from error
        raise make_missing_weights_error(name, places) from error
    # A configuration alone loads well, and the run would fail.
    if not fetch and not _has_weights(name, folder):
        if folder is None:
            raise make_missing_weights_error(name, places)
        hint = f"put a complete copy there, with {' or '.join(WEIGHT_FILES)}"
        raise DataNotFound(f"{folder} holds no weights", hint)
    return loaded


def _has_weights(name: str, folder: Path | None) -> bool:
    """Return whether a folder, or the cache of the hub, holds weights, and not only a configuration."""
    files = [*WEIGHT_FILES, *(f"{file}.index.json" for file in WEIGHT_FILES)]
    if folder is not None:
        return any((folder / file).is_file() for file in files)
    hub = import_extra("huggingface_hub", "text")
    try:
        return any(isinstance(hub.try_to_load_from_cache(name, file), str) for file in files)
    except ValueError:  # no name of the hub
        return False


def refuse_loading_config(config: Any) -> None:
    """Raise an error for a configuration by which transformers reads more files, or runs code of the hub.

    Args:
        config: of transformers. The configurations of its parts are checked too.

    Raises:
        ValueError: a part is a model of timm, whose settings name any file, or has a backbone of its own; or
            a part takes its attention from the hub.
    """
    if config.model_type.startswith("timm"):
        raise ValueError(f"{config.model_type} reads files: use the model `timm`")
    if getattr(config, "backbone_config", None) is not None:
        raise ValueError(f"the backbone of {config.model_type} may read files: use a model without one")
    for name in ("_attn_implementation", "_experts_implementation"):
        # A name with a slash is a repository, whose code the library would run.
        if "/" in str(getattr(config, name, None)):
            raise ValueError("its configuration names an attention from the Hugging Face hub, which is code")
    for part in vars(config).values():
        if isinstance(part, import_transformers().PreTrainedConfig):
            refuse_loading_config(part)


def make_missing_weights_error(name: str, places: DataRoots) -> DataNotFound:
    """Make the error for weights of the hub that are in no data root and not in the cache."""
    where = ", ".join(map(str, places.roots)) or "none is set"
    cache = import_extra("huggingface_hub.constants", "text").HF_HUB_CACHE
    return DataNotFound(
        f"the weights {name!r} are in no data root ({where}) and not in this machine's cache ({cache}), "
        f"and {'the download failed' if places.download else 'downloads are not allowed'}",
        "put a copy into a data root, set data.download to true, or remove `pretrained`",
    )


def _find_folder(places: DataRoots, name: str) -> Path | None:
    """The folder of this name in a data root; None for a name of the hub."""
    outside = leaves_root(name)
    found = None if outside else places.find_path((name,))
    # The library would read a folder of this name in the process's working directory.
    if outside or (found is None and os.path.exists(name)):
        hint = "put the weights into a data root, and name their folder from there"
        raise make_spec_error(
            "pretrained", name, "has to be a folder in a data root, or a name of the Hugging Face hub", hint
        )
    return found


def _load_from_cache(kind: Any, source: str, fetch: bool, **settings: Any) -> Any:
    """Load from the cache if possible, without network; else from the network if allowed."""
    try:
        return kind.from_pretrained(source, local_files_only=True, **settings)
    except OSError:
        if not fetch:
            raise
        return kind.from_pretrained(source, **settings)
