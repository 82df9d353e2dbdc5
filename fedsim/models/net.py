"""Net: a model as pure functions of its parameters, split into named blocks from body to head.

A model is built as an `nn.Sequential` of named blocks; the last one is the head (the classifier). Net keeps
that module for its structure alone, without memory for weights. Parameters are a plain dict of tensors that
the caller owns, and one instance per process serves every client. Blocks of common layers are compiled into
direct function calls: this is faster than calling modules, and clients can be stacked. Any other module runs
through `torch.func.functional_call`.

Running statistics of BatchNorm are keys like parameters; a forward pass in training mode updates them in the
caller's tensors. A batch with a single value per channel, such as a last batch of one example on 1x1 maps,
has no batch statistics: it is normalised by the running statistics and does not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.base import rng, tree
from fedsim.models.compiled import Params, compile_module, float_state, list_constants
from fedsim.models.layers import guard_batch_norm, has_running_statistics, uses_batch_statistics

__all__ = ["Net", "Params"]


class Net:
    """A model as pure functions of its parameters.

    Args:
        build: function that makes the module: an `nn.Sequential` of named blocks, the head last. It must be
            picklable (a module-level function, or a `functools.partial` of one), because a Net is pickled as
            its build function. Tensors of the module have to be parameters or buffers: it is built on the
            meta device, and on the real device if it has buffers that are not keys.
        name: name for messages and records.

    Attributes:
        blocks: block name -> its keys, parameters and buffers, from body to head.
        keys: every key, in the module's order: parameters, and the float buffers of normalisation layers,
            which are averaged and counted like parameters but never trained.
        parameters: the keys that a gradient step may change.
        head, body: the keys of the last block and of all others.
        base: the names of the blocks of the body that have parameters.
        stochastic: whether the forward pass draws random numbers in training (dropout). Net knows torch's
            layers; any other module that draws random numbers needs the attribute `stochastic = True`.
        unstackable: reason why clients of this net cannot be stacked, "" if they can. A module can give a
            reason in an attribute of this name.

    Example:
        >>> from collections import OrderedDict
        >>> def build():
        ...     hidden = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
        ...     return nn.Sequential(OrderedDict(hidden=hidden, head=nn.Linear(16, 10)))
        >>> net = Net(build, "two_layers")
        >>> params = net.init(seed=0)
        >>> net(params, torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
        >>> net.blocks["head"]
        ('head.weight', 'head.bias')
        >>> net.count_parameters(), net.count_parameters("head")
        (1210, 170)
    """

    def __init__(self, build: Callable[[], nn.Sequential], name: str = "model") -> None:
        self.build, self.name = build, name
        self.module = _build_in_thread(
            lambda: guard_batch_norm(_build_structure(build)).requires_grad_(False)
        )
        state = float_state(self.module)
        self.keys = tuple(state)
        self.parameters = tuple(key for key, _ in self.module.named_parameters())
        self.block_names = tuple(name for name, _ in self.module.named_children())
        self.blocks = {
            block: tuple(key for key in self.keys if key.startswith(f"{block}."))
            for block in self.block_names
        }
        self.head = frozenset(self.blocks[self.block_names[-1]])
        self.body = frozenset(self.keys) - self.head
        trained = set(self.parameters)
        self.base = tuple(name for name in self.block_names[:-1] if trained.intersection(self.blocks[name]))
        self._first: dict[tuple[int, int, str], dict[str, Tensor]] = {}
        self.stochastic = any(_draws_numbers(layer) for layer in self.module.modules())
        self.unstackable = _why_unstackable(self.module)
        self._steps = {name: compile_module(block, name) for name, block in self.module.named_children()}
        self.module.eval()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.build, self.name)

    @property
    def stackable(self) -> bool:
        """Whether clients of this net can be stacked, by `torch.func.vmap` over their parameters."""
        return not self.unstackable

    def count_parameters(self, *blocks: str) -> int:
        """The number of parameters, of the whole net or of these blocks, without buffers."""
        return self.count_parameters_of(
            {key for block in blocks for key in self.blocks[block]} if blocks else self.keys
        )

    def count_parameters_of(self, keys: Collection[str]) -> int:
        """The number of parameters under these keys, without buffers."""
        return sum(p.numel() for key, p in self.module.named_parameters() if key in keys)

    def init(self, seed: int, number: int = 0) -> dict[str, Tensor]:
        """Return new parameters and buffers from the model's own initialisers; the same for the same seed.

        Args:
            seed: of the experiment.
            number: number of the architecture in the experiment. Each architecture has its own random stream;
                otherwise architectures with the same first layers would get the same weights there.
        """
        with rng.torch_stream(seed, "init", *([number] if number else [])):
            module = self.build()
        return {key: value.detach().clone() for key, value in float_state(module).items()}

    def cached_init(self, seed: int, device: torch.device | None = None, number: int = 0) -> Params:
        """Return the values of `init`, made once and cached: do not change them.

        Every process that knows the seed can make them, and untrained keys need not be sent.
        """
        kept = (seed, number, str(device or "cpu"))
        if kept not in self._first:
            with torch.inference_mode(False):  # training cannot use inference tensors
                fresh = self.init(seed, number)
                self._first = {
                    kept: {key: tree.to_channels_last(value.to(device)) for key, value in fresh.items()}
                }
        return self._first[kept]

    @contextmanager
    def training_mode(self, frozen: Collection[str] = ()) -> Iterator[None]:
        """Run the forward passes inside in training mode (dropout, batch statistics).

        Args:
            frozen: blocks that stay in evaluation mode and keep their running statistics.
        """
        self.module.train()
        for name in frozen:
            self.module.get_submodule(name).eval()
        try:
            yield
        finally:
            self.module.eval()

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Run the forward passes inside in evaluation mode, also within training, as for a teacher."""
        if not self.module.training:
            yield
            return
        frozen = [block for block in self.module.children() if not block.training]
        self.module.eval()
        try:
            yield
        finally:
            self.module.train()
            for block in frozen:
                block.eval()

    def run_blocks(
        self, params: Params, x: Tensor, start: str | None = None, stop: str | None = None
    ) -> Tensor:
        """Run the forward pass from block `start` up to, but not including, block `stop`.

        Args:
            params: at least the keys of the blocks that run.
            x: the input of block `start`, `[batch, ...]`.
            start: name of the first block to run; None runs from the beginning.
            stop: name of the block to stop before; None runs to the end.

        Raises:
            ValueError: if there is no such block.
        """
        for wanted in (start, stop):
            if wanted is not None and wanted not in self.blocks:
                raise ValueError(f"{self.name} has no block {wanted!r}; its blocks: {', '.join(self.blocks)}")
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
        return self.run_blocks(params, x)

    def features(self, params: Params, x: Tensor) -> Tensor:
        """The output of the body, which is the input of the head."""
        return self.run_blocks(params, x, stop=self.block_names[-1])

    def classify(self, params: Params, features: Tensor) -> Tensor:
        """Logits of features, from the head alone."""
        return self.run_blocks(params, features, start=self.block_names[-1])


RUNNING_STATISTICS_REASON = "BatchNorm keeps running statistics; GroupNorm (norm: group) does not"
DROPOUT_REASON = "dropout draws random numbers client by client; dropout: 0 does not"

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def _build_in_thread(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a module in a new thread, outside any `torch.func.vmap`.

    Initialisers cannot draw random numbers inside vmap, and a loss may be the first in its process to need a
    net, such as a generator. Without the thread, stacks would fail in some processes and not in others.
    """
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(make).result()


def _build_structure(build: Callable[[], nn.Sequential]) -> nn.Module:
    """The module without memory for its weights, unless it has buffers that are not keys."""
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            module = build()
        return build() if list_constants(module) else module


def _has_dropout(layer: nn.Module) -> bool:
    """Whether the layer is dropout, or has a dropout rate, as attention and recurrent layers have."""
    rate = layer.p if isinstance(layer, _DROPOUTS) else getattr(layer, "dropout", 0)
    return isinstance(rate, int | float) and rate > 0


def _draws_numbers(layer: nn.Module) -> bool:
    """Whether the layer draws random numbers in training."""
    return _has_dropout(layer) or isinstance(layer, nn.RReLU) or getattr(layer, "stochastic", False) is True


def _why_unstackable(module: nn.Module) -> str:
    own = "; ".join({str(m.unstackable): None for m in module.modules() if hasattr(m, "unstackable")})
    if own:
        return own  # no parameter of the model changes it
    if has_running_statistics(module):
        return RUNNING_STATISTICS_REASON
    if uses_batch_statistics(module):
        return (
            "BatchNorm depends on the whole batch, and a stack pads batches; GroupNorm (norm: group) does not"
        )
    drawing = [layer for layer in module.modules() if _draws_numbers(layer)]
    if any(map(_has_dropout, drawing)):
        return DROPOUT_REASON
    names = ", ".join(dict.fromkeys(type(layer).__name__ for layer in drawing))
    return f"{names} draws random numbers client by client, as dropout does" if names else ""
