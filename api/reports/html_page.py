"""The parts of a report in HTML: the frame of the page, tables, and charts that need no network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from math import ceil
from typing import Any

from api.reports.figures import COLOURS, MOST_POINTS, PASSING_HEIGHT, ReportCurve, ReportFigure
from api.reports.formatting import escape_label

LEGEND_COLUMNS = 3

NO_MODE_BAR = {"displayModeBar": False}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1a1f26; max-width: 1000px;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .3rem; }}
p {{ margin: .25rem 0; color: #545d68; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .15rem 1.2rem .15rem 0; text-align: left; font-weight: 400;
  border-bottom: 1px solid #e6e9ed; }}
th {{ color: #545d68; }}
td {{ font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }}
.wide :is(th, td) {{ white-space: nowrap; }}
pre {{ background: #f0f2f5; padding: .8rem 1rem; overflow: auto; border-radius: .4rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{facts}</p>
{body}
</body>
</html>
"""


def render_page(title: str, facts: Iterable[str], body: Iterable[str]) -> str:
    """Render a whole page: title, a line of facts, and the parts of its body; empty texts are left out."""
    return PAGE.format(
        title=escape(title), facts=escape(" · ".join(filter(None, facts))), body="\n".join(filter(None, body))
    )


def render_table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], best: Collection[tuple[int, int]] = ()
) -> str:
    """Render a table with a title; the first cell of a row is its head.

    Args:
        title: above the table.
        heads: one for each column.
        rows: texts.
        best: row and column of each cell in bold, from 0.
    """
    lines = []
    for number, (name, *cells) in enumerate(rows):
        texts = [
            f"<b>{escape(text)}</b>" if (number, place) in best else escape(text)
            for place, text in enumerate(cells, 1)
        ]
        lines.append(
            f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{text}</td>" for text in texts)}</tr>'
        )
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "\n".join(lines)
    name = escape(title)
    return (
        f'<h2>{name}</h2>\n<div class="wide" tabindex="0" role="region" aria-label="{name}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def render_pairs(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Render pairs of texts as a table with a title; return "" without pairs."""
    lines = "".join(f'<tr><th scope="row">{escape(a)}</th><td>{escape(b)}</td></tr>\n' for a, b in pairs)
    return f"<h2>{escape(title)}</h2>\n<table><tbody>{lines}</tbody></table>" if lines else ""


def render_figure(figure: ReportFigure, *, first: bool) -> str:
    """Render a figure as a chart; the first chart of a page brings the chart library."""
    from plotly import graph_objects

    drawn = graph_objects.Figure()
    for number, curve in enumerate(figure.curves):
        colour = COLOURS[number % len(COLOURS)]
        drawn.add_scatter(
            x=curve.x,
            y=curve.y,
            name=escape_label(curve.name),
            mode=_mode(curve),
            line={"color": colour, "width": 2},
        )
    for number, (curve, band) in enumerate(zip(figure.curves, figure.bands, strict=False)):
        if not band:
            continue
        colour = COLOURS[number % len(COLOURS)]
        low, high = [edge for edge, _ in band], [edge for _, edge in band]
        drawn.add_scatter(
            x=[*curve.x, *reversed(curve.x)],
            y=[*high, *reversed(low)],
            **{"fill": "toself", "fillcolor": colour, "opacity": 0.18, "line": {"width": 0}, "mode": "lines"},
            **{"hoverinfo": "skip", "showlegend": False},
        )
    drawn.update_layout(
        template="plotly_white",
        height=420,
        showlegend=len(figure.curves) > 1,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        xaxis={"title": {"text": escape_label(figure.x_title)}, "rangemode": "tozero"},
        yaxis={"title": {"text": escape_label(figure.y_title)}},
        margin={"l": 60, "r": 20, "t": 30 + 20 * ceil(len(figure.curves) / LEGEND_COLUMNS), "b": 50},
        hovermode="x unified",
    )
    for x, _, lasting in figure.changes:
        # A lasting change, such as a phase, is a line; any other, such as frozen clients, is a tick.
        place = {"x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1 if lasting else PASSING_HEIGHT}
        line = {"color": "#868f99", "width": 1, "dash": "dot" if lasting else "solid"}
        drawn.add_shape(type="line", line=line, **place)
    for number, (x, _, lasting) in enumerate(change for change in figure.changes if change[2]):
        words = {
            "text": escape_label(lasting[:60]),
            "showarrow": False,
            "xanchor": "left",
            "font": {"size": 11},
        }
        drawn.add_annotation(x=x, yref="paper", y=0.02 + 0.07 * (number % 3), xshift=3, **words)
    return render_chart(figure.title, figure.name, drawn, first=first)


def _mode(curve: ReportCurve) -> str:
    # A metric that was measured once, after the last round, is one point.
    return "lines+markers" if len(curve.x) <= MOST_POINTS else "lines"


def render_chart(
    title: str, name: str, drawn: Any, *, first: bool, mode_bar: Mapping[str, Any] = NO_MODE_BAR
) -> str:
    """Render a chart of plotly with its title; the first chart of a page brings the chart library."""
    from plotly import io

    chart = io.to_html(
        drawn,
        include_plotlyjs=first,
        full_html=False,
        div_id=f"chart-{name}",
        config={**mode_bar, "responsive": True},
    )
    return f"<h2>{escape(title)}</h2>\n{chart}"
