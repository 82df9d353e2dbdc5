"""What a notebook shows: HTML tables of jobs, rounds and comparisons, and pictures."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Collection, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from api.comparison.records import Comparison
from api.comparison.run_scores import find_common_metric, find_latest_metrics
from api.reports.comparison_figure import make_comparison_figure
from api.reports.comparison_tables import (
    PaperFormat,
    find_best_cells,
    make_cost_table,
    make_paper_table,
    render_table,
)
from api.reports.figures import ReportFigure, make_figures
from api.reports.formatting import format_metric_value
from fedsim.errors import SettingsError
from jobs.store.records import Job, RoundRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_PAUSE = 0.3
"""Seconds between two drawings of a live table."""

MOST_ROUNDS = 10
"""A table shows the first and the last rounds, together so many."""


class Picture:
    """A picture, which a notebook displays.

    Args:
        figure: its contents.

    Attributes:
        figure: the `matplotlib.figure.Figure`, to change it.
    """

    def __init__(self, figure: ReportFigure) -> None:
        from api.reports.pictures import draw_figure

        self.figure: Figure = draw_figure(figure)

    def _repr_png_(self) -> bytes:
        from api.reports.pictures import save_canvas

        buffer = io.BytesIO()
        save_canvas(self.figure, buffer)
        return buffer.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write a file; its ending, `.png`, `.pdf` or `.svg`, selects the format."""
        from api.reports.pictures import save_canvas

        save_canvas(self.figure, Path(path))
        return Path(path)


class ComparisonView(Comparison):
    """A comparison that a notebook displays as a table, and that draws its curves."""

    @classmethod
    def from_comparison(cls, found: Comparison) -> Self:
        """Return the view of a comparison."""
        return cls.model_construct(**{name: getattr(found, name) for name in Comparison.model_fields})

    def render(self, format: str = "markdown") -> str:
        """Write the table of a paper.

        Args:
            format: "markdown" or "latex"; or "csv", with all digits and all figures, for
                `pandas.read_csv(io.StringIO(found.render("csv")))`.

        Raises:
            ValueError: there is no such format.
        """
        return render_table(self, PaperFormat(format))

    def plot(self) -> Picture:
        """Draw the mean curve of each group, with a band of one standard deviation.

        Returns:
            A picture that a notebook displays; `picture.save("curves.pdf")` writes a file.

        Raises:
            SettingsError: no round has a score.
        """
        figure = make_comparison_figure(self)
        if figure is None:
            message = f"there is nothing to draw: no round has a finite {self.metric!r}"
            raise SettingsError(message, "wait for an evaluation")
        return Picture(figure)

    def _repr_html_(self) -> str:
        heads, rows = make_paper_table(self)
        texts = [[cell.text for cell in row] for row in rows]
        tables = [render_html_table(heads, texts, find_best_cells(rows))]
        tables.append(render_html_table(*make_cost_table(self)))
        return "".join([*tables, *(f"<p>{escape(note)}</p>" for note in self.notes)])


class LiveTable:
    """A table of a job and its rounds in the output of a notebook's cell, redrawn in place as rounds come."""

    def __init__(self) -> None:
        self._records: list[RoundRecord] = []
        self._handle: Any = None
        self._drawn_at = 0.0

    def add(self, job: Job, record: RoundRecord) -> None:
        """Take the next round; past rounds come fast, and only some of them are drawn."""
        self._records.append(record)
        if time.monotonic() - self._drawn_at >= LEAST_PAUSE:
            done = {"rounds_done": record.round, "last_metrics": {**job.last_metrics, **record.metrics}}
            self.draw(job.model_copy(update=done))

    def draw(self, job: Job) -> None:
        """Draw the job and the rounds so far."""
        from IPython.display import HTML, display

        self._drawn_at = time.monotonic()
        shown = HTML(render_job(job) + render_rounds(self._records))  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown)


def is_in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def plot_rounds(records: Sequence[RoundRecord], name: str | None = None) -> Picture:
    """Draw a picture of a run.

    Args:
        records: of its rounds.
        name: such as "accuracy", "loss", "accuracy-by-traffic" or "seconds"; by default the main metric by
            round.

    Raises:
        SettingsError: there is no such picture; the error has the names.
    """
    figures = {figure.name: figure for figure in make_figures(records)}
    if not figures:
        raise SettingsError("there is nothing to draw: no round has ended", "wait for a round")
    if name is not None and name not in figures:
        raise SettingsError(f"there is no picture {name!r}", f"the pictures are {', '.join(figures)}")
    return Picture(figures[name or next(iter(figures))])


def render_job(job: Job) -> str:
    """Render a job as HTML: state, rounds, and the metrics of the last evaluation."""
    metrics = job.last_metrics
    main = find_common_metric([metrics]) if metrics else ""
    score = [(main, format_metric_value(main, metrics[main]))] if main in metrics else []
    facts = [
        ("job", job.id),
        ("name", job.name),
        ("algorithm", job.algorithm),
        ("state", str(job.state)),
        ("rounds", f"{job.rounds_done} of {job.rounds_total}"),
        *score,
        *([("message", job.message)] if job.message else []),
    ]
    return render_html_table([], [[name, str(value)] for name, value in facts])


def render_rounds(records: Sequence[RoundRecord]) -> str:
    """Render the first and the last rounds as HTML: main metric, loss, traffic, seconds, digest."""
    main = find_common_metric([find_latest_metrics(records)])
    names = [name for name in (main, "train_loss") if any(name in record.metrics for record in records)]
    shown = list(records)
    if len(shown) > MOST_ROUNDS:
        half = MOST_ROUNDS // 2
        shown = [*shown[:half], *shown[-half:]]
    rows = [
        [
            str(record.round),
            *(format_metric_value(name, record.metrics.get(name)) for name in names),
            *(str(record.cohort), f"{record.bytes.down:,}", f"{record.bytes.up:,}"),
            *(f"{record.seconds.total:.2f}", record.digest[:8]),
        ]
        for record in shown
    ]
    heads = ["round", *names, "clients", "bytes down", "bytes up", "seconds", "digest"]
    left = len(records) - len(shown)
    return render_html_table(heads, rows) + (f"<p>and {left} rounds between them</p>" if left else "")


def render_html_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], best: Collection[tuple[int, int]] = ()
) -> str:
    """Render a table as HTML.

    Args:
        heads: of the columns; none for a table without them.
        rows: the texts.
        best: (row, column) of bold cells.
    """
    lines = ["".join(f"<th>{escape(head)}</th>" for head in heads)] if heads else []
    for number, row in enumerate(rows):
        cells = (
            f"<td><b>{escape(text)}</b></td>" if (number, place) in best else f"<td>{escape(text)}</td>"
            for place, text in enumerate(row)
        )
        lines.append("".join(cells))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
