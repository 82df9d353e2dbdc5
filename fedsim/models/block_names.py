"""Blocks: the named parts of a model, from the input to the head, each with its parameters and buffers.

The children of an `nn.Sequential` are its blocks. Any other module declares them, in the class attribute
`blocks` or in the spec (`model.blocks`): a list of patterns, or a mapping from block names to patterns. The
head comes last. A pattern is a submodule's name (`layer1`), a parameter's name, or either with `*` and `?`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import nn

from fedsim.base.parameters import make_spec_error

BlockPatterns: TypeAlias = Sequence[str] | Mapping[str, str | Sequence[str]]


def read_class_blocks(module: nn.Module) -> BlockPatterns | None:
    """Return the blocks that a class declares in its attribute `blocks`; None if it declares none."""
    found = getattr(type(module), "blocks", None)
    names = [*found, *_flatten(found.values())] if isinstance(found, Mapping) else found
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        return found
    return None


def resolve_blocks(patterns: BlockPatterns, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return {block name: its keys} of declared blocks.

    Args:
        patterns: the declaration, from the input to the head.
        keys: all keys of the model.

    Raises:
        SpecError: with path `blocks`, if a pattern matches no key, or a key is in no block or in several.

    Example:
        >>> resolve_blocks({"body": "layer*", "head": "fc"}, ["layer1.weight", "layer2.weight", "fc.weight"])
        {'body': ('layer1.weight', 'layer2.weight'), 'head': ('fc.weight',)}
    """
    wanted = patterns if isinstance(patterns, Mapping) else {pattern: pattern for pattern in patterns}
    blocks, owner = dict[str, tuple[str, ...]](), dict[str, str]()
    for block, given in wanted.items():
        found: list[str] = []
        for pattern in [given] if isinstance(given, str) else given:
            matched = [key for key in keys if matches_pattern(pattern, key)]
            if not matched:
                there = f"the model has {list_names(keys)}; frozen parameters belong to no block"
                raise make_spec_error("blocks", patterns, f"{pattern!r} matches nothing", there)
            found += matched
        for key in found:
            if owner.setdefault(key, block) != block:
                message = f"{owner[key]!r} and {block!r} both contain {key}"
                raise make_spec_error("blocks", patterns, message, "each key belongs to one block")
        blocks[block] = tuple(key for key in keys if key in set(found))
    if left := [key for key in keys if key not in owner]:
        hint = "each key belongs to one block"
        raise make_spec_error("blocks", patterns, f"leave out {list_names(left)}", hint)
    return blocks


def find_block_modules(module: nn.Module, keys: Collection[str]) -> list[str]:
    """Return the names of the largest submodules whose parameters and buffers all belong to a block.

    Args:
        module: the whole model.
        keys: the keys of the block.
    """
    found = list[str]()
    for name, each in module.named_modules():
        inside = any(name.startswith(f"{parent}.") for parent in found)
        own = [f"{name}.{key}" for key in each.state_dict()]
        if name and not inside and not keys_outside(own, keys) and set(own) & set(keys):
            found.append(name)
    return found


def keys_outside(own: Sequence[str], keys: Collection[str]) -> list[str]:
    """Return the keys of a submodule that a block does not contain; counters of BatchNorm do not matter."""
    return [key for key in own if key not in keys and not key.endswith("num_batches_tracked")]


def matches_pattern(pattern: str, key: str) -> bool:
    """Return whether a pattern names this key, or a submodule that contains it."""
    parts = key.split(".")
    return any(fnmatchcase(".".join(parts[: n + 1]), pattern) for n in range(len(parts)))


def _flatten(values: Collection[str | Sequence[str]]) -> list[str]:
    return [each for value in values for each in ([value] if isinstance(value, str) else value)]


def list_names(keys: Sequence[str]) -> str:
    """List at most eight keys."""
    return ", ".join(keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
