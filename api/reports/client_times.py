"""The figure of a report that shows when clients were busy in the last rounds, in simulated time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from fedsim.base.costs import ClientTime
from jobs.store.records import RoundRecord

CLIENT_TIMES = "Clients in simulated time, last rounds"

MOST_BARS = 60
"""Number of bars from which the figure leaves out earlier rounds; the page has the same number."""

KINDS = {"counted": "#0a5c96", "waited for": "#b45309", "not counted": "#868f99"}
"""Kinds of bars, with their colours."""


def make_client_times_figure(records: Sequence[RoundRecord]) -> Any | None:
    """Draw one bar for each client of the last rounds, as a plotly figure; None in a run without devices.

    A vertical line ends each round.
    """
    shown = _select_last_rounds(records)
    if not shown:
        return None
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for kind, colour in KINDS.items():
        bars = [
            (time, record.round)
            for record in shown
            for time in (record.clock.timeline if record.clock else ())
            if find_kind(time, record) == kind
        ]
        if bars:
            figure.add_bar(
                orientation="h",
                base=[time.start for time, _ in bars],
                x=[time.end - time.start for time, _ in bars],
                y=[str(time.client) for time, _ in bars],
                customdata=[(number, time.end) for time, number in bars],
                name=kind,
                marker={"color": colour},
                hovertemplate="round %{customdata[0]}: %{base:.4g} s to %{customdata[1]:.4g} s",
            )
    for record in shown:
        if record.clock:
            figure.add_vline(record.clock.total, line={"color": "#868f99", "width": 1, "dash": "dot"})
    clients = {time.client for record in shown if record.clock for time in record.clock.timeline}
    figure.update_layout(
        template="plotly_white",
        height=max(240, 14 * len(clients) + 130),
        barmode="overlay",
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        xaxis={"title": {"text": "simulated time (s)"}},
        yaxis={
            "type": "category",
            "title": {"text": "client"},
            "categoryorder": "array",
            "categoryarray": [str(client) for client in sorted(clients, reverse=True)],
        },
        margin={"l": 60, "r": 20, "t": 40, "b": 50},
    )
    return figure


def find_kind(time: ClientTime, record: RoundRecord) -> str:
    """Return the kind of a client's bar, a key of `KINDS`."""
    if not time.counts:
        return "not counted"
    return "waited for" if record.clock and record.clock.waited_for == time.client else "counted"


def _select_last_rounds(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return the last rounds with at most `MOST_BARS` clients together, but at least one round; in order."""
    found, bars = list[RoundRecord](), 0
    for record in islice(reversed(records), MOST_BARS):
        clients = len(record.clock.timeline) if record.clock else 0
        if not clients or (found and bars + clients > MOST_BARS):
            break
        found.insert(0, record)
        bars += clients
    return found
