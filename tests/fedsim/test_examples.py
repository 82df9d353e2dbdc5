"""The examples in the docstrings of fedsim run, and print what the docstrings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docstring_examples import run_examples

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in (ROOT / "fedsim").rglob("*.py")
    if ">>> " in file.read_text("utf-8")
)


def test_the_public_surface_has_examples() -> None:
    assert {"fedsim.core.algorithm", "fedsim.models.net", "fedsim.data.partitions"} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_run(module: str) -> None:
    run_examples(module)
