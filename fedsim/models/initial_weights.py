"""Initial weights: the user's own weights, from which a run begins instead of random ones.

A file of weights is a state dict, by safetensors or `torch.save`. Nothing in a file is ever executed.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.base.parameters import make_spec_error
from fedsim.models.block_names import list_names, matches_pattern

Arrays: TypeAlias = Mapping[str, np.ndarray[Any, Any]]

WRAPPER = "module."
"""The prefix of all names in the state dict of `nn.DataParallel` and `DistributedDataParallel`."""

SAVE_HINT = "save module.state_dict(), with safetensors.torch.save_file or torch.save"


class InitialWeights(NamedTuple):
    """Weights from which a model begins.

    Attributes:
        values: a state dict as NumPy arrays, which other processes can read without a copy.
        ignore: patterns of parameters that begin as the model makes them; see `fedsim.models.block_names`.
        source: the name of the file, for messages.
        sha256: of the file.
    """

    values: Arrays
    ignore: tuple[str, ...] = ()
    source: str = ""
    sha256: str = ""


def parse_weights(
    content: bytes, source: str, *, ignore: Sequence[str] = (), part: int = 0
) -> InitialWeights:
    """Return the weights in a file.

    Args:
        content: of a safetensors file, or of a file that `torch.save` wrote.
        source: the name of the file, for messages.
        ignore: see `InitialWeights`.
        part: the number of the architecture, if the file has the weights of several (`0/fc.weight`, ...).

    Raises:
        SpecError: with path `init`, if the file has anything but tensors by name.
    """
    try:
        state = _unpack(content)
    except Exception as error:  # torch and safetensors raise errors of many kinds
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise make_spec_error("init", source, f"cannot be read as weights: {reason}", SAVE_HINT) from None
    if not isinstance(state, Mapping):
        raise make_spec_error("init", source, f"holds a {type(state).__name__}, not a state dict", SAVE_HINT)
    if wrong := [str(k) for k, v in state.items() if not (isinstance(k, str) and isinstance(v, Tensor))]:
        message = f"holds entries that are no tensors: {list_names(wrong)}"
        raise make_spec_error("init", source, message, SAVE_HINT)
    parts = {name.partition("/")[0] for name in state}
    if state and all(number.isdecimal() for number in parts):
        if str(part) not in parts:
            message = f"has no architecture number {part}; it has {', '.join(sorted(parts, key=int))}"
            raise make_spec_error("init", source, message, "leave init out for this model")
        state = {
            name.partition("/")[2]: value for name, value in state.items() if name.startswith(f"{part}/")
        }
    values = {name: _to_array(state[name]) for name in sorted(state)}  # safetensors has no order
    return InitialWeights(values, tuple(ignore), source, hashlib.sha256(content).hexdigest())


def _unpack(content: bytes) -> Any:
    """Return the content of a file; a safetensors file begins with the length of its JSON header."""
    if content[8:9] == b"{":
        from safetensors.torch import load

        return load(content)
    if not content.startswith((b"PK", b"\x80")):
        raise ValueError("it is neither a safetensors file nor one that torch.save wrote")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _to_array(value: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as an array; NumPy has no bfloat16."""
    return (value.float() if value.dtype is torch.bfloat16 else value).detach().contiguous().numpy()


def fit_weights(
    name: str, module: nn.Module, keys: Sequence[str], weights: InitialWeights
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights under the names of a module.

    Every key must be there, in its shape, unless it is ignored. Constants, such as frozen parameters, may be
    there. Tied parameters may have any of their names.

    Args:
        name: of the model, for messages.
        module: the model; it needs no memory for its weights.
        keys: the parameters and buffers of the module that train or travel.
        weights: a state dict of such a model.

    Raises:
        SpecError: with path `init`, with every name that does not fit.
    """
    own = module.state_dict(keep_vars=True)
    ignored = {each for pattern in weights.ignore for each in _match(pattern, [*own, *weights.values])}
    given = {key: value for key, value in weights.values.items() if key not in ignored}
    aliases: dict[int, list[str]] = {}
    for key, value in own.items():
        aliases.setdefault(id(value), []).append(key)
    found, missing, misshapen = dict[str, np.ndarray[Any, Any]](), list[str](), list[str]()
    used = set[str]()
    for key, value in own.items():
        names = [*aliases[id(value)], *map(_name_without_adapter, aliases[id(value)])]
        used.update(name for name in names if name in given)
        there = next((given[name] for name in names if name in given), None)
        if there is not None and there.shape == tuple(value.shape):
            found[key] = there
        elif there is not None:
            misshapen.append(f"{key} is {list(there.shape)} in the file and {list(value.shape)} in the model")
        elif key in keys and key not in ignored:
            missing.append(key)
    if not any(_ADAPTER.search(key) for key in given):
        missing = [key for key in missing if not _ADAPTER.search(key)]  # adapters begin anew on plain weights
    surplus = [key for key in given if key not in used]
    faults = [
        *([f"the file lacks {list_names(missing)}"] if missing else []),
        *([f"the model has no {list_names(surplus)}"] if surplus else []),
        *misshapen[:8],
        *(["nothing of the file is loaded"] if not found else []),
    ]
    if faults:
        hint = "name the parameters that shall begin anew: ignore: [head]"
        if surplus and all(key.startswith(WRAPPER) for key in surplus):
            hint = f"save the state dict of the module inside the wrapper, without {WRAPPER}"
        raise make_spec_error("init", weights.source, f"does not fit {name}: {'; '.join(faults)}", hint)
    return found


_ADAPTER = re.compile(r"\.lora_")
_WRAPPED = re.compile(r"\.(base_layer|original_module|modules_to_save\.default)(?=\.)")


def _name_without_adapter(key: str) -> str:
    """Return the name of a weight before peft wrapped its layer: `fc1.weight` for `fc1.base_layer.weight`."""
    return _WRAPPED.sub("", key)


def _match(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names, in the model or in the file, that a pattern means."""
    found = [name for name in names if matches_pattern(pattern, name)]
    if not found:
        hint = f"the model has {list_names(names)}"
        raise make_spec_error("init.ignore", pattern, "matches no parameter of the model or the file", hint)
    return found
