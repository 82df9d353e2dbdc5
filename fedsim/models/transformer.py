"""Small transformers for texts of fixed length, padded with token 0, without weights to download.

Vaswani et al., "Attention is all you need", NeurIPS 2017, arXiv:1706.03762; normalisation before each part
as in Xiong et al., arXiv:2002.04745.

Only one tensor passes from block to block. A padded position is a row of zeros, by which the next block
recognises it.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fedsim.base.parameters import Count, Layers
from fedsim.models.inputs import Dropout, token_length


def small_transformer(
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = 0,
    *,
    width: Count = 64,
    layers: Layers = 2,
    heads: Count = 4,
    hidden: Count = 128,
    dropout: Dropout = 0.0,
) -> nn.Sequential:
    """A transformer encoder of `layers` layers, with the mean over the positions that are not padding.

    Each layer is attention with `heads` heads and a perceptron with `hidden` units. Token 0 is padding: the
    amount of padding does not change the result.

    Args:
        input_shape: of one example, [length].
        num_classes: outputs of the head.
        vocabulary: number of tokens of the data set.
        width: size of each token's vector.
        layers: number of layers of the encoder.
        heads: heads of the attention; they share the width.
        hidden: units of each layer's perceptron.
        dropout: the share dropped in each layer.

    Raises:
        ValueError: if the inputs are not tokens, or the heads do not divide the width.
    """
    blocks = _make_layers(input_shape, vocabulary, width, layers, heads, hidden, dropout, causal=False)
    blocks["pool"] = MeanOfTokens(width)
    blocks["head"] = nn.Linear(width, num_classes)
    return nn.Sequential(blocks)


def causal_transformer(
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = 0,
    *,
    width: Count = 64,
    layers: Layers = 2,
    heads: Count = 4,
    hidden: Count = 128,
    dropout: Dropout = 0.0,
) -> nn.Sequential:
    """A transformer that predicts the next token: logits [length, tokens]; a position sees only those before.

    Args:
        input_shape: of one example, [length].
        num_classes: number of tokens to predict.
        vocabulary: number of tokens of the data set.
        width: size of each token's vector.
        layers: number of layers.
        heads: heads of the attention; they share the width.
        hidden: units of each layer's perceptron.
        dropout: the share dropped in each layer.

    Raises:
        ValueError: if the inputs are not tokens, or the heads do not divide the width.
    """
    blocks = _make_layers(input_shape, vocabulary, width, layers, heads, hidden, dropout, causal=True)
    blocks["norm"] = nn.LayerNorm(width)
    blocks["head"] = nn.Linear(width, num_classes)
    return nn.Sequential(blocks)


def _make_layers(
    input_shape: tuple[int, ...],
    vocabulary: int,
    width: int,
    layers: int,
    heads: int,
    hidden: int,
    dropout: float,
    *,
    causal: bool,
) -> OrderedDict[str, nn.Module]:
    length = token_length(input_shape, vocabulary)
    if width % heads:
        raise ValueError(f"the width has to be a multiple of the heads; {width} is no multiple of {heads}")
    blocks: OrderedDict[str, nn.Module] = OrderedDict(
        embedding=Embedding(vocabulary, length, width, dropout),
    )
    for number in range(1, layers + 1):
        blocks[f"layer{number}"] = EncoderLayer(width, heads, hidden, dropout, causal=causal)
    return blocks


def _find_real_positions(x: Tensor) -> Tensor:
    """Whether a position of `[batch, length, width]` is not padding, `[batch, length, 1]`."""
    return (x != 0).any(-1, keepdim=True)


class Embedding(nn.Module):
    """Turn token numbers `[batch, length]` into vectors `[batch, length, width]`, zero for token 0."""

    def __init__(self, vocabulary: int, length: int, width: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(length, width))
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """The vectors of the tokens and positions, `[batch, length, width]`."""
        vectors: Tensor = self.dropout(self.tokens(x) + self.positions[: x.shape[-1]])
        return vectors * (x != 0).unsqueeze(-1)


class EncoderLayer(nn.Module):
    """Attention among the tokens of a text, then a perceptron on each; both are added to their input.

    If it is causal, a token sees only itself and the tokens before it.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The vectors `[batch, length, width]` of the next layer."""
        real = _find_real_positions(x)
        x = x + self.dropout(self._attend(self.norm1(x), real))
        x = x + self.dropout(self.mlp(self.norm2(x)))
        return x * real

    def _attend(self, x: Tensor, real: Tensor) -> Tensor:
        """Attention without the fused kernel, which cannot be stacked."""
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for part in self.attention_in(x).chunk(3, dim=-1)
        )
        scores = queries @ keys.transpose(-2, -1) / queries.shape[-1] ** 0.5
        padding = ~real.transpose(-2, -1).unsqueeze(-3)
        if self.causal:
            length = x.shape[-2]
            padding = padding | torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        # The lowest finite number, because -inf would turn a text of padding alone into NaN.
        weights = scores.masked_fill(padding, torch.finfo(scores.dtype).min).softmax(-1)
        mixed: Tensor = self.attention_out((weights @ values).transpose(-3, -2).flatten(-2))
        return mixed


class MeanOfTokens(nn.Module):
    """The normalised mean `[batch, width]` of the positions that are not padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """One vector for each text; for a text without tokens, the mean is zeros."""
        mean: Tensor = self.norm(x.sum(-2) / _find_real_positions(x).sum(-2).clamp(min=1))
        return mean
