"""Pictures of runs for a paper: PNG, PDF and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

from api.reports.class_map import ClassMapDrawing, plot_class_map
from api.reports.figures import COLOURS, DPI, HEIGHT, MOST_POINTS, PASSING_HEIGHT, WIDTH, ReportFigure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SAVING = Lock()

SHORT_NAME = 24
"""Letters of a curve name; two names of this length fit into one line of the legend."""

LEGEND_LINE_INCHES = 0.14
"""Height of a line of the legend, in inches."""


def save_pictures(
    figures: Sequence[ReportFigure], class_map: ClassMapDrawing | None, folder: Path, formats: Sequence[str]
) -> list[Path]:
    """Save one picture in each format for each figure, and for the class map.

    Args:
        figures: figures of the run.
        class_map: class map; None if unknown.
        folder: existing output folder.
        formats: `png`, `pdf` or `svg`.

    Returns:
        The written files.
    """
    canvases = {figure.name: draw_figure(figure) for figure in figures}
    if class_map is not None:
        canvases["partition"] = plot_class_map(class_map)
    files = {folder / f"{name}.{format}": canvas for name, canvas in canvases.items() for format in formats}
    for file, canvas in files.items():
        save_canvas(canvas, file)
    return list(files)


def save_figure(figure: ReportFigure, path: Path) -> Path:
    """Save a figure; the ending of the path, `.png`, `.pdf` or `.svg`, selects the format."""
    save_canvas(draw_figure(figure), path)
    return path


def save_canvas(canvas: Figure, place: Path | BinaryIO, format: str | None = None) -> None:
    """Save a drawn figure into a file, whose ending selects the format, or into a stream, else as PNG."""
    from matplotlib import rc_context

    # Publishers refuse PDF files with fonts of type 3; text in an SVG stays text. All threads share
    # these settings.
    with _SAVING, rc_context({"pdf.fonttype": 42, "svg.fonttype": "none"}):
        canvas.savefig(place, dpi=DPI, format=format)


def draw_figure(figure: ReportFigure) -> Figure:
    """Draw a figure with matplotlib."""
    # Without pyplot, which keeps figures in memory and looks for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    # The legend is above the plot; short names stand two in a line.
    columns = 2 if max(len(curve.name) for curve in figure.curves) <= SHORT_NAME else 1
    lines = ceil(len(figure.curves) / columns) if len(figure.curves) > 1 else 0
    canvas = Canvas(figsize=(WIDTH, HEIGHT + lines * LEGEND_LINE_INCHES), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    for number, curve in enumerate(figure.curves):
        marker = "." if len(curve.x) <= MOST_POINTS else ""
        colour = COLOURS[number % len(COLOURS)]
        name = curve.name.replace("$", r"\$")  # no formula
        axes.plot(curve.x, curve.y, label=name, color=colour, linewidth=1.2, marker=marker, markersize=3)
    for number, (curve, band) in enumerate(zip(figure.curves, figure.bands, strict=False)):
        low, high = zip(*band, strict=True) if band else ((), ())
        colour = COLOURS[number % len(COLOURS)]
        axes.fill_between(curve.x[: len(band)], low, high, color=colour, alpha=0.18, linewidth=0)
    for x, _, lasting in figure.changes:
        # A lasting change, such as a phase, is a line; any other, such as frozen clients, is a tick.
        axes.axvline(
            x,
            ymax=1 if lasting else PASSING_HEIGHT,
            color="#868f99",
            linewidth=0.6,
            linestyle=":" if lasting else "-",
        )
    if figure.x_title == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(figure.x_title, fontsize=8)
    axes.set_ylabel(figure.y_title, fontsize=8, parse_math=False)
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if len(figure.curves) > 1:
        canvas.legend(fontsize=6.5, frameon=False, loc="outside upper left", ncols=columns)
    return canvas
