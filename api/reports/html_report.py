"""The report of a run: one HTML file with figures, curves and spec that needs no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil
from typing import Any, NamedTuple

import yaml

from api.reports.class_map import TITLE, ClassMapDrawing, make_class_map_figure
from api.reports.figures import (
    MOST_POINTS,
    PASSING_HEIGHT,
    ReportCurve,
    ReportFigure,
    make_clients_figure,
    make_figures,
)
from api.reports.formatting import format_bytes, format_metric, format_metric_value
from api.reports.method_curves import find_method_changes
from api.reports.picture_style import COLOURS
from api.reports.round_failures import list_round_failures
from api.reports.run_scores import find_best_score, list_scores
from fedsim.learning_tasks.metrics import find_main_metric
from jobs.store.records import RoundRecord

LEGEND_COLUMNS = 3

_PAGE = """<!doctype html>
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
pre {{ background: #f0f2f5; padding: .8rem 1rem; overflow: auto; border-radius: .4rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{facts}</p>
{figures}
{pictures}
<h2>Spec</h2>
<pre tabindex="0">{spec}</pre>
</body>
</html>
"""


class RunReport(NamedTuple):
    """The content of a report.

    Attributes:
        run: id of the job, or name of the folder.
        name: name in the spec.
        state: state of the job; empty for a run in files.
        message: message of the job for people.
        spec: the spec as plain data with all defaults.
        records: round records, in order.
        personal: content of `personal.csv`; empty without a personal evaluation.
        class_map: examples of each class by client; None if unknown.
        class_map_error: why the class map is unknown; empty if it is known or has no clients.
    """

    run: str
    name: str
    state: str
    message: str
    spec: Mapping[str, Any]
    records: Sequence[RoundRecord]
    personal: str = ""
    class_map: ClassMapDrawing | None = None
    class_map_error: str = ""

    def list_figures(self) -> list[ReportFigure]:
        """List all figures of the run."""
        return [*make_figures(self.records), *make_clients_figure(self.personal)]


def render_report(reported: RunReport) -> str:
    """Render the report of a run as HTML of about 5 MB, with the chart library inside."""
    drawn = [_picture(figure, first=not number) for number, figure in enumerate(reported.list_figures())]
    if reported.class_map is not None:
        drawn.append(_chart(TITLE, "partition", make_class_map_figure(reported.class_map), first=not drawn))
    elif reported.class_map_error:
        drawn.append(f"<h2>{TITLE}</h2>\n<p>No class map: {escape(reported.class_map_error)}</p>")
    words = [reported.run, reported.state.lower(), reported.message]
    changes, failures = _list_method_changes(reported.records), list_round_failures(reported.records)
    tables = [
        _table("Changes reported by the algorithm", changes),
        _table("Failures that the run survived", failures),
    ]
    return _PAGE.format(
        title=escape(reported.name),
        facts=escape(" · ".join(word for word in words if word)),
        figures=_table("Figures", list_facts(reported)),
        pictures="\n".join([*drawn, *filter(None, tables)]) or "<p>No round has ended.</p>",
        spec=escape(yaml.safe_dump(dict(reported.spec), sort_keys=False, allow_unicode=True)),
    )


def list_facts(reported: RunReport) -> Iterable[tuple[str, str]]:
    """List results and cost of a run as pairs (name, value)."""
    records = reported.records
    yield "rounds", str(len(records))
    last: dict[str, Any] = {}
    for record in records:
        last |= {name: value for name, value in record.metrics.items() if value is not None}
    if records and (end := records[-1].end):
        yield "end", end.message
        last |= {name: value for name, value in end.metrics.items() if value is not None}
    for name, value in last.items():
        yield (
            format_metric(name),
            f"{value:.4f}" if isinstance(value, float) else str(value),
        )
    if metric := find_main_metric(last):
        best = find_best_score(list_scores(records, metric), metric)
        if best is not None:
            text = format_metric_value(metric, best.value)
            yield f"best {format_metric(metric)}", f"{text} at round {best.round}"
    yield "workers replaced", str(sum(record.engine.restarts for record in records))
    yield "clients failed", str(sum(len(record.failed) for record in records))
    yield "traffic down", format_bytes(sum(record.bytes.down for record in records))
    yield "traffic up", format_bytes(sum(record.bytes.up for record in records))
    yield "computing time (s)", f"{sum(record.seconds.total for record in records):.1f}"
    if costs := [record.cost for record in records if record.cost is not None]:
        yield "parameter updates", f"{sum(cost.updates for cost in costs):.4g}"
        yield "FLOPs", f"{sum(cost.flops for cost in costs):.4g}"
    if records:
        yield "digest after the last round", records[-1].digest


def _list_method_changes(records: Sequence[RoundRecord]) -> Iterable[tuple[str, str]]:
    """List the changes that the algorithm reports as pairs (round, text)."""
    return ((f"round {records[place].round}", text) for place, text, _ in find_method_changes(records))


def _table(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Render pairs of texts as a table with a title; return "" without pairs."""
    lines = "".join(f'<tr><th scope="row">{escape(a)}</th><td>{escape(b)}</td></tr>\n' for a, b in pairs)
    return f"<h2>{escape(title)}</h2>\n<table><tbody>{lines}</tbody></table>" if lines else ""


def _picture(figure: ReportFigure, *, first: bool) -> str:
    from plotly import graph_objects

    drawn = graph_objects.Figure()
    for number, curve in enumerate(figure.curves):
        colour = COLOURS[number % len(COLOURS)]
        drawn.add_scatter(
            x=curve.x, y=curve.y, name=curve.name, mode=_mode(curve), line={"color": colour, "width": 2}
        )
    drawn.update_layout(
        template="plotly_white",
        height=420,
        showlegend=len(figure.curves) > 1,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        xaxis={"title": {"text": figure.x_title}, "rangemode": "tozero"},
        yaxis={"title": {"text": figure.y_title}},
        margin={"l": 60, "r": 20, "t": 30 + 20 * ceil(len(figure.curves) / LEGEND_COLUMNS), "b": 50},
        hovermode="x unified",
    )
    for x, _, lasting in figure.changes:
        # A lasting change, such as a phase, is a line; any other, such as frozen clients, is a tick.
        place = {"x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1 if lasting else PASSING_HEIGHT}
        line = {"color": "#868f99", "width": 1, "dash": "dot" if lasting else "solid"}
        drawn.add_shape(type="line", line=line, **place)
    for number, (x, _, lasting) in enumerate(change for change in figure.changes if change[2]):
        words = {"text": escape(lasting[:60]), "showarrow": False, "xanchor": "left", "font": {"size": 11}}
        drawn.add_annotation(x=x, yref="paper", y=0.02 + 0.07 * (number % 3), xshift=3, **words)
    return _chart(figure.title, figure.name, drawn, first=first)


def _mode(curve: ReportCurve) -> str:
    # A metric that was measured once, after the last round, is one point.
    return "lines+markers" if len(curve.x) <= MOST_POINTS else "lines"


def _chart(title: str, name: str, drawn: Any, *, first: bool) -> str:
    from plotly import io

    chart = io.to_html(
        drawn,
        include_plotlyjs=first,
        full_html=False,
        div_id=f"chart-{name}",
        config={"displayModeBar": False, "responsive": True},
    )
    return f"<h2>{escape(title)}</h2>\n{chart}"
