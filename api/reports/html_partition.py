"""The HTML page of a partition: class map, examples and distance of each client. It needs no network."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from api.reports.class_map import list_axis_names
from api.reports.formatting import escape_label, label_client
from api.reports.html_page import render_chart, render_page
from jobs.run.class_map import MAX_CLIENTS_SHOWN

if TYPE_CHECKING:
    from jobs.run.partition_report import PartitionReport

TITLE = "Examples and classes of each client"

BAR_COLOURS = {"sizes": "#4477aa", "distances": "#ee6677"}

MODE_BAR = {"displaylogo": False, "modeBarButtons": [["toImage", "resetScale2d"]]}


def render_partition(report: PartitionReport) -> str:
    """Render a partition as HTML of about 5 MB, with the chart library inside."""
    figures = report.document()["statistics"]
    distance = figures["distance_to_all"]["mean"]
    facts = (
        f"{figures['examples']:,} examples; each client holds {figures['sizes']['min']:,.0f} "
        f"to {figures['sizes']['max']:,.0f}, median {figures['sizes']['median']:,.0f}. Classes per client: "
        f"median {figures['classes_per_client']['median']:g} of {len(report.classes)}. "
        f"Mean earth mover's distance to the class distribution of all clients: {distance:.3f}."
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(report))
    chart = render_chart(TITLE, "partition", _figure(report), first=True, mode_bar=MODE_BAR)
    return render_page(report.title(), [facts], [notes and f"<ul>{notes}</ul>", chart])


def _notes(report: PartitionReport) -> tuple[str, ...]:
    total = len(report.sizes)
    if total <= MAX_CLIENTS_SHOWN:
        return report.notes
    return (*report.notes, f"the pictures show the first {MAX_CLIENTS_SHOWN} of {total:,} clients")


def _figure(report: PartitionReport) -> Any:
    from plotly.subplots import make_subplots

    counts = report.counts[:MAX_CLIENTS_SHOWN]
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
        "sizes": report.sizes[:MAX_CLIENTS_SHOWN].tolist(),
        "distances": report.distances[:MAX_CLIENTS_SHOWN].tolist(),
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
