"""The pages of results: one page for each paper, with sections between two markers that a command writes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Paper(NamedTuple):
    """The paper of a page of results.

    Attributes:
        short: a name of one or two words.
        title: of the paper, with where and when it appeared.
    """

    short: str
    title: str


PAPERS = {
    "common": Paper("all methods", "The common benchmark"),
    "fedcl": Paper("FedCL", '"FedCL: Federated Multi-Phase Curriculum Learning ...", IEEE TAI 2023'),
    "curriculum": Paper("curricula", '"When Do Curricula Work in Federated Learning?", ICCV 2023'),
    "ace-pfl": Paper(
        "ACE-pFL", '"ACE-pFL: Accurate, Efficient Personalized Federated Learning ...", IEEE TON 2025'
    ),
    "kdia": Paper("KDIA", '"Tackling Data Heterogeneity in Federated Learning ...", 2025'),
    "layer-schedules": Paper(
        "layer schedules", '"Personalized Federated Learning via Sequential Layer Expansion ...", 2024'
    ),
    "simulated-clock": Paper("simulated clock", "Seconds, bytes and joules on one fleet of phones"),
    "robustness": Paper("attacks and defences", "Attacks and robust rules, claims of nine papers"),
}
"""The papers by the name of their page; pages of other names have no paper."""


def find_paper(page: str) -> Paper:
    """Return the paper of a page; for a page without one, a paper of the page's name."""
    return PAPERS.get(page, Paper(page, page))


def write_section(page: Path, name: str, section: str, *, head: bool = False) -> None:
    """Write a section into a page between its markers.

    Args:
        page: the file; it is made if there is none.
        name: of the section, for its markers.
        section: Markdown.
        head: if the page has no markers yet, write the section before the first other one, not at the end.

    Raises:
        ValueError: if the page has one marker without the other.
    """
    opening, closing = f"<!-- table {name} -->", f"<!-- end of table {name} -->"
    text = page.read_text("utf-8") if page.is_file() else "# Results\n"
    block = f"{opening}\n{section}\n{closing}"
    if opening not in text and closing not in text:
        opened, sign, rest = text.partition("\n## ") if head else (text, "", "")
        parts = (opened.strip(), block, f"{sign}{rest}".strip())
        page.write_text("\n\n".join(part for part in parts if part) + "\n", "utf-8")
        return
    before, has_opening, rest = text.partition(opening)
    _, has_closing, after = rest.partition(closing)
    if not has_opening or not has_closing:
        raise ValueError(f"{page.name} has only one of {opening!r} and {closing!r}; write both or none")
    page.write_text(f"{before}{block}{after}", "utf-8")
