"""The HTML page of a partition: class map, examples and distance of each client. It needs no network."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from api.reports.class_map import list_axis_names
from api.reports.formatting import escape_label, label_client

if TYPE_CHECKING:
    from jobs.run.partition_report import PartitionReport

MOST_CLIENTS = 200
"""Clients in a picture; more cannot be distinguished."""

BAR_COLOURS = {"sizes": "#4477aa", "distances": "#ee6677"}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; margin: 0 0 .25rem; }}
p, ul {{ margin: .25rem 0; color: #444; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{facts}</p>
{notes}
{picture}
</body>
</html>
"""


def render_partition(report: PartitionReport) -> str:
    """Render a partition as HTML of about 5 MB, with the chart library inside."""
    import plotly.io

    picture = plotly.io.to_html(
        _figure(report),
        include_plotlyjs=True,
        full_html=False,
        div_id="partition",
        config={"displaylogo": False, "modeBarButtons": [["toImage", "resetScale2d"]], "responsive": True},
    )
    figures = report.document()["statistics"]
    distance = figures["distance_to_all"]["mean"]
    facts = (
        f"{figures['examples']:,} examples; each client holds {figures['sizes']['min']:,.0f} "
        f"to {figures['sizes']['max']:,.0f}, median {figures['sizes']['median']:,.0f}. Classes per client: "
        f"median {figures['classes_per_client']['median']:g} of {len(report.classes)}. "
        f"Mean earth mover's distance to the class distribution of all clients: {distance:.3f}."
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(report))
    return _PAGE.format(
        title=escape(report.title()),
        facts=escape(facts),
        notes=notes and f"<ul>{notes}</ul>",
        picture=picture,
    )


def _notes(report: PartitionReport) -> tuple[str, ...]:
    total = len(report.sizes)
    if total <= MOST_CLIENTS:
        return report.notes
    return (*report.notes, f"the pictures show the first {MOST_CLIENTS} of {total:,} clients")


def _figure(report: PartitionReport) -> Any:
    from plotly.subplots import make_subplots

    counts = report.counts[:MOST_CLIENTS]
    height = min(900, max(240, 22 * len(report.classes)))
    below = 180
    figure = make_subplots(
        rows=3,
        shared_xaxes=True,
        vertical_spacing=0.06,
        row_heights=[height, below, below],
        subplot_titles=(
            "Examples of each class",
            "Examples of each client",
            "Earth mover's distance between the class distributions of each client and of all clients",
        ),
    )
    figure.add_trace(_map(report, counts.T.tolist()), row=1, col=1)
    clients = list(range(len(counts)))
    bars = {
        "sizes": report.sizes[:MOST_CLIENTS].tolist(),
        "distances": report.distances[:MOST_CLIENTS].tolist(),
    }
    labels = [label_client(client, report.names) for client in clients]
    for row, (name, values) in enumerate(bars.items(), start=2):
        value = "%{y}" if name == "sizes" else "%{y:.3f}"
        figure.add_bar(
            x=clients,
            y=values,
            customdata=labels,
            marker_color=BAR_COLOURS[name],
            hovertemplate=f"%{{customdata}}: {value}<extra></extra>",
            row=row,
            col=1,
        )
    figure.update_xaxes(title_text="client", row=3, col=1)
    if names := list_axis_names(report.names):
        figure.update_xaxes(tickvals=clients, ticktext=[escape_label(name) for name in names])
    # Class names may look like numbers: the axis must treat them as names, with the first at the top.
    figure.update_yaxes(type="category", autorange="reversed", row=1, col=1)
    figure.update_yaxes(range=[0, 1], row=3, col=1)
    figure.update_layout(
        height=height + 2 * below + 160, showlegend=False, template="plotly_white", margin={"t": 40, "r": 20}
    )
    return figure


def _map(report: PartitionReport, counts: list[list[int]]) -> Any:
    from plotly import graph_objects

    labels = [label_client(client, report.names) for client in range(len(counts[0]))]
    return graph_objects.Heatmap(
        z=counts,
        customdata=[labels] * len(counts),
        y=[escape_label(name) for name in report.classes],
        colorscale="Blues",
        zmin=0,
        colorbar={"title": "examples", "y": 1, "yanchor": "top", "len": 0.4},
        hovertemplate="%{customdata}, %{y}: %{z}<extra></extra>",
    )
