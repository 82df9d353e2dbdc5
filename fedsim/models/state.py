"""The state of a module: its keys, which fedsim trains, averages and sends, and its constants."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

Params: TypeAlias = Mapping[str, Tensor]


def select_keys(module: nn.Module) -> dict[str, Tensor]:
    """Return the keys of a module with their tensors, in the module's order.

    Keys are parameters with `requires_grad`, and persistent float buffers, such as running statistics. Tied
    parameters are one key, under the first of their names.

    Raises:
        ValueError: for a parameter of complex or whole numbers.
    """
    found, seen = dict[str, Tensor](), set[int]()
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            continue
        if isinstance(value, nn.Parameter) and not value.is_floating_point():
            raise ValueError(f"the parameter {name} is {value.dtype}; parameters have to be real numbers")
        is_key = value.is_floating_point() and (value.requires_grad or not isinstance(value, nn.Parameter))
        if is_key and id(value) not in seen:
            seen.add(id(value))
            found[name] = value
    return found


def list_constants(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that are no keys, without BatchNorm's unused counter."""
    keys = {id(value) for value in select_keys(module).values()}
    return {
        name: value
        for name, value in _list_tensors(module)
        if id(value) not in keys and not name.endswith("num_batches_tracked")
    }


def list_children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the children in order; unlike `named_children`, a layer that is used twice is there twice."""
    return [(name, child) for name, child in module._modules.items() if child is not None]


def move_constants(constants: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Move constants to a device, and return them; a second call for the same device costs nothing."""
    for name, value in constants.items():
        if value.device != device:
            with torch.inference_mode(False):  # training cannot use inference tensors
                constants[name] = value.to(device)
    return constants


def has_tied_parameters(module: nn.Module) -> bool:
    """Return whether two names of the module mean the same parameter."""
    return len(list(module.named_parameters(remove_duplicate=False))) != len(list(module.named_parameters()))


def list_ties(module: nn.Module) -> dict[str, str]:
    """Return the further places of tied tensors: name -> the first name. A submodule is one place."""
    first, ties = dict[int, str](), dict[str, str]()
    for path, part in module.named_modules():  # once, also if a submodule has two names
        for leaf, value in (*part._parameters.items(), *part._buffers.items()):
            name = f"{path}.{leaf}".lstrip(".")
            if value is not None and first.setdefault(id(value), name) != name:
                ties[name] = first[id(value)]
    return ties


def run_module(module: nn.Module, state: Params, ties: Mapping[str, str], x: Tensor) -> Any:
    """Run a module with these tensors instead of its own.

    Without `ties`, torch would put a tensor into each name of a submodule, and not take all of them back.

    Args:
        module: the module.
        state: tensors under the first of their names.
        ties: `list_ties` of the module.
        x: its input.
    """
    tied = {name: state[first] for name, first in ties.items() if first in state}
    return functional_call(module, {**state, **tied}, (x,), tie_weights=False)


def holds_loose_tensors(module: nn.Module) -> bool:
    """Return whether a module holds a tensor that is neither a parameter nor a buffer.

    It may be an attribute, or in a list, a dict or an object of an attribute, or in a closure.
    """
    own = {id(value) for _, value in _list_tensors(module)}
    seen, waiting = set[int](), list[Any]([module])
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if id(value) not in own:
                return True
        elif isinstance(value, FunctionType):  # not its globals, which are the whole program
            waiting += [value.__closure__, value.__defaults__, value.__kwdefaults__]
        elif not isinstance(value, type | ModuleType):
            waiting += gc.get_referents(value)
    return False


def _list_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
