"""Net: a model as pure functions of its parameters, split in named blocks from body to head.

A model is built as an `nn.Sequential` of named blocks whose last one is the head (the classifier). Net
never trains that module: parameters are a plain dict of tensors that the caller owns, so that one instance
per process serves every client. Blocks made of common layers are compiled into direct function calls, which
is both faster than calling modules and what lets many clients be stacked; any other module runs through
`torch.func.functional_call`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from . import rng

Params: TypeAlias = Mapping[str, Tensor]
Step: TypeAlias = Callable[[Params, Tensor], Tensor]


class Net:
    """A model as pure functions of its parameters.

    Args:
        build: makes the module: an `nn.Sequential` of named blocks, the head last. It must be picklable (a
            module-level function, or a `functools.partial` of one), because a Net travels as its recipe.
        name: how messages and records call it.

    Attributes:
        blocks: block name -> its keys, parameters and buffers, from body to head.
        keys: every key, in the module's order: parameters, and the float buffers of normalisation layers,
            which are averaged and counted like parameters but never trained.
        parameters: the keys that a gradient step may move.
        head, body: the keys of the last block and of all others.
        stochastic: whether the forward pass draws random numbers while training (dropout).
    """

    def __init__(self, build: Callable[[], nn.Sequential], name: str = "model") -> None:
        self.build, self.name = build, name
        with torch.random.fork_rng(devices=[]):
            self.module = build()
        self.module.requires_grad_(False)
        state = _float_state(self.module)
        self.keys = tuple(state)
        self.parameters = tuple(key for key, _ in self.module.named_parameters())
        self.block_names = tuple(name for name, _ in self.module.named_children())
        self.blocks = {
            block: tuple(key for key in self.keys if key.startswith(f"{block}."))
            for block in self.block_names
        }
        self.head = frozenset(self.blocks[self.block_names[-1]])
        self.body = frozenset(self.keys) - self.head
        self.stochastic = any(isinstance(m, _DROPOUTS) and m.p > 0 for m in self.module.modules())
        self._steps = {name: _compile(block, name) for name, block in self.module.named_children()}
        self.module.eval()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.build, self.name)

    def count(self, *blocks: str) -> int:
        """Number of parameters, of the whole net or of these blocks; buffers are not counted."""
        wanted = {key for block in blocks for key in self.blocks[block]} if blocks else set(self.keys)
        return sum(p.numel() for key, p in self.module.named_parameters() if key in wanted)

    def init(self, seed: int) -> dict[str, Tensor]:
        """Fresh parameters and buffers by the model's own initialisers, the same for the same seed."""
        with rng.torch_stream(seed, "init"):
            module = self.build()
        return {key: value.detach().clone() for key, value in _float_state(module).items()}

    @contextmanager
    def training(self) -> Iterator[None]:
        """Run the forward passes inside the block in training mode (dropout, batch statistics)."""
        self.module.train()
        try:
            yield
        finally:
            self.module.eval()

    def run(self, params: Params, x: Tensor, start: str | None = None, stop: str | None = None) -> Tensor:
        """The forward pass from block `start` (default: the first) up to, but not including, block `stop`.

        Args:
            params: at least the keys of the blocks that run.
            x: the input of block `start`, `[batch, ...]`.
            start: name of the first block to run.
            stop: name of the block to stop before; None runs to the end.
        """
        running = start is None
        for name, steps in self._steps.items():
            running = running or name == start
            if name == stop:
                break
            if running:
                for step in steps:
                    x = step(params, x)
        return x

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """Logits `[batch, classes]` of inputs `[batch, ...]`."""
        return self.run(params, x)

    def features(self, params: Params, x: Tensor) -> Tensor:
        """What the head receives: the output of the body."""
        return self.run(params, x, stop=self.block_names[-1])

    def classify(self, params: Params, features: Tensor) -> Tensor:
        """Logits of features, by the head alone."""
        return self.run(params, features, start=self.block_names[-1])


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def _float_state(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and floating-point buffers by name (integer counters stay with the module)."""
    return {key: value for key, value in module.state_dict().items() if value.is_floating_point()}


def _compile(module: nn.Module, prefix: str) -> list[Step]:
    """The module as a list of functions of (params, x)."""
    if isinstance(module, nn.Sequential):
        steps: list[Step] = []
        children = [(f"{prefix}.{name}", child) for name, child in module.named_children()]
        for path, child in _pool_first(children):
            steps += _compile(child, path)
        return steps
    make = _LAYERS.get(type(module))
    if make is not None:
        return [make(module, prefix)]
    if next(iter(_float_state(module)), None) is None:
        return [lambda params, x: module(x)]
    return [_general(module, prefix)]


def _pool_first(children: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """ReLU then max pooling, done the other way round.

    The same values and gradients, on a quarter of the
    numbers.

    Max commutes with every monotone function, so only the cost differs.
    """
    ordered = list(children)
    for i in range(len(ordered) - 1):
        if isinstance(ordered[i][1], nn.ReLU) and isinstance(ordered[i + 1][1], nn.MaxPool2d):
            ordered[i], ordered[i + 1] = ordered[i + 1], ordered[i]
    return ordered


def _linear(module: nn.Linear, prefix: str) -> Step:
    weight, bias = f"{prefix}.weight", f"{prefix}.bias"
    if module.bias is None:
        return lambda params, x: F.linear(x, params[weight])
    return lambda params, x: F.linear(x, params[weight], params[bias])


def _conv2d(module: nn.Conv2d, prefix: str) -> Step:
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        return _general(module, prefix)
    weight, bias = f"{prefix}.weight", f"{prefix}.bias"
    stride, padding, dilation, groups = module.stride, module.padding, module.dilation, module.groups
    if module.bias is None:
        return lambda params, x: F.conv2d(x, params[weight], None, stride, padding, dilation, groups)
    return lambda params, x: F.conv2d(x, params[weight], params[bias], stride, padding, dilation, groups)


def _group_norm(module: nn.GroupNorm, prefix: str) -> Step:
    if not module.affine:
        return lambda params, x: F.group_norm(x, module.num_groups, eps=module.eps)
    weight, bias = f"{prefix}.weight", f"{prefix}.bias"
    return lambda params, x: F.group_norm(x, module.num_groups, params[weight], params[bias], module.eps)


def _relu(module: nn.ReLU, prefix: str) -> Step:
    return lambda params, x: F.relu(x)


def _flatten(module: nn.Flatten, prefix: str) -> Step:
    first, last = module.start_dim, module.end_dim
    return lambda params, x: x.flatten(first, last)


def _general(module: nn.Module, prefix: str) -> Step:
    """Any module, through functional_call; batch statistics are updated in the caller's tensors."""
    names = {name: f"{prefix}.{name}" for name in _float_state(module)}

    def call(params: Params, x: Tensor) -> Tensor:
        mine = {name: params[key] for name, key in names.items()}
        output: Tensor = functional_call(module, mine, (x,))
        return output

    return call


_LAYERS: dict[type[nn.Module], Callable[[Any, str], Step]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.GroupNorm: _group_norm,
    nn.ReLU: _relu,
    nn.Flatten: _flatten,
}
