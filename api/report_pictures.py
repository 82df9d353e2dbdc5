"""A run as PNG pictures for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from api.report_figures import Figure
from api.report_page import COLOURS

DPI = 300
WIDTH, HEIGHT = 3.5, 2.4
"""Inches: one column of a paper in two columns."""


def save_pictures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Draw a run, one file for each picture.

    Args:
        figures: what is drawn of it.
        folder: where to; it exists.

    Returns:
        The files.
    """
    return [_save(figure, folder / f"{figure.name}.png") for figure in figures]


def _save(figure: Figure, path: Path) -> Path:
    # Without pyplot: it keeps figures, and would look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH, HEIGHT), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    for number, curve in enumerate(figure.curves):
        axes.plot(curve.x, curve.y, label=curve.name, color=COLOURS[number % len(COLOURS)], linewidth=1.2)
    axes.set_xlabel(figure.x_title, fontsize=8)
    axes.set_ylabel(figure.y_title, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if len(figure.curves) > 1:
        axes.legend(fontsize=6.5, frameon=False)
    canvas.savefig(path, dpi=DPI)
    return path
