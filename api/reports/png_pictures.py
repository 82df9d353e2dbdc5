"""A run as PNG pictures for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from api.reports.class_map import ClassMapDrawing, save_class_map
from api.reports.figures import MOST_POINTS, PASSING_HEIGHT, ReportFigure
from api.reports.picture_style import COLOURS, DPI, HEIGHT, WIDTH

SHORT_NAME = 24
"""Letters of a name that leaves room for another one beside it."""

LEGEND_LINE_INCHES = 0.14
"""Inches of a line of names."""


def save_pictures(
    figures: Sequence[ReportFigure], holdings: ClassMapDrawing | None, folder: Path
) -> list[Path]:
    """Draw a run, one file for each picture.

    Args:
        figures: what is drawn of it.
        holdings: who holds what; None where that is not known.
        folder: where to; it exists.

    Returns:
        The files.
    """
    files = [_save(figure, folder / f"{figure.name}.png") for figure in figures]
    return files if holdings is None else [*files, save_class_map(holdings, folder / "partition.png")]


def _save(figure: ReportFigure, path: Path) -> Path:
    # Without pyplot: it keeps figures, and would look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    # The names stand above, where they cover no curve, two in a line where they are short.
    columns = 2 if max(len(curve.name) for curve in figure.curves) <= SHORT_NAME else 1
    lines = ceil(len(figure.curves) / columns) if len(figure.curves) > 1 else 0
    canvas = Canvas(figsize=(WIDTH, HEIGHT + lines * LEGEND_LINE_INCHES), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    for number, curve in enumerate(figure.curves):
        marker = "." if len(curve.x) <= MOST_POINTS else ""
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(
            curve.x, curve.y, label=curve.name, color=colour, linewidth=1.2, marker=marker, markersize=3
        )
    for x, _, lasting in figure.changes:
        # What only passes, such as who is frozen, is a tick.
        axes.axvline(
            x,
            ymax=1 if lasting else PASSING_HEIGHT,
            color="#868f99",
            linewidth=0.6,
            linestyle=":" if lasting else "-",
        )
    axes.set_xlabel(figure.x_title, fontsize=8)
    axes.set_ylabel(figure.y_title, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if len(figure.curves) > 1:
        canvas.legend(fontsize=6.5, frameon=False, loc="outside upper left", ncols=columns)
    canvas.savefig(path, dpi=DPI)
    return path
