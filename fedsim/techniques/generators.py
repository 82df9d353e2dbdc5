"""Conditional generators: networks that make features of a wanted class, out of noise.

The server trains one on the classifiers that clients have sent; clients get features of every class from it,
whatever their own data lacks. Features enter a model at its head, or at the block behind which it is flat: of
an image model behind its last block of maps, and else at the head as well.
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
Place: TypeAlias = Literal["maps", "head"]


class FeatureEntry(NamedTuple):
    """Where features enter a model.

    Attributes:
        block: the first block of its classifier.
        shape: of one example's features, what that block receives.
    """

    block: str
    shape: tuple[int, ...]

    def keys(self, net: Net) -> frozenset[str]:
        """The keys of the classifier."""
        names = net.block_names[net.block_names.index(self.block) :]
        return frozenset(key for name in names for key in net.blocks[name])


def find_feature_entry(net: Net, input_shape: Sequence[int]) -> FeatureEntry:
    """Where features enter a model: behind the last block of maps where inputs are images, else at the head.

    Args:
        net: the model.
        input_shape: of one example.

    Raises:
        ValueError: if its features are flat and its head has no weight that says how many there are.
    """
    if len(input_shape) == 3:
        params = {key: value.to("meta") for key, value in net.module.state_dict().items()}
        x = torch.empty((2, *input_shape), device="meta")
        for before, block in zip(("", *net.block_names), net.block_names, strict=False):
            after = net.run_blocks(params, x, start=block, stop=_next(net, block))
            if before and x.dim() == 4 and after.dim() == 2:
                return FeatureEntry(block, tuple(x.shape[1:]))
            x = after
    return find_head_entry(net)


def find_head_entry(net: Net) -> FeatureEntry:
    """Where features enter the head of a model.

    Raises:
        ValueError: if the head has no weight that says how many features there are.
    """
    head = net.block_names[-1]
    weights = [p for key, p in net.module.named_parameters() if key in net.head and p.dim() == 2]
    if not weights:
        raise ValueError(f"{net.name} has no features that a generator could make: its head has no weight")
    return FeatureEntry(head, (weights[0].shape[1],))


def _next(net: Net, block: str) -> str | None:
    return dict(zip(net.block_names, net.block_names[1:], strict=False)).get(block)


class _Condition(nn.Module):
    """Noise and a label as one vector: the label as a learned row, or as a one among zeros.

    Args:
        num_classes: C.
        learned: whether there is a table of rows, `[C, C]`.
    """

    def __init__(self, num_classes: int, *, learned: bool) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.rows = nn.Parameter(torch.randn(num_classes, num_classes)) if learned else None

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, noise + 1]`, the label last, to `[batch, C + noise]`."""
        table = torch.eye(self.num_classes, device=x.device) if self.rows is None else self.rows
        return torch.cat([table[x[:, -1].long()], x[:, :-1]], 1)


def maps_generator(num_classes: int, shape: Sequence[int], noise: int, output: Output) -> nn.Sequential:
    """Transposed convolutions from one point to maps: of FedCG (arXiv:2111.08211), as KDIA has it.

    For 16x5x5 maps it has 890,724 parameters with 10 classes and 1,084,944 with 100.

    Args:
        num_classes: C.
        shape: of the features, `(channels, height, width)`.
        noise: how many numbers of noise.
        output: what the last layer's values go through.
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
        rest = [BatchNorm(wider), nn.LeakyReLU(0.2)] if wider else _outputs(output)
        blocks[f"maps{number}" if wider else "output"] = nn.Sequential(layer, *rest)
        channels, side = wider or shape[0], reach
    return nn.Sequential(blocks)


def flat_generator(num_classes: int, features: int, noise: int, hidden: int, output: Output) -> nn.Sequential:
    """Two linear layers: of FedGen (arXiv:2105.10056).

    With 32 features, noise of 32 and 256 hidden numbers it has 19,744 parameters for 10 classes.

    Args:
        num_classes: C.
        features: how many numbers an example's features are.
        noise: how many numbers of noise.
        hidden: the width between the two layers.
        output: what the last layer's values go through.
    """
    return nn.Sequential(
        OrderedDict(
            condition=_Condition(num_classes, learned=False),
            hidden=nn.Sequential(nn.Linear(num_classes + noise, hidden), BatchNorm(hidden), nn.ReLU()),
            output=nn.Sequential(nn.Linear(hidden, features), *_outputs(output)),
        )
    )


def _outputs(output: Output) -> list[nn.Module]:
    kinds: Mapping[str, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "softplus": nn.Softplus}
    return [kinds[output]()] if output in kinds else []


@dataclass(frozen=True)
class Generator:
    """A generator for a model's classifier.

    Attributes:
        net: of the generator; its input is noise, scalars and last the label, `[batch, noise + scalars + 1]`.
        entrance: where its features enter the model.
        noise: how many numbers of noise.
        scalars: how many numbers besides say what is wanted, such as how difficult.
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
            params: of the generator.
            noise: `[batch, noise]`.
            labels: int64 `[batch]`.
            scalars: `[batch, scalars]`; None where the generator takes none.
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
    at: Place = "maps",
    scalars: int = 0,
) -> Generator:
    """The generator that suits a model: of maps where these are wanted and to be had, else of flat features.

    It holds no weights; the same model gets the same one, so that steps need not make it anew.

    Args:
        net: the model.
        input_shape: of one example.
        num_classes: C.
        noise: how many numbers of noise.
        hidden: the width of one for flat features.
        output: what the last layer's values go through.
        at: where its features enter the model: behind its last maps, or at its head.
        scalars: how many numbers besides say what is wanted.

    Raises:
        ValueError: if the model has no features that could be made.
    """
    where = find_feature_entry(net, input_shape) if at == "maps" else find_head_entry(net)
    drawn = noise + scalars
    if len(where.shape) == 3:
        build = partial(maps_generator, num_classes, where.shape, drawn, output)
    else:
        build = partial(flat_generator, num_classes, where.shape[0], drawn, hidden, output)
    return Generator(Net(build, "generator"), where, noise, scalars)


def ratio_diversity(noise: Tensor, made: Tensor) -> Tensor:
    """Small where features differ as their noise does: 1 / (mean |z1 - z2| / mean |e1 - e2|), a scalar.

    The batch's first half is compared with its second, as KDIA's code does.

    Args:
        noise: `[batch, noise]`; at least two.
        made: the features made of it, `[batch, ...]`.
    """
    half = len(noise) // 2
    apart = (made[:half] - made[half : 2 * half]).abs().mean()
    return 1 / (apart / (noise[:half] - noise[half : 2 * half]).abs().mean() + 1e-5)


def pairs_diversity(noise: Tensor, made: Tensor) -> Tensor:
    """exp(mean over pairs of -|e_i - e_j|^2 |z_i - z_j|_1), a scalar: FedGen's; both means over dimensions.

    Args:
        noise: `[batch, noise]`.
        made: the features made of it, `[batch, ...]`.
    """
    flat = made.flatten(1)
    # By differences, not by products of matrices, which are not exact; four times as fast as by broadcasting.
    near = torch.cdist(noise, noise, compute_mode="donot_use_mm_for_euclid_dist") ** 2 / noise.shape[1]
    return (-near * torch.cdist(flat, flat, p=1) / flat.shape[1]).mean().exp()


def diversity_loss(kind: Diversity, noise: Tensor, made: Tensor) -> Tensor:
    """The diversity loss of this kind, a scalar; 0 for none."""
    kinds = {"ratio": ratio_diversity, "pairs": pairs_diversity}
    return kinds[kind](noise, made) if kind in kinds else torch.zeros((), device=made.device)


def draw_labels(chances: Tensor, uniform: Tensor) -> Tensor:
    """Labels with these chances, int64 `[batch]`; one without a chance is never drawn.

    Args:
        chances: `[classes]`, some above 0.
        uniform: `[batch]`, even over [0, 1).
    """
    edges = chances.cumsum(0)
    return (uniform.unsqueeze(-1) >= edges[:-1] / edges[-1]).sum(-1)


@lru_cache(maxsize=16)
def feature_flops(net: Net, generator: Generator, trains: bool = True) -> int:
    """Operations of one generated feature in a local step: the generator's pass and the classifier's.

    Args:
        net: the model.
        generator: of its features; it does not learn.
        trains: whether the classifier learns from the feature; otherwise it only says what it is.
    """
    where = generator.feature_entry
    asked, made = torch.zeros(generator.noise + generator.scalars + 1), torch.zeros(where.shape)
    keys = where.keys(net) if trains else frozenset[str]()
    return example_flops(generator.net, (), asked) + example_flops(net, keys, made, where.block)
