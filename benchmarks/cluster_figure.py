"""Pictures for a paper: the clients of a federation as points, in the colours of their clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsim.core.census import Ground, Real, Whole
from fedsim.techniques.clustering import distance_matrix, mean_cluster_distances

COLOURS = ("#1a5fb4", "#b3480b", "#1c7c54", "#8a3fa0", "#a51d5b", "#6b6100", "#0b7285", "#5c4b3f")

PANEL = 2.2
"""Inches: the width and the height of one panel."""


class Clustering(NamedTuple):
    """One panel.

    Attributes:
        title: what stands above it.
        shares: the clients' label distributions, float64 `[N, classes]`.
        clusters: each client's cluster, int64 `[N]`, from 0 on.
        ground: what moving a unit costs, see `clustering.emd`.
    """

    title: str
    shares: Real
    clusters: Whole
    ground: Ground = "identity"


def places(distances: Real) -> Real:
    """Points in the plane whose distances come near to these: classical multidimensional scaling.

    The two axes are the leading eigenvectors of `-J D^2 J / 2`, with `J` taking the mean away (Torgerson,
    Psychometrika 1952), each turned so that its largest entry is above 0.

    Args:
        distances: float64 `[N, N]`, symmetric and 0 on the diagonal.

    Returns:
        float64 `[N, 2]`; all 0 for a single client.
    """
    squares = distances**2
    inner = -0.5 * (squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean())
    values, vectors = np.linalg.eigh(inner)
    found = np.zeros((len(distances), 2))
    for axis, number in enumerate(np.argsort(values)[::-1][:2]):
        vector = vectors[:, number]
        sign = np.sign(vector[np.abs(vector).argmax()])
        found[:, axis] = sign * vector * np.sqrt(max(values[number], 0.0))
    return found


def cluster_map(panels: Sequence[Sequence[Clustering]], path: Path) -> Path:
    """Draw clients as points, near to one another where their labels are alike (Fig. 3 of ACE-pFL).

    A point is a client, its colour its cluster. Below a panel stands the mean earth mover's distance between
    the clients of each cluster, in the clusters' order; a cluster of one client has 0.

    Args:
        panels: rows of panels, all as long as the first one; 8 clusters have colours of their own.
        path: the file; its ending says what is written, such as `.svg` or `.png`.

    Returns:
        The file.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Without pyplot, which keeps figures and looks for a display. The salt makes equal pictures equal files.
    with matplotlib.rc_context({"svg.hashsalt": "clusters", "svg.fonttype": "none"}):
        size = (PANEL * len(panels[0]), PANEL * len(panels))
        canvas = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(canvas)
        axes = canvas.subplots(len(panels), len(panels[0]), squeeze=False)
        for row, places_in_row in zip(panels, axes, strict=True):
            for panel, place in zip(row, places_in_row, strict=True):
                _draw(panel, place)
        dated = {"Date": None} if path.suffix == ".svg" else {}
        canvas.savefig(path, dpi=300, metadata=dated)
    return path


def _draw(panel: Clustering, place: Any) -> None:
    points = places(distance_matrix(panel.shares, panel.ground))
    means = mean_cluster_distances(panel.shares, panel.clusters, panel.ground)
    for cluster in range(len(means)):
        mine = points[panel.clusters == cluster]
        place.scatter(mine[:, 0], mine[:, 1], s=18, color=COLOURS[cluster % len(COLOURS)], linewidths=0)
    place.set_title(panel.title, fontsize=8)
    place.set_xlabel("mean EMD " + ", ".join(f"{mean:.2f}" for mean in means), fontsize=6.5)
    place.set(xticks=[], yticks=[])
    place.margins(0.12)
