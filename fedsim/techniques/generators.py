"""Conditional generators: networks that make features of a wanted class from noise.

The server trains a generator on the classifiers of the clients. Clients get features of every class from it,
also of classes that their own data lacks. Features enter an image model behind its last block of maps, and
all other models at the head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fedsim.models.layers import BatchNorm
from fedsim.models.net import Net, Params
from fedsim.training.flops import example_flops

Output: TypeAlias = Literal["sigmoid", "relu", "softplus", "none"]
Diversity: TypeAlias = Literal["ratio", "pairs", "none"]
FeaturePlace: TypeAlias = Literal["maps", "head"]


class FeatureEntry(NamedTuple):
    """The block of a model at which features enter.

    Attributes:
        block: the first block of its classifier.
        shape: shape of one example's features, the input of that block.
    """

    block: str
    shape: tuple[int, ...]

    def keys(self, net: Net) -> frozenset[str]:
        """The keys of the classifier."""
        names = net.block_names[net.block_names.index(self.block) :]
        return frozenset(key for name in names for key in net.blocks[name])


def find_feature_entry(net: Net, input_shape: Sequence[int]) -> FeatureEntry:
    """Return the feature entry: in a chain behind the last block of maps if inputs are images, else the head.

    Args:
        net: the model.
        input_shape: of one example.

    Raises:
        ValueError: if its features are flat and its head has no weight with their number.
    """
    return find_maps_entry(net, input_shape) or find_head_entry(net)


def find_maps_entry(net: Net, input_shape: Sequence[int]) -> FeatureEntry | None:
    """Return the feature entry behind the last block of maps; None if no block but the first takes maps."""
    if len(input_shape) == 3 and net.is_chain:
        params = {key: value.to("meta") for key, value in net.module.state_dict().items()}
        x = torch.empty((2, *input_shape), device="meta")
        for before, block in zip(("", *net.block_names), net.block_names, strict=False):
            after = net.run_blocks(params, x, start=block, stop=_next_block(net, block))
            if before and x.dim() == 4 and after.dim() == 2:
                return FeatureEntry(block, tuple(x.shape[1:]))
            x = after
    return None


def find_head_entry(net: Net) -> FeatureEntry:
    """Return the feature entry at the head of a model.

    Raises:
        ValueError: if the head has no weight with the number of features.
    """
    head = net.block_names[-1]
    weights = [p for key, p in net.module.named_parameters() if key in net.head and p.dim() == 2]
    if not weights:
        raise ValueError(f"{net.name} has no features that a generator can make: its head has no weight")
    return FeatureEntry(head, (weights[0].shape[1],))


def find_head_fault(net: Net) -> str:
    """Say why a generator cannot make the features of this model's head; "" if it can."""
    try:
        entry = find_head_entry(net)
    except ValueError as error:
        return str(error)
    params = {key: value.to("meta") for key, value in net.module.state_dict().items()}
    try:
        net.run_blocks(params, torch.empty((2, *entry.shape), device="meta"), start=entry.block)
    except NotImplementedError:  # a head that does not run without numbers may take these features
        return ""
    except RuntimeError:
        return f"{net.name} has no features that a generator can make: its head takes no flat features"
    return ""


def _next_block(net: Net, block: str) -> str | None:
    return dict(zip(net.block_names, net.block_names[1:], strict=False)).get(block)


class _Condition(nn.Module):
    """Noise and a label as one vector: the label as a learned row, or one-hot.

    Args:
        num_classes: C.
        learned: whether labels become rows of a learned table, `[C, C]`.
    """

    def __init__(self, num_classes: int, *, learned: bool) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.rows = nn.Parameter(torch.randn(num_classes, num_classes)) if learned else None

    def forward(self, x: Tensor) -> Tensor:
        """Turn `[batch, noise + 1]`, the label last, into `[batch, C + noise]`."""
        table = torch.eye(self.num_classes, device=x.device) if self.rows is None else self.rows
        return torch.cat([table[x[:, -1].long()], x[:, :-1]], 1)


def maps_generator(num_classes: int, shape: Sequence[int], noise: int, output: Output) -> nn.Sequential:
    """Transposed convolutions from one point to maps: of FedCG (arXiv:2111.08211), in KDIA's form.

    For 16x5x5 maps it has 890,724 parameters with 10 classes and 1,084,944 with 100.

    Args:
        num_classes: C.
        shape: shape of the features, `(channels, height, width)`.
        noise: size of the noise.
        output: activation of the last layer.
    """
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["condition"] = nn.Sequential(
        _Condition(num_classes, learned=True), nn.Unflatten(1, (num_classes + noise, 1, 1))
    )
    channels, side = num_classes + noise, (1, 1)
    height, width = shape[1:]
    for number, wider in enumerate((512, 256, 128, None), start=2):
        reach = (min(number, height), min(number, width)) if wider else (height, width)
        kernel = (reach[0] - side[0] + 1, reach[1] - side[1] + 1)
        layer = nn.ConvTranspose2d(channels, wider or shape[0], kernel, bias=False)
        rest = [BatchNorm(wider), nn.LeakyReLU(0.2)] if wider else _output_layers(output)
        blocks[f"maps{number}" if wider else "output"] = nn.Sequential(layer, *rest)
        channels, side = wider or shape[0], reach
    return nn.Sequential(blocks)


def flat_generator(num_classes: int, features: int, noise: int, hidden: int, output: Output) -> nn.Sequential:
    """Two linear layers: of FedGen (arXiv:2105.10056).

    With 32 features, noise of 32 and 256 hidden units it has 19,744 parameters for 10 classes.

    Args:
        num_classes: C.
        features: size of an example's features.
        noise: size of the noise.
        hidden: units between the two layers.
        output: activation of the last layer.
    """
    return nn.Sequential(
        OrderedDict(
            condition=_Condition(num_classes, learned=False),
            hidden=nn.Sequential(nn.Linear(num_classes + noise, hidden), BatchNorm(hidden), nn.ReLU()),
            output=nn.Sequential(nn.Linear(hidden, features), *_output_layers(output)),
        )
    )


def _output_layers(output: Output) -> list[nn.Module]:
    kinds: Mapping[str, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "softplus": nn.Softplus}
    return [kinds[output]()] if output in kinds else []


@dataclass(frozen=True)
class Generator:
    """A generator for a model's classifier.

    Attributes:
        net: the generator's net; its input is noise, scalars and last the label,
            `[batch, noise + scalars + 1]`.
        feature_entry: the block at which its features enter the model.
        noise: size of the noise.
        scalars: number of further inputs, such as the wanted difficulty.
    """

    net: Net
    feature_entry: FeatureEntry
    noise: int
    scalars: int = 0

    def __call__(
        self, params: Params, noise: Tensor, labels: Tensor, scalars: Tensor | None = None
    ) -> Tensor:
        """Features `[batch, *shape]` of these classes.

        Args:
            params: the generator's parameters.
            noise: `[batch, noise]`.
            labels: int64 `[batch]`.
            scalars: `[batch, scalars]`; None if the generator has none.
        """
        more = [] if scalars is None else [scalars]
        return self.net(params, torch.cat([noise, *more, labels.unsqueeze(1).to(noise.dtype)], 1))


@lru_cache(maxsize=16)
def make_generator(
    net: Net,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    noise: int,
    hidden: int,
    output: Output,
    at: FeaturePlace = "maps",
    scalars: int = 0,
) -> Generator:
    """The generator for a model: of maps if wanted and possible, else of flat features.

    It holds no weights, and is cached: the same model gets the same generator.

    Args:
        net: the model.
        input_shape: of one example.
        num_classes: C.
        noise: size of the noise.
        hidden: hidden width of a generator of flat features.
        output: activation of the last layer.
        at: feature entry: behind the model's last maps, or at its head.
        scalars: number of further inputs.

    Raises:
        ValueError: if no generator can make the model's features.
    """
    where = find_feature_entry(net, input_shape) if at == "maps" else find_head_entry(net)
    drawn = noise + scalars
    if len(where.shape) == 3:
        build = partial(maps_generator, num_classes, where.shape, drawn, output)
    else:
        build = partial(flat_generator, num_classes, where.shape[0], drawn, hidden, output)
    return Generator(Net(build, "generator"), where, noise, scalars)


def ratio_diversity(noise: Tensor, made: Tensor) -> Tensor:
    """1 / (mean |z1 - z2| / mean |e1 - e2|), a scalar: small if features differ as their noise does.

    The batch's first half is compared with its second half, as in KDIA's code.

    Args:
        noise: `[batch, noise]`; at least two.
        made: the generated features, `[batch, ...]`.
    """
    half = len(noise) // 2
    apart = (made[:half] - made[half : 2 * half]).abs().mean()
    return 1 / (apart / (noise[:half] - noise[half : 2 * half]).abs().mean() + 1e-5)


def pairs_diversity(noise: Tensor, made: Tensor) -> Tensor:
    """exp(mean over pairs of -|e_i - e_j|^2 |z_i - z_j|_1), a scalar: FedGen's; both means over dimensions.

    Args:
        noise: `[batch, noise]`.
        made: the generated features, `[batch, ...]`.
    """
    flat = made.flatten(1)
    # By differences: matrix products are not exact. Four times as fast as broadcasting.
    near = torch.cdist(noise, noise, compute_mode="donot_use_mm_for_euclid_dist") ** 2 / noise.shape[1]
    return (-near * torch.cdist(flat, flat, p=1) / flat.shape[1]).mean().exp()


def diversity_loss(kind: Diversity, noise: Tensor, made: Tensor) -> Tensor:
    """The diversity loss of this kind, a scalar; 0 for none."""
    kinds = {"ratio": ratio_diversity, "pairs": pairs_diversity}
    return kinds[kind](noise, made) if kind in kinds else torch.zeros((), device=made.device)


def draw_labels(chances: Tensor, uniform: Tensor) -> Tensor:
    """Labels with these probabilities, int64 `[batch]`; a label of probability 0 is never drawn.

    Args:
        chances: `[classes]`, some above 0; the sum may be any.
        uniform: `[batch]`, uniform over [0, 1).
    """
    edges = chances.cumsum(0)
    return (uniform.unsqueeze(-1) >= edges[:-1] / edges[-1]).sum(-1)


def draw_entries(values: Tensor, uniform: Tensor) -> Tensor:
    """Entries of `values`, each with the same probability: `[*uniform.shape, *values.shape[1:]]`.

    Args:
        values: `[entries, ...]`, at least one.
        uniform: uniform over [0, 1), of any shape.
    """
    # A product in float32 can round up to the number of entries.
    index = (uniform * len(values)).long().clamp(max=len(values) - 1)
    # Indexing by a scalar tensor would wait for the GPU, to read it.
    return values.index_select(0, index.reshape(-1)).view((*index.shape, *values.shape[1:]))


@lru_cache(maxsize=16)
def feature_flops(net: Net, generator: Generator, trains: bool = True) -> int:
    """Operations of one generated feature in a local step: the generator's pass and the classifier's.

    Args:
        net: the model.
        generator: the generator, which does not train.
        trains: whether the classifier trains on the feature; if not, it only predicts.
    """
    where = generator.feature_entry
    asked, made = torch.zeros(generator.noise + generator.scalars + 1), torch.zeros(where.shape)
    keys = where.keys(net) if trains else frozenset[str]()
    return example_flops(generator.net, (), asked) + example_flops(net, keys, made, where.block)
