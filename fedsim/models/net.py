"""Net: a model as pure functions of its parameters, split into named blocks from body to head.

A model is any `nn.Module`. Net keeps the module for its structure, without memory for the weights.
Parameters are a plain dict of tensors that the caller owns, and one instance per process serves every client.

- An `nn.Sequential` is a chain: its children are its blocks. Blocks of common layers are compiled into direct
  function calls, which is faster than calling modules.
- Any other module runs as its own `forward` says, through `torch.func.functional_call`. It may declare blocks
  (see `fedsim.models.block_names`); algorithms that treat parts of a model differently need them.

Running statistics of BatchNorm are keys like parameters; a forward pass in training mode updates them in the
caller's tensors. A batch with a single value per channel, such as a last batch of one example on 1x1 maps,
has no batch statistics: it is normalised by the running statistics and does not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from fedsim.base import rng, tree
from fedsim.errors import FedsimError
from fedsim.models.block_names import BlockPatterns, find_block_modules, read_class_blocks, resolve_blocks
from fedsim.models.compiled import Step, compile_module, is_chain
from fedsim.models.initial_weights import Arrays, InitialWeights, fit_weights
from fedsim.models.layers import guard_batch_norm
from fedsim.models.probe import InputForm, ProbeFacts, probe_module, select_logits
from fedsim.models.randomness import draws_numbers, find_stacking_obstacle
from fedsim.models.state import (
    Params,
    has_tied_parameters,
    holds_loose_tensors,
    list_children,
    list_constants,
    list_ties,
    move_constants,
    run_module,
    select_keys,
)

__all__ = ["InputForm", "Net", "Params"]

T = TypeVar("T")

WHOLE = "model"
"""Name of the only block of a model that declares none."""

DECLARE = "declare its blocks (model.blocks: {body: [...], head: ...}), or build an nn.Sequential of blocks"


class Net:
    """A model as pure functions of its parameters.

    Args:
        build: function that makes the module. It must be picklable (a module-level function, or a
            `functools.partial` of one), because a Net is pickled as its build function. The module is built
            on the meta device, and on the real device if it has tensors that are not keys.
        name: name for messages and records.
        blocks: the blocks of a module that is no `nn.Sequential`, the head last; by default those of its
            class attribute `blocks`.
        inputs: the form of the inputs. Modules that are not made of torch's own layers need it: they run once
            on random inputs (see `fedsim.models.probe`).

    Attributes:
        changes_weights: whether a forward pass changes weights in place.
        builder: the function `build`; the method `build` calls it in the random stream of the constants.
        blocks: block name -> its keys, parameters and buffers, from body to head.
        keys: every key, in the module's order: the parameters that train, and the float buffers of
            normalisation layers, which are averaged and counted like parameters but never trained. Parameters
            whose `requires_grad` is False are constants: they neither train nor travel.
        parameters: the keys that a gradient step may change.
        statistics: the other keys, such as the running mean of a normalisation layer.
        is_chain: whether the forward pass is the composition of the blocks.
        base: the names of the blocks of the body that have parameters.
        head_error: reason why `features` and `classify` cannot be used; "" if they can.
        stochastic: whether the forward pass draws random numbers in training (dropout).
        initial: the weights of `load_weights`, keys and constants; {} without.
        unstackable: reason why clients of this net cannot be stacked, "" if they can. A module can give a
            reason in an attribute of this name.

    Raises:
        ValueError: if the module cannot serve as a model; the message says why.
        SpecError: with path `blocks`, if the declared blocks do not fit the model.

    Example:
        A chain of named blocks:

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

        Any other module, which runs as its `forward` says:

        >>> class Residual(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.inner, self.fc = nn.Linear(8, 8), nn.Linear(8, 2)
        ...     def forward(self, x):
        ...         return self.fc(x + torch.relu(self.inner(x)))
        >>> net = Net(Residual, blocks=["inner", "fc"], inputs=InputForm((8,)))
        >>> net.is_chain, net.features(net.init(0), torch.zeros(5, 8)).shape
        (False, torch.Size([5, 8]))
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        name: str = "model",
        *,
        blocks: BlockPatterns | None = None,
        inputs: InputForm | None = None,
        facts: ProbeFacts | None = None,
    ) -> None:
        self.builder, self.name, self.inputs, self._declared = build, name, inputs, blocks
        module = _run_in_thread(lambda: guard_batch_norm(_build_structure(build, inputs)))
        self.module, self._constants, self._ties = module, list_constants(module), list_ties(module)
        self.keys = tuple(select_keys(module))
        self.parameters = tuple(key for key, value in module.named_parameters() if value.requires_grad)
        self.statistics = frozenset(self.keys) - frozenset(self.parameters)
        if not self.parameters:
            raise ValueError(f"{name} has no parameters that train")
        _check_weight_hooks(name, module)
        self.is_chain = is_chain(module) and not has_tied_parameters(module) and blocks is None
        self.blocks = self._find_blocks()
        self.block_names = tuple(self.blocks)
        self._modules = {block: self._list_block_modules(block) for block in self.blocks}
        trained = set(self.parameters)
        self.base = tuple(
            block for block in self.block_names[:-1] if trained.intersection(self.blocks[block])
        )
        self._steps: dict[str, list[Step]] = {}
        if self.is_chain:
            self._steps = {block: compile_module(each, block) for block, each in list_children(module)}
        self.stochastic = any(map(draws_numbers, module.modules()))
        self.unstackable = find_stacking_obstacle(module)
        # An embedding with a largest norm shortens rows.
        self.changes_weights = any(getattr(each, "max_norm", None) is not None for each in module.modules())
        self._facts = facts or self._probe()
        self.head_error = self._facts.head_error if self._facts else ""
        if self._facts:
            self.stochastic = self.stochastic or self._facts.stochastic
            self.unstackable = self.unstackable or self._facts.unstackable
        self.initial: Arrays = {}
        self._first: dict[tuple[int, int, str], dict[str, Tensor]] = {}
        module.eval()

    def __reduce__(self) -> tuple[Any, ...]:
        # With its facts: another process needs no other probe.
        remake = partial(type(self), blocks=self._declared, inputs=self.inputs, facts=self._facts)
        return remake, (self.builder, self.name), self.initial

    def __setstate__(self, initial: Arrays) -> None:
        self._begin_with(initial)

    def _begin_with(self, initial: Arrays) -> None:
        self.initial, self._first = initial, {}
        with torch.no_grad():
            for name, value in self._constants.items():
                if name in initial:
                    value.copy_(tree.wrap_array(initial[name]))  # compiled blocks read the same tensor

    def load_weights(self, weights: InitialWeights) -> None:
        """Begin from these weights: `init` returns them, whatever the seed.

        Raises:
            SpecError: with path `init`, with every name that does not fit; see `fit_weights`.
        """
        self._begin_with(fit_weights(self.name, self.module, self.keys, weights))

    @property
    def initial_constants(self) -> Arrays:
        """The frozen weights that came from `load_weights`, by name."""
        return {name: self.initial[name] for name in self._constants if name in self.initial}

    def _find_blocks(self) -> dict[str, tuple[str, ...]]:
        """The blocks: the children of a chain, the declared blocks, or one block with everything."""
        declared = self._declared or (None if self.is_chain else read_class_blocks(self.module))
        if declared is not None:
            return resolve_blocks(declared, self.keys)
        if not (self.is_chain or is_chain(self.module)):
            return {WHOLE: self.keys}
        return {
            block: tuple(key for key in self.keys if key.startswith(f"{block}."))
            for block, _ in list_children(self.module)
        }

    def _list_block_modules(self, block: str) -> list[str]:
        """The submodules that make up a block."""
        return [block] if self.is_chain else find_block_modules(self.module, self.blocks[block])

    def _probe(self) -> ProbeFacts | None:
        """Run a module that is not made of known layers; None if all its layers are known."""
        if self.is_chain and self._has_known_layers():
            return None
        if self.inputs is None:
            if self.is_chain:
                return None  # every block runs by its own forward; only its randomness is taken on trust
            raise ValueError(
                f"{self.name} is no nn.Sequential of blocks, so that it has to run once: "
                "give Net the form of its inputs (inputs=InputForm(shape))"
            )
        inputs, head = self.inputs, None
        if len(self.blocks) > 1 and len(self._modules[self.block_names[-1]]) == 1:
            head = self._modules[self.block_names[-1]][0]

        def build_and_probe() -> ProbeFacts:
            with rng.construction_stream(0, "probe"):
                return probe_module(guard_batch_norm(_materialise(self.builder(), inputs)), inputs, head)

        try:
            facts: ProbeFacts = _run_in_thread(build_and_probe)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        if self.is_chain:
            return facts._replace(head="", head_error="")
        if len(self.blocks) > 1 and head is None:
            facts = facts._replace(head_error=f"the head {self.block_names[-1]} is not one submodule")
        return facts

    def _has_known_layers(self) -> bool:
        return not self.changes_weights and all(_is_known(each) for each in self.module.modules())

    @property
    def runs_without_values(self) -> bool:
        """Whether a pass on the meta device shows its shapes and operations: no layer reads values."""
        return self._has_known_layers() and not self._constants

    @property
    def stackable(self) -> bool:
        """Whether clients of this net can be stacked, by `torch.func.vmap` over their parameters."""
        return not self.unstackable

    @cached_property
    def head(self) -> frozenset[str]:
        """The keys of the last block.

        Raises:
            ValueError: if the model declares no blocks.
        """
        if len(self.blocks) == 1 and not self.is_chain:
            raise ValueError(f"{self.name} has no head: {DECLARE}")
        return frozenset(self.blocks[self.block_names[-1]])

    @cached_property
    def body(self) -> frozenset[str]:
        """The keys of all blocks but the last.

        Raises:
            ValueError: if the model declares no blocks.
        """
        return frozenset(self.keys) - self.head

    def count_parameters(self, *blocks: str) -> int:
        """The number of parameters, of the whole net or of these blocks, without buffers."""
        return self.count_parameters_of(
            {key for block in blocks for key in self.blocks[block]} if blocks else self.keys
        )

    def count_parameters_of(self, keys: Collection[str]) -> int:
        """The number of parameters under these keys, without buffers."""
        return sum(p.numel() for key, p in self.module.named_parameters() if key in keys)

    def build(self) -> nn.Module:
        """Return a new module with the constants of this net, also random ones; load weights into it."""
        with rng.construction_stream(0, "constants"):
            return self.builder()

    def init(self, seed: int, number: int = 0) -> dict[str, Tensor]:
        """Return new parameters and buffers, the same for the same seed.

        They come from `load_weights`, and otherwise from the model's own initialisers.

        Args:
            seed: of the experiment.
            number: number of the architecture in the experiment. Each architecture has its own random stream;
                otherwise architectures with the same first layers would get the same weights there.
        """
        with rng.construction_stream(seed, "init", *([number] if number else [])):
            module = _materialise(self.builder(), self.inputs)
        return {
            key: tree.wrap_array(self.initial[key]).to(value.dtype, copy=True)
            if key in self.initial
            else value.detach().clone()
            for key, value in select_keys(module).items()
        }

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
        for block in frozen:
            for name in self._modules[block]:
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
        frozen = [each for each in self.module.modules() if not each.training]
        self.module.eval()
        try:
            yield
        finally:
            self.module.train()
            for each in frozen:
                each.training = False

    def run_blocks(
        self, params: Params, x: Tensor, start: str | None = None, stop: str | None = None
    ) -> Tensor:
        """Run the forward pass from block `start` up to, but not including, block `stop`.

        Args:
            params: at least the keys of the blocks that run; all keys unless the net is a chain.
            x: the input of block `start`, `[batch, ...]`.
            start: name of the first block to run; None runs from the beginning.
            stop: name of the block to stop before; None runs to the end.

        Raises:
            ValueError: if there is no such block, or the net is no chain and the block is not its head.
        """
        for wanted in (start, stop):
            if wanted is not None and wanted not in self.blocks:
                raise ValueError(f"{self.name} has no block {wanted!r}; its blocks: {', '.join(self.blocks)}")
        if not self.is_chain:
            return self._run_whole(params, x, start, stop)
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
        """The output of the body, which is the input of the head.

        Raises:
            ValueError: if the head does not stand alone; `head_error` says why.
        """
        return self.run_blocks(params, x, stop=self.block_names[-1])

    def classify(self, params: Params, features: Tensor) -> Tensor:
        """Logits of features, from the head alone.

        Raises:
            ValueError: if the head does not stand alone; `head_error` says why.
        """
        return self.run_blocks(params, features, start=self.block_names[-1])

    @cached_property
    def _head_module(self) -> tuple[str, nn.Module, dict[str, str]]:
        """The head of a net that is no chain: its path, its submodule, and its ties."""
        path = self._facts.head if self._facts else self.block_names[-1]
        head = self.module.get_submodule(path)
        return path, head, list_ties(head)

    def _run_whole(self, params: Params, x: Tensor, start: str | None, stop: str | None) -> Tensor:
        """`run_blocks` of a net that is no chain: the whole model, its features, or its head."""
        state = {key: params[key] for key in self.keys if key in params}
        state |= move_constants(self._constants, x.device)
        if start is None and stop is None:
            return select_logits(run_module(self.module, state, self._ties, x))
        last = self.block_names[-1]
        if self.head_error or {start, stop} - {None} != {last}:
            reason = self.head_error or f"only its head {last!r} can run alone"
            raise ValueError(f"{self.name} cannot be cut into blocks: {reason}; {DECLARE}")
        path, head, ties = self._head_module
        if start is not None:
            own = {
                key.removeprefix(f"{path}."): value
                for key, value in state.items()
                if key.startswith(f"{path}.")
            }
            return select_logits(run_module(head, own, ties, x))
        caught = list[Tensor]()
        handle = head.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
        try:
            run_module(self.module, state, self._ties, x)
        finally:
            handle.remove()
        return caught[0]


def _run_in_thread(make: Callable[[], T]) -> T:
    """Call a function in a new thread, outside any `torch.func.vmap`.

    Initialisers cannot draw random numbers inside vmap, and a loss may be the first in its process to need a
    net, such as a generator. Without the thread, stacks would fail in some processes and not in others.
    """
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(make).result()


def _build_structure(build: Callable[[], nn.Module], inputs: InputForm | None) -> nn.Module:
    """The module without memory for its weights, unless it has tensors that are not keys, or reads tensors.

    Such tensors are the same in every process: they are made from one seed.
    """
    with rng.construction_stream(0, "constants"):
        try:
            with torch.device("meta"):
                module = build()
        except FedsimError:  # such as weights that cannot be downloaded
            raise
        except Exception:  # its constructor reads a tensor, or has a fault, which the real build raises
            is_real = True
        else:
            is_lazy = any(isinstance(each, LazyModuleMixin) for each in module.modules())
            is_real = is_lazy or bool(list_constants(module)) or holds_loose_tensors(module)
    if not is_real:
        return module
    with rng.construction_stream(0, "constants"):  # anew: the first build may have drawn numbers
        return _materialise(build(), inputs)


def _materialise(module: nn.Module, inputs: InputForm | None) -> nn.Module:
    """Give the lazy layers of a module their shapes, by one forward pass."""
    if any(isinstance(each, LazyModuleMixin) for each in module.modules()):
        if inputs is None:
            raise ValueError("lazy layers need the form of the inputs (inputs=InputForm(shape))")
        with torch.no_grad():
            module(inputs.make_examples())
    return module


def _is_known(layer: nn.Module) -> bool:
    """Whether the inside of a layer is known: a layer of torch or fedsim, with the forward of its class."""
    known = type(layer).__module__.startswith(("torch.nn.modules.", "fedsim.models."))
    return known and "forward" not in vars(layer)


def _check_weight_hooks(name: str, module: nn.Module) -> None:
    """Raise ValueError if a parameter has a hook: training replaces the parameter by a tensor without it."""
    for key, weight in module.named_parameters():
        if weight._backward_hooks or weight._post_accumulate_grad_hooks:
            raise ValueError(
                f"{name}: its parameter {key} has a hook (register_hook), which would do nothing here; to "
                "mask its gradient, let forward use `mask * weight + (1 - mask) * weight.detach()`"
            )
