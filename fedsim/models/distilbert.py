"""DistilBERT, from Hugging Face transformers (the optional extra `text`).

Sanh, Debut, Chaumond, Wolf, "DistilBERT, a distilled version of BERT", arXiv:1910.01108.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.base.parameters import Count, Layers
from fedsim.data.places import DataPath, DataRoots
from fedsim.models.inputs import Dropout, token_length
from fedsim.models.libraries.hugging_face import (
    NO_DATA_ROOTS,
    import_transformers,
    load_published,
    refuse_loading_config,
)

_POSITIONS = 512


def distilbert(
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = 0,
    places: DataRoots = NO_DATA_ROOTS,
    *,
    pretrained: DataPath | None = None,
    layers: Layers | None = None,
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
        vocabulary: number of tokens of the data.
        places: the data roots for published weights, and whether downloads are allowed.
        pretrained: published weights, which fix the sizes: a folder in a data root, at the same path on every
            node, or a name of the Hugging Face hub, such as "distilbert-base-uncased", in every node's cache
            or to be downloaded. None starts from random weights.
        layers: number of layers of a random start; None for the published 6.
        width: size of the vectors of a random start; None for 768.
        heads: attention heads of a random start; None for 12.
        hidden: units of the perceptrons of a random start; None for 3,072.
        dropout: dropout of the encoder; the layer before the head has twice as much, as published.

    Raises:
        SpecError: if `pretrained` is a path outside the data roots.
        ValueError: if the model cannot take the inputs, sizes are given for pretrained weights, or the
            package transformers is not installed.
        DataNotFound: if the weights are missing and cannot be downloaded.
    """
    length = token_length(input_shape, vocabulary)
    sizes = {"n_layers": layers, "dim": width, "n_heads": heads, "hidden_dim": hidden}
    given = {name: size for name, size in sizes.items() if size is not None}
    if pretrained is not None and given:
        raise ValueError(
            "the pretrained weights fix layers, width, heads and hidden; remove these parameters"
        )
    rates = {"dropout": dropout, "attention_dropout": dropout}
    if pretrained is None:
        model = _make_random_encoder(vocabulary=vocabulary, **given, **rates)
    else:
        model = _load_published_encoder(pretrained, vocabulary, rates, places)
    if length > model.config.max_position_embeddings:
        raise ValueError(f"takes texts of at most {_POSITIONS} tokens; these have {length}")
    return _classifier(model, num_classes, min(2 * dropout, 0.99))


def _make_random_encoder(*, vocabulary: int, **settings: Any) -> Any:
    """The encoder with random weights."""
    transformers = import_transformers()
    config = transformers.DistilBertConfig(
        vocab_size=vocabulary, max_position_embeddings=_POSITIONS, **settings
    )
    if config.dim % config.n_heads:
        raise ValueError(
            f"the width has to be a multiple of the heads; {config.dim} is no multiple of {config.n_heads}"
        )
    return transformers.DistilBertModel(config)


def _load_published_encoder(name: str, vocabulary: int, rates: dict[str, float], places: DataRoots) -> Any:
    """The encoder with published weights; on the meta device, without weights from their configuration."""
    transformers = import_transformers()
    config = load_published(transformers.DistilBertConfig, name, places, **rates)
    refuse_loading_config(config)
    if vocabulary > config.vocab_size:
        raise ValueError(
            f"{name} knows {config.vocab_size} tokens, but this data has {vocabulary}; "
            "use the tokenizer that belongs to the weights"
        )
    if torch.get_default_device().type == "meta":
        return transformers.DistilBertModel(config)
    return load_published(transformers.DistilBertModel, name, places, config=config, dtype=torch.float32)


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
        """Turn token numbers `[batch, length]`, 0 for padding, into vectors."""
        positions = torch.arange(x.shape[-1], device=x.device).unsqueeze(0)
        output = self.model(input_ids=x, attention_mask=(x != 0).long(), position_ids=positions)
        first: Tensor = output.last_hidden_state[:, 0]
        return first
