"""Run the examples in the docstrings of a module."""

from __future__ import annotations

import doctest
import importlib


def run_examples(module: str) -> None:
    """Run every `>>>` example of a module, and compare its output with the docstring's.

    Args:
        module: a dotted name; it must have an example.
    """
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(importlib.import_module(module), optionflags=options)
    assert result.attempted, f"{module} has no example"
    assert not result.failed, f"examples of {module} failed: their report is on stdout"
