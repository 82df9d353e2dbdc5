"""The class map of a report: examples of each class by client, coloured by cluster or by attackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from api.reports.figures import COLOURS, WIDTH
from api.reports.formatting import escape_label, label_client
from api.reports.method_curves import find_clusters
from jobs.store.records import RoundRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Examples of each class by client"

MOST_NAMES = 30
"""Names of clients on an axis; more of them overlap."""


class ClientGroup(NamedTuple):
    """Clients of one cluster, the attackers, or the other clients, drawn as neighbours.

    Attributes:
        name: such as `cluster 2` or `attackers`; "" if all clients are one group.
        clients: client numbers.
        colour: colour as `#rrggbb`.
    """

    name: str
    clients: list[int]
    colour: str


class ClassMapDrawing(NamedTuple):
    """A class map, ready to be drawn.

    Attributes:
        classes: class names.
        counts: examples by client and class; only the first clients.
        clients: number of all clients.
        groups: they have together each client of `counts` once.
        order: how the clients are ordered, such as `by cluster`; "" if all are one group.
        names: of the clients of `counts`; [] without names.
    """

    classes: list[str]
    counts: list[list[int]]
    clients: int
    groups: list[ClientGroup]
    order: str
    names: list[str]

    @property
    def x_title(self) -> str:
        """Title of the horizontal axis."""
        shown = (
            "" if len(self.counts) == self.clients else f", the first {len(self.counts)} of {self.clients:,}"
        )
        return (f"clients, {self.order}" if self.order else "client") + shown


def list_axis_names(names: Sequence[str]) -> list[str]:
    """Return the names that an axis of clients shows: all of them if they are few, and else none."""
    return list(names) if len(names) <= MOST_NAMES else []


def draw_class_map(found: Mapping[str, Any], records: Sequence[RoundRecord]) -> ClassMapDrawing | None:
    """Make the drawing of a class map (as `GET /jobs/{id}/class-map` returns it).

    Clients are grouped by the latest clusters; without clusters, into attackers and others.
    """
    counts = found["counts"]
    if not counts:
        return None
    attackers, order = set(found.get("attackers", ())), ""
    titles: Mapping[int, str] = {0: ""}
    labels = find_clusters(records, len(counts))
    if labels is not None:
        titles, order = {label: f"cluster {label}" for label in labels}, "by cluster"
    elif attackers:
        labels = [int(client in attackers) for client in range(len(counts))]
        titles, order = {0: "other clients", 1: "attackers"}, "attackers last"
    label_of = labels or [0] * len(counts)
    clients = sorted(range(len(counts)), key=lambda client: (label_of[client], client))
    groups = [
        ClientGroup(titles[label], list(who), COLOURS[place % len(COLOURS)])
        for place, (label, who) in enumerate(groupby(clients, key=lambda client: label_of[client]))
    ]
    names = list(found.get("names", ()))
    return ClassMapDrawing(list(found["classes"]), counts, found["clients"], groups, order, names)


def make_class_map_figure(drawn: ClassMapDrawing) -> Any:
    """Draw the map for an HTML page, as a plotly figure."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    classes, names = [escape_label(name) for name in drawn.classes], list_axis_names(drawn.names)
    first = 0
    for name, clients, colour in drawn.groups:
        figure.add_heatmap(
            x=list(range(first, first + len(clients))),
            y=classes,
            z=_cells(drawn, clients),
            customdata=[[label_client(client, drawn.names) for client in clients]] * len(drawn.classes),
            colorscale=[[0, "#ffffff"], [1, colour]],
            zmin=0,
            zmax=_find_largest_count(drawn),
            xgap=1 if len(drawn.counts) <= 60 else 0,
            ygap=1,
            showscale=False,
            name=name,
            showlegend=bool(drawn.order),
            hovertemplate="%{customdata}, class %{y}: %{z} examples<extra></extra>",
        )
        first += len(clients)
    figure.update_layout(
        template="plotly_white",
        height=max(240, 22 * len(drawn.classes) + 110),
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        xaxis={"title": {"text": drawn.x_title}, "showgrid": False, "showticklabels": not drawn.order},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
        margin={"l": 60, "r": 20, "t": 30, "b": 50},
    )
    if names and not drawn.order:
        figure.update_xaxes(tickvals=list(range(len(names))), ticktext=[escape_label(name) for name in names])
    return figure


def plot_class_map(drawn: ClassMapDrawing) -> Figure:
    """Draw the map for a paper with matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH, 1 + 0.12 * min(len(drawn.classes), 40)), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    first, rows = 0, len(drawn.classes)
    for _, clients, colour in drawn.groups:
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
    if drawn.order:
        axes.set_xticks([])
    axes.tick_params(labelsize=7 if rows <= 12 else 5)
    return canvas


def _cells(drawn: ClassMapDrawing, clients: Sequence[int]) -> list[list[int]]:
    return [[drawn.counts[client][index] for client in clients] for index in range(len(drawn.classes))]


def _find_largest_count(drawn: ClassMapDrawing) -> int:
    return max(1, max(map(max, drawn.counts)))
