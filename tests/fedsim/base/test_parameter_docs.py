"""What the catalogue says of each parameter comes out of docstrings."""

from typing import get_args

import pytest

from fedsim.algorithms.generators.kdia import KDIA
from fedsim.base.parameter_docs import read_parameter_docs
from jobs.kinds import Kind
from jobs.spec.catalogue import catalogue


def documented(first: int, *, second: float, third: str, fourth: bool) -> None:
    """Does nothing.

    Of no section: this is no parameter.

    Args:
        first: one line.
        second, third: several names, and
            a second line.

            And a second paragraph.

    Returns:
        fourth: not a parameter either.
    """


def test_sections_of_parameters_are_read() -> None:
    assert read_parameter_docs(documented) == {
        "first": "one line",
        "second": "several names, and a second line. And a second paragraph",
        "third": "several names, and a second line. And a second paragraph",
    }


def test_a_class_has_its_bases_words() -> None:
    class Cheaper(KDIA):
        """Another.

        Attributes:
            tau: of its own.
        """

    assert read_parameter_docs(Cheaper) == read_parameter_docs(KDIA) | {"tau": "of its own"}
    assert read_parameter_docs(type("Mute", (), {})) == {}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_parameter_of_the_catalogue_has_a_meaning(kind: Kind) -> None:
    for entry in catalogue(kind):
        for name, schema in entry["parameters"]["properties"].items():
            assert schema.get("description"), f"{entry['name']}: {name}"
