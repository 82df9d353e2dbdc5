"""Convert server states and client states to bytes and back, bit for bit.

The bytes are one safetensors file with a JSON skeleton in its header. The skeleton is the value, with a
reference in place of each tensor; nothing in a file is ever executed. Types are not stored: dataclasses are
rebuilt with the types of a template.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

Skeleton: TypeAlias = Any
"""JSON: null, booleans, numbers, strings and lists as they are; everything else as {kind: ...}."""

Tensors: TypeAlias = dict[str, Tensor]


def pack(value: Any) -> bytes:
    """Convert a value to the content of a safetensors file.

    Args:
        value: a tree of tensors, arrays, numbers, strings, None, lists, tuples, mappings and dataclasses.

    Raises:
        TypeError: the tree holds a value of another type.
    """
    tensors: Tensors = {}
    skeleton = json.dumps(_skeleton(value, tensors), separators=(",", ":"), allow_nan=False)
    seen: set[int] = set()
    own = {name: _own(tensor, seen) for name, tensor in tensors.items()}
    return save_tensors(own, metadata={"skeleton": skeleton})


def unpack(content: bytes, template: Any = None) -> Any:
    """Convert the content of a safetensors file back to the value.

    Args:
        content: the bytes that `pack` returned.
        template: a value of the same form; its dataclasses give the types of the rebuilt dataclasses.

    Raises:
        ValueError: the content is damaged, or its form differs from the template's.
    """
    try:
        length = int.from_bytes(content[:8], "little")
        skeleton = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["skeleton"])
        tensors = load_tensors(content)
    except (SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"is not what fedsim writes: {type(error).__name__}: {error}") from error
    return _value(skeleton, tensors, template)


def _own(tensor: Tensor, seen: set[int]) -> Tensor:
    """Return the tensor on the CPU with a storage of its own, as safetensors requires."""
    alone = tensor.detach().cpu().contiguous()
    storage = alone.untyped_storage()
    if storage.data_ptr() in seen or storage.nbytes() != alone.nbytes:
        alone = alone.clone()
    seen.add(alone.untyped_storage().data_ptr())
    return alone


def _skeleton(value: Any, tensors: Tensors) -> Skeleton:
    """Return the skeleton of a value; its tensors are added to `tensors`."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Tensor):
        return _refer_to_tensor(value, tensors)
    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {kind: _refer_to_tensor(torch.from_numpy(np.array(value)), tensors)}
    if is_dataclass(value) and not isinstance(value, type):
        return {"fields": {f.name: _skeleton(getattr(value, f.name), tensors) for f in fields(value)}}
    if isinstance(value, Mapping):
        return {"pairs": [[_key(key), _skeleton(item, tensors)] for key, item in value.items()]}
    if type(value) in (list, tuple):
        items = [_skeleton(item, tensors) for item in value]
        return items if type(value) is list else {"tuple": items}
    raise TypeError(
        f"a checkpoint cannot hold {type(value).__name__}; use trees of tensors, numbers or strings"
    )


def _key(key: Any) -> Any:
    """Return the key of a mapping if it is a string or an integer; raise TypeError otherwise."""
    if type(key) in (str, int):
        return key
    raise TypeError(f"a checkpoint cannot hold the key {key!r}; use strings or whole numbers")


def _refer_to_tensor(tensor: Tensor, tensors: Tensors) -> Skeleton:
    """Add a tensor to `tensors` and return the reference to it."""
    name = str(len(tensors))
    if tensor.dtype is torch.complex128:  # safetensors has no name for this type
        tensors[name] = torch.view_as_real(tensor.detach().contiguous())
        return {"complex": name}
    tensors[name] = tensor
    return {"tensor": name}


def _value(skeleton: Skeleton, tensors: Tensors, template: Any) -> Any:
    """Rebuild a value from its skeleton and tensors."""
    if isinstance(skeleton, list):
        return [_value(item, tensors, _part(template, n)) for n, item in enumerate(skeleton)]
    if not isinstance(skeleton, dict):
        return skeleton
    [(kind, inside)] = skeleton.items()
    if kind == "fields":
        return _rebuild_dataclass(inside, tensors, template)
    if kind == "pairs":
        return {key: _value(item, tensors, _part(template, key)) for key, item in inside}
    if kind == "tuple":
        return tuple(_value(item, tensors, _part(template, n)) for n, item in enumerate(inside))
    if kind == "float":
        return float(inside)
    return _leaf(kind, inside, tensors)


def _leaf(kind: str, inside: Skeleton, tensors: Tensors) -> Any:
    """Return the tensor, NumPy array or NumPy scalar of a reference."""
    if kind == "tensor":
        return tensors[inside]
    if kind == "complex":
        return torch.view_as_complex(tensors[inside])
    array = _value(inside, tensors, None).numpy()
    return array if kind == "array" else array[()]


def _rebuild_dataclass(inside: Mapping[str, Skeleton], tensors: Tensors, template: Any) -> Any:
    """Rebuild a dataclass of the template's type, without a call of its constructor."""
    if not is_dataclass(template) or isinstance(template, type):
        raise ValueError(f"holds a state with {', '.join(inside)} where there is now {template!r:.100}")
    names = {f.name for f in fields(template)}
    # A field that is in no digest only describes a round: older checkpoints may lack it.
    needed = {f.name for f in fields(template) if f.metadata.get("digest", True)}
    if not needed <= set(inside) <= names:
        kind = type(template).__name__
        raise ValueError(f"holds a state with {sorted(inside)}, and {kind} has {sorted(names)}")
    made = object.__new__(type(template))
    for name in names:
        held = getattr(template, name)
        object.__setattr__(made, name, _value(inside[name], tensors, held) if name in inside else held)
    return made


def _part(template: Any, key: Any) -> Any:
    """Return the part of a template under a key or index; None if it has none."""
    if isinstance(template, Mapping):
        return template.get(key)
    if isinstance(template, list | tuple) and isinstance(key, int):
        return template[key] if key < len(template) else None
    return None
