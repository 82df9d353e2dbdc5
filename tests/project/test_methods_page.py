"""docs/methods.md has every method, with its hyper-parameters and their defaults."""

from pathlib import Path

import pytest

from fedsim.algorithms import ALGORITHMS
from fedsim.base.parameters import format_value, list_parameters

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text("utf-8")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_has_its_row(name: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1
    for parameter in list_parameters(ALGORITHMS[name]):
        assert f"`{parameter.name}` {format_value(parameter.default)}".removesuffix(".0") in rows[0]
