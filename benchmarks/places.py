"""Where this project keeps its results."""

from __future__ import annotations

from pathlib import Path

JOURNALS = Path(__file__).parent / "results"
"""The journals of the runs that were made."""

PAGES = Path(__file__).parents[1] / "docs" / "results"
"""The pages of results."""
