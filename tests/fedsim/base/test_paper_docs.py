"""The paper of every algorithm is read from the docstring of its module."""

from __future__ import annotations

import inspect

import pytest

from fedsim.algorithms import ALGORITHMS
from fedsim.base.paper_docs import Paper, read_paper


@pytest.mark.parametrize("name", sorted(ALGORITHMS.own))
def test_every_algorithm_has_a_paper(name: str) -> None:
    module = inspect.getmodule(ALGORITHMS[name])
    assert module is not None
    paper = read_paper(module.__doc__)
    assert paper is not None, (
        f"the second paragraph of {module.__name__}: Author, Author, VENUE YEAR, arXiv:..."
    )
    assert all(author and author[0].isupper() and "." not in author for author in paper.authors)
    assert paper.source or name == "fedad"  # in its open proceedings only


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedprox", "Li et al., MLSys 2020"),
        ("fedrod", "Chen and Chao, ICLR 2022"),
        ("kdia", "Ma, 2025"),
        ("fedavgm", "Hsu et al., 2019"),
        ("ace_pfl", "He et al., IEEE Transactions on Networking 2025"),
    ],
)
def test_a_citation(name: str, expected: str) -> None:
    paper = read_paper(getattr(inspect.getmodule(ALGORITHMS[name]), "__doc__", None))
    assert paper is not None
    assert paper.cite() == expected


def test_every_part_of_a_citation() -> None:
    text = """A Title: in
    Two Lines.

    Agüera y Arcas, Oh, Journal of Learning 2025, doi:10.1109/TON.2025.35; more words. Others, ICML 2021.

    Idea: none.
    """
    authors = ("Agüera y Arcas", "Oh")
    expected = Paper("A Title: in Two Lines", authors, "Journal of Learning", 2025, "doi:10.1109/TON.2025.35")
    assert read_paper(text) == expected


@pytest.mark.parametrize(
    "text", [None, "", "A title.", "A title.\n\nIt says no year.", "Title.\n\nIdea: of 2020."]
)
def test_no_citation(text: str | None) -> None:
    assert read_paper(text) is None
