"""The class map of a report: examples of each class by client, coloured by cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from api.reports.formatting import escape_label
from api.reports.method_curves import find_clusters
from api.reports.picture_style import COLOURS, DPI, WIDTH
from jobs.store.records import RoundRecord

TITLE = "Examples of each class by client"


class ClientCluster(NamedTuple):
    """Clients of one cluster, drawn as neighbours.

    Attributes:
        name: number of the cluster; None if the algorithm reports no clusters.
        clients: client numbers.
        colour: colour as `#rrggbb`.
    """

    name: int | None
    clients: list[int]
    colour: str


class ClassMapDrawing(NamedTuple):
    """A class map, ready to be drawn.

    Attributes:
        classes: class names.
        counts: examples by client and class; only the first clients.
        clients: number of all clients.
        clusters: clusters that together have each client of `counts` once.
    """

    classes: list[str]
    counts: list[list[int]]
    clients: int
    clusters: list[ClientCluster]

    @property
    def has_clusters(self) -> bool:
        """Whether the algorithm reported clusters."""
        return self.clusters[0].name is not None

    @property
    def x_title(self) -> str:
        """Title of the horizontal axis."""
        shown = (
            "" if len(self.counts) == self.clients else f", the first {len(self.counts)} of {self.clients:,}"
        )
        return ("clients, by cluster" if self.has_clusters else "client") + shown


def draw_class_map(found: Mapping[str, Any], records: Sequence[RoundRecord]) -> ClassMapDrawing | None:
    """Make the drawing of a class map (as `GET /jobs/{id}/class-map` returns it) with the latest clusters."""
    counts = found["counts"]
    if not counts:
        return None
    labels = find_clusters(records, len(counts))
    if labels is None:
        clusters = [ClientCluster(None, list(range(len(counts))), COLOURS[0])]
    else:
        order = sorted(range(len(counts)), key=lambda client: (labels[client], client))
        groups = [(name, list(who)) for name, who in groupby(order, key=lambda client: labels[client])]
        clusters = [
            ClientCluster(name, who, COLOURS[i % len(COLOURS)]) for i, (name, who) in enumerate(groups)
        ]
    return ClassMapDrawing(list(found["classes"]), counts, found["clients"], clusters)


def make_class_map_figure(drawn: ClassMapDrawing) -> Any:
    """Draw the map for an HTML page, as a plotly figure."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    names = [escape_label(name) for name in drawn.classes]
    first = 0
    for name, clients, colour in drawn.clusters:
        figure.add_heatmap(
            x=list(range(first, first + len(clients))),
            y=names,
            z=_cells(drawn, clients),
            customdata=[clients] * len(drawn.classes),
            colorscale=[[0, "#ffffff"], [1, colour]],
            zmin=0,
            zmax=_find_largest_count(drawn),
            xgap=1 if len(drawn.counts) <= 60 else 0,
            ygap=1,
            showscale=False,
            name=f"cluster {name}",
            showlegend=drawn.has_clusters,
            hovertemplate="client %{customdata}, class %{y}: %{z} examples<extra></extra>",
        )
        first += len(clients)
    figure.update_layout(
        template="plotly_white",
        height=max(240, 22 * len(drawn.classes) + 110),
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        xaxis={"title": {"text": drawn.x_title}, "showgrid": False, "showticklabels": not drawn.has_clusters},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
        margin={"l": 60, "r": 20, "t": 30, "b": 50},
    )
    return figure


def save_class_map(drawn: ClassMapDrawing, path: Path) -> Path:
    """Draw the map for a paper, as a PNG picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(WIDTH, 1 + 0.12 * min(len(drawn.classes), 40)), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    first, rows = 0, len(drawn.classes)
    for _, clients, colour in drawn.clusters:
        extent = (first - 0.5, first + len(clients) - 0.5, rows - 0.5, -0.5)
        shades = LinearSegmentedColormap.from_list("cluster", ["#ffffff", colour])
        axes.imshow(
            _cells(drawn, clients),
            extent=extent,
            cmap=shades,
            vmin=0,
            vmax=_find_largest_count(drawn),
            aspect="auto",
        )
        first += len(clients)
    axes.set_xlim(-0.5, first - 0.5)
    axes.set_xlabel(drawn.x_title, fontsize=8)
    if rows <= 40:
        axes.set_yticks(range(rows), drawn.classes, parse_math=False)
    if drawn.has_clusters:
        axes.set_xticks([])
    axes.tick_params(labelsize=7 if rows <= 12 else 5)
    canvas.savefig(path, dpi=DPI)
    return path


def _cells(drawn: ClassMapDrawing, clients: Sequence[int]) -> list[list[int]]:
    return [[drawn.counts[client][index] for client in clients] for index in range(len(drawn.classes))]


def _find_largest_count(drawn: ClassMapDrawing) -> int:
    return max(1, max(map(max, drawn.counts)))
