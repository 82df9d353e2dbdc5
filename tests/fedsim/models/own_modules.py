"""Modules as users write them: each with its own `forward`, which no list of blocks describes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.clients.population import Population
from fedsim.core import LocalTraining, RunSettings
from fedsim.data.dataset import Dataset, Examples
from fedsim.models.net import InputForm, Net
from tests.fedsim.federations import partition

VECTORS, IMAGES, SERIES, TOKENS = (
    InputForm((12,), 0, (4,)),
    InputForm((3, 8, 8), 0, (4,)),
    InputForm((6, 4), 0, (4,)),
    InputForm((6,), 20, (4,)),
)


LOCAL = LocalTraining(epochs=2, batch_size=8, lr=0.1, momentum=0.9, weight_decay=0.01)


def federation_of(
    net: Net, sizes: Sequence[int], rounds: int = 2, local: LocalTraining = LOCAL
) -> Population:
    """Clients of these sizes with random examples that the net can read."""
    assert net.inputs is not None
    total, stream = sum(sizes), np.random.default_rng(3)
    x = net.inputs.make_examples(total).numpy()
    examples = Examples(x, stream.integers(4, size=total).astype(np.int64))
    data = Dataset(
        name="random",
        train=examples,
        test=examples,
        num_classes=4,
        input_shape=net.inputs.shape,
        classes=tuple("abcd"),
        vocabulary=net.inputs.vocabulary,
    )
    run = RunSettings(seed=5, rounds=rounds, cohort_size=len(sizes), local=local)
    return Population(dataset=data, partition=partition(list(sizes)), nets=(net,), settings=run)


class PlainMLP(nn.Module):
    """The activation stands in `forward` alone; a chain of the children would be linear."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + torch.tanh(self.inner(x)))


class DenselyConnected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(12, 6), nn.Linear(18, 6), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, self.one(x).relu()], 1)
        return self.head(torch.cat([x, self.two(x).relu()], 1))


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.shared(torch.relu(self.shared(x))))


class NamedTwice(nn.Module):
    """One submodule under two names; batch statistics keep its clients from being stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one = nn.BatchNorm1d(12), nn.Linear(12, 12)
        self.two, self.head = self.one, nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.norm(self.one(x)).relu()))


class SharedHead(nn.Module):
    """One submodule under two names, whose clients can be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.one = nn.Linear(12, 12), nn.Linear(12, 4)
        self.two = self.one

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x).relu()
        return self.one(hidden) + self.two(hidden.flip(1))


class OutOfOrder(nn.Module):
    """The children are declared in another order than they run."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.first = nn.Linear(8, 4), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x).relu())


class RawParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(12, 4) / 4), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x @ self.weight)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(x) * torch.sigmoid(self.gate(x))


class MixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts, self.router = nn.ModuleList(nn.Linear(12, 4) for _ in range(3)), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(1)
        return (torch.stack([expert(x) for expert in self.experts], 2) @ shares.unsqueeze(2)).squeeze(2)


class SecondOutput(nn.Module):
    """The loss never sees the second output: its layer has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(12, 8), nn.Linear(8, 4), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x).relu()
        return self.head(hidden), self.other(hidden)


class NamedOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"hidden": x, "logits": self.fc(x)}


class Graph(nn.Module):
    """A graph of 12 nodes with a fixed adjacency, in a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        ring = torch.roll(torch.eye(12), 1, 0)
        self.register_buffer("adjacency", (ring + ring.T) / 2, persistent=False)
        self.mix, self.head = nn.Linear(1, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        nodes = self.mix(self.adjacency @ x.unsqueeze(2)).relu()
        return self.head((self.adjacency @ nodes).mean(1))


class PlainAttribute(nn.Module):
    """A tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale = nn.Linear(12, 4), torch.linspace(0.5, 1.5, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x * self.scale)


class WholeNumbers(nn.Module):
    """A buffer of whole numbers picks the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.register_buffer("chosen", torch.arange(0, 12, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x[:, self.chosen])


class Frozen(nn.Module):
    """A layer that does not train is a constant: it never travels."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.head = nn.Linear(12, 8).requires_grad_(False), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sin(self.fixed(x)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.down(x).relu()
        deep = self.deep(F.max_pool2d(wide, 2)).relu()
        return self.head(torch.cat([wide, self.up(deep)], 1)).mean((2, 3))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.one(x), self.three(x)], 1).relu().amax((2, 3)))


class Normalised(nn.Module):
    """Running statistics, which travel and are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.LazyConv2d(4, 3), nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().flatten(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.attention(x, x, x, need_weights=False)
        return self.fc(self.norm(x + seen).mean(1))


class TiedTokens(nn.Module):
    """Embedding and output have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 6), nn.Linear(6, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embed(x).mean(1)))[:, :4]


class FunctionalDropout(nn.Module):
    """No layer tells that it draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.dropout(self.fc1(x).relu(), 0.5, self.training))


MODULES: list[tuple[type[nn.Module], InputForm]] = [
    *((kind, VECTORS) for kind in (PlainMLP, Residual, DenselyConnected, UsedTwice, OutOfOrder)),
    *((kind, VECTORS) for kind in (RawParameters, Gated, MixtureOfExperts, SecondOutput, NamedOutput)),
    *((kind, VECTORS) for kind in (NamedTwice, SharedHead)),
    *((kind, VECTORS) for kind in (Graph, PlainAttribute, WholeNumbers, Frozen, FunctionalDropout)),
    *((kind, IMAGES) for kind in (UNet, Inception, Normalised, Lazy)),
    *((kind, SERIES) for kind in (Recurrent, Attention)),
    (TiedTokens, TOKENS),
]
