"""The table of the algorithms, and the paragraphs about one: purposes, paper, costs relative to FedAvg."""

from __future__ import annotations

from typing import Any

from api.cli.display import make_plain_text, make_table

PAYLOAD_WIDTH = 120
"""Width from which the table of the algorithms has what a client gets and sends, in characters."""

SUMMARY_WIDTH = 170
"""Width from which the table of the algorithms has their summaries, in characters."""

ABOUT_PAYLOADS = "Down and up: the payloads that a client gets and sends."
"""The caption of a table with payloads."""

NO_PAYLOADS = f"A wider terminal ({PAYLOAD_WIDTH} columns) shows what a client gets and sends."
"""The caption of a table without payloads."""

ABOUT_COSTS = (
    "Traffic (bytes) and computing (FLOPs of the clients): a run of a small case, relative to FedAvg. "
    "See docs/methods/README.md. `fedsim algorithms NAME` shows the parameters of one."
)
"""The line below the table and its caption."""


def make_algorithms_table(entries: list[dict[str, Any]], width: int) -> Any:
    """Make the table; a narrow one has neither payloads nor summaries. The caption is about the payloads."""
    columns = ["algorithm", "for", "paper", "traffic", "computing"]
    shows_payloads = width >= PAYLOAD_WIDTH
    if shows_payloads:
        columns += ["down", "up"]
    if width >= SUMMARY_WIDTH:
        columns.append("summary")
    rows = (
        {
            "algorithm": entry["name"],
            # A service of an older version sends no purposes, citations and costs.
            "for": ", ".join(entry.get("purposes", ())),
            "paper": mark_plugin(entry, entry.get("citation", "")),
            "summary": entry["summary"],
            **_format_costs(entry.get("costs") or {}),
        }
        for entry in entries
    )
    made = make_table(
        columns,
        ([make_plain_text(row.get(column, "")) for column in columns] for row in rows),
        numbers=("traffic", "computing"),
    )
    made.caption = make_plain_text(ABOUT_PAYLOADS if shows_payloads else NO_PAYLOADS)
    made.caption_justify = "left"
    return made


def _format_costs(costs: dict[str, Any]) -> dict[str, str]:
    """Format the figures, and the names of the payloads in both directions."""
    figures = {key: f"{costs[key]:g}" for key in ("traffic", "computing") if key in costs}
    return figures | {way: ", ".join(costs[way]) for way in ("down", "up") if way in costs}


def mark_plugin(entry: dict[str, Any], text: str) -> str:
    """Return the text with the plug-in of an entry, if any: "text [PACKAGE VERSION]"."""
    # A service of an older version does not name the plug-in.
    plugin = entry.get("plugin")
    return f"{text} [{plugin}]".lstrip() if plugin else text


def describe_purposes_and_costs(entry: dict[str, Any]) -> list[str]:
    """Return a paragraph about the purposes of an algorithm and one about its costs, if it has them."""
    texts = [f"For: {', '.join(entry['purposes'])}."] if entry.get("purposes") else []
    return [*texts, _describe_costs(entry["costs"])] if entry.get("costs") else texts


def _describe_costs(costs: dict[str, Any]) -> str:
    ways = "; ".join(f"{way}: {', '.join(costs[way]) or 'nothing'}" for way in ("down", "up"))
    changes = ", ".join(f"{field}={value}" for field, value in costs["changes"].items())
    case = f"a small case with {changes}" if changes else "a small case"
    return (
        f"Relative to FedAvg in {case}: traffic {costs['traffic']:g}, computing {costs['computing']:g}. "
        f"Payloads {ways}."
    )
