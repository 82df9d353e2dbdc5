"""DistilBERT, from Hugging Face transformers (the optional extra `text`).

Sanh, Debut, Chaumond, Wolf, "DistilBERT, a distilled version of BERT", arXiv:1910.01108.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.base.parameters import Count, make_spec_error
from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.data.places import TEXT_EXTRA, DataRoots, leaves_root
from fedsim.errors import DataNotFound
from fedsim.models.inputs import Dropout, token_length

_POSITIONS = 512
NOWHERE = DataRoots()


def distilbert(
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = 0,
    places: DataRoots = NOWHERE,
    *,
    pretrained: str | None = None,
    layers: Count | None = None,
    width: Count | None = None,
    heads: Count | None = None,
    hidden: Count | None = None,
    dropout: Dropout = 0.1,
) -> nn.Sequential:
    """DistilBERT for classification: the encoder, the first token's vector through one layer, the head.

    66,968,852 parameters for 20 classes and the published vocabulary of 30,522. Token 0 is padding.

    Args:
        input_shape: `(length,)`, at most 512 tokens.
        num_classes: C.
        vocabulary: of the data.
        places: the data roots in which published weights may lie, and whether they may be fetched.
        pretrained: published weights, which fix the sizes: a folder in a data root, at the same path on every
            node, or a name of the Hugging Face hub, such as "distilbert-base-uncased", that is in every
            node's cache or may be fetched. None starts from random weights.
        layers: of a random start, as the next three; None for the published 6.
        width: of the vectors; None for 768.
        heads: of the attention; None for 12.
        hidden: units of the perceptrons; None for 3,072.
        dropout: in the encoder; the layer before the head has twice as much, as published.

    Raises:
        SpecError: if `pretrained` leads out of the data roots.
        ValueError: if the inputs are no tokens that the model can take, sizes are given for weights that
            have their own, or transformers is not installed.
        DataNotFound: if the weights are neither here nor can be had.
    """
    length = token_length(input_shape, vocabulary)
    sizes = {"n_layers": layers, "dim": width, "n_heads": heads, "hidden_dim": hidden}
    given = {name: size for name, size in sizes.items() if size is not None}
    if pretrained is not None and given:
        raise ValueError(
            "layers, width, heads and hidden are fixed by the pretrained weights; leave them out"
        )
    rates = {"dropout": dropout, "attention_dropout": dropout}
    if pretrained is None:
        model = _random(vocabulary=vocabulary, **given, **rates)
    else:
        model = _load_published_encoder(pretrained, vocabulary, rates, places)
    if length > model.config.max_position_embeddings:
        raise ValueError(f"takes texts of at most {_POSITIONS} tokens, and these have {length}")
    return _classifier(model, num_classes, min(2 * dropout, 0.99))


def _transformers() -> Any:
    """The library, which is slow to import, not always installed, and imports torchvision."""
    prepare_torchvision()
    try:
        return import_module("transformers")
    except ModuleNotFoundError as error:
        raise ValueError(f"needs the package transformers; {TEXT_EXTRA}") from error


def _random(*, vocabulary: int, **settings: Any) -> Any:
    """The encoder with random weights."""
    transformers = _transformers()
    config = transformers.DistilBertConfig(
        vocab_size=vocabulary, max_position_embeddings=_POSITIONS, **settings
    )
    if config.dim % config.n_heads:
        raise ValueError(
            f"the width has to be a multiple of the heads, and {config.dim} is none of {config.n_heads}"
        )
    return transformers.DistilBertModel(config)


def _load_published_encoder(name: str, vocabulary: int, rates: dict[str, float], places: DataRoots) -> Any:
    """The encoder with published weights; on the meta device with their configuration alone."""
    folder = _folder(places, name)
    transformers = _transformers()
    # A folder is read where it lies, whatever may be fetched.
    source, fetch = (name, places.download) if folder is None else (str(folder), False)
    try:
        config = _load_from_cache(transformers.DistilBertConfig, source, fetch, **rates)
        if vocabulary > config.vocab_size:
            raise ValueError(
                f"{name} knows {config.vocab_size} tokens, and this data has {vocabulary}; "
                "use the tokenizer that belongs to the weights"
            )
        if torch.get_default_device().type == "meta":
            return transformers.DistilBertModel(config)
        return _load_from_cache(
            transformers.DistilBertModel, source, fetch, config=config, dtype=torch.float32
        )
    except OSError as error:
        where = ", ".join(map(str, places.roots)) or "none is set"
        if folder is not None:
            raise DataNotFound(f"the weights in {folder} cannot be read", "put a whole copy there") from error
        raise DataNotFound(
            f"the weights {name!r} are in no data root ({where}) and not in this machine's cache, "
            f"and they {'could' if fetch else 'may'} not be fetched",
            "put a copy into a data root, set data.download to true, or leave `pretrained` out",
        ) from error


def _folder(places: DataRoots, name: str) -> Path | None:
    """The folder of this name in a data root; None where there is none: a name of the hub, then."""
    outside = leaves_root(name)
    found = None if outside else places.find_path((name,))
    # The library would take whatever folder of this name stands where the process happens to run.
    if outside or (found is None and os.path.exists(name)):
        hint = "put the weights into a data root, and name their folder from there"
        raise make_spec_error(
            "pretrained", name, "has to be a folder inside a data root, or a name of the hub", hint
        )
    return found


def _load_from_cache(kind: Any, source: str, fetch: bool, **settings: Any) -> Any:
    """From the cache where possible, which asks nobody, or else over the network where that is allowed."""
    try:
        return kind.from_pretrained(source, local_files_only=True, **settings)
    except OSError:
        if not fetch:
            raise
        return kind.from_pretrained(source, **settings)


def _classifier(encoder: Any, num_classes: int, dropout: float) -> nn.Sequential:
    width, spread = encoder.config.dim, encoder.config.initializer_range
    layers = nn.Linear(width, width), nn.Linear(width, num_classes)
    for layer in layers:
        nn.init.normal_(layer.weight, std=spread)
        nn.init.zeros_(layer.bias)
    pooler = nn.Sequential(layers[0], nn.ReLU(), nn.Dropout(dropout))
    return nn.Sequential(OrderedDict(encoder=FirstToken(encoder), pooler=pooler, head=layers[1]))


class FirstToken(nn.Module):
    """The encoder's vector `[batch, width]` of each text's first token."""

    unstackable = "the attention of transformers has no rule for torch.func.vmap"

    def __init__(self, model: Any) -> None:
        super().__init__()
        if hasattr(model.embeddings, "position_ids"):
            del model.embeddings.position_ids  # given in every call, for the device at hand
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Token numbers `[batch, length]`, 0 for padding, to vectors."""
        positions = torch.arange(x.shape[-1], device=x.device).unsqueeze(0)
        output = self.model(input_ids=x, attention_mask=(x != 0).long(), position_ids=positions)
        first: Tensor = output.last_hidden_state[:, 0]
        return first
