"""The pages of results: one page for each paper, with a section between two markers for each table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

FOLDER = Path(__file__).parents[2] / "docs" / "results"

PageName: TypeAlias = Literal["common", "fedcl", "curriculum", "ace-pfl", "kdia", "layer-schedules"]
"""The pages: the common benchmark, and one for each paper."""


def page_file(name: PageName) -> Path:
    """The file of a paper's page, such as docs/results/kdia.md."""
    return FOLDER / f"{name}.md"


def write_section(page: Path, name: str, section: str) -> None:
    """Write a section into a page between its markers, or at the end of the page the first time.

    Raises:
        ValueError: if the page has one marker without the other.
    """
    opening, closing = f"<!-- table {name} -->", f"<!-- end of table {name} -->"
    text = page.read_text("utf-8") if page.is_file() else "# Results\n"
    block = f"{opening}\n{section}\n{closing}"
    if opening not in text and closing not in text:
        page.write_text(f"{text.rstrip()}\n\n{block}\n", "utf-8")
        return
    before, has_opening, rest = text.partition(opening)
    _, has_closing, after = rest.partition(closing)
    if not has_opening or not has_closing:
        raise ValueError(f"{page.name} has only one of {opening!r} and {closing!r}; write both or none")
    page.write_text(f"{before}{block}{after}", "utf-8")
