"""Models from a Python file of the user's own: `model: {name: python, path: mine.py:Net}`.

The text of the file is part of the model's parameters (`source`), so that the model is the same on every
node and in every later run. Whoever submits such a spec runs code: a service refuses it unless its operator
allows it (`FEDSIM_ALLOW_PYTHON`).
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedsim.base import rng
from fedsim.base.parameters import make_spec_error
from fedsim.base.python_source import read_source

_RUNNING = threading.Lock()
"""Held while a file runs: another thread would find its module without the class."""


def python(
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = 0,
    *,
    path: str,
    source: str | None = None,
    **params: Any,
) -> nn.Module:
    """A class, or a function that returns a module, of a Python file of your own.

    It is called with the further parameters of the spec, and with `input_shape`, `num_classes` and
    `vocabulary` if it has arguments of these names.

    Args:
        input_shape: of one example.
        num_classes: C.
        vocabulary: number of tokens of the data; 0 for data without tokens.
        path: file and name, such as `mine.py:Net`.
        source: the text of the file; the command line and the SDK read it from the file.
        params: parameters of your own class or function.

    Raises:
        SpecError: if there is no such file or name, or the file cannot be run.
        ValueError: if the class or function does not take the parameters, or raises.
    """
    make = _find_name(path, read_source(path) if source is None else source)
    given = {"input_shape": tuple(input_shape), "num_classes": num_classes, "vocabulary": vocabulary}
    wanted = inspect.signature(make).parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in wanted.values())
    arguments = {name: value for name, value in given.items() if name in wanted or open_ended} | params
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{path} cannot be called with {', '.join(arguments)}: {error}") from None
    try:
        module = make(**arguments)
    except Exception as error:
        raise ValueError(f"{path} raises {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(f"{path} gives a {type(module).__name__}, not an nn.Module")
    return module


def _find_name(path: str, source: str) -> Callable[..., nn.Module]:
    """Return the named class or function of a file, run once for each text."""
    file, _, name = path.rpartition(":")
    key = f"fedsim_own_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    with _RUNNING:
        if key not in sys.modules:
            _run_file(key, path, file, source)
    found = getattr(sys.modules[key], name, None)
    if not callable(found):
        own = [n for n, each in vars(sys.modules[key]).items() if getattr(each, "__module__", "") == key]
        hint = f"the file defines {', '.join(own)}" if own else "the file defines no class and no function"
        raise make_spec_error("path", path, f"the file has no class or function {name!r}", hint)
    make: Callable[..., nn.Module] = found
    return make


def _run_file(key: str, path: str, file: str, source: str) -> None:
    """Run the text of a file as the module of this name."""
    module = types.ModuleType(key)
    module.__file__ = file
    sys.modules[key] = module
    # For tracebacks and debuggers: the file may stand in another folder, or on another machine.
    entry = (len(source), None, source.splitlines(keepends=True), file)
    linecache.cache |= {file: entry, os.path.abspath(file): entry}
    try:
        # Tensors at the top of the file are real, and random ones the same in every process.
        with rng.construction_stream(0, "model file"), torch.device("cpu"):
            exec(compile(source, file, "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[key]
        hint = "one file has to hold the model; it may import installed packages"
        message = f"cannot be run: {type(error).__name__}: {error}"
        raise make_spec_error("path", path, message, hint) from error
