"""`fedsim algorithms`, `models`, `datasets`, `partitions`, `presets`, `schema`: what a spec can say."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.options import DataFormat, Format, Url

if TYPE_CHECKING:
    from api.service import Kind

_STACKED = {"algorithms": "methods", "models": "models with their defaults"}


def algorithms(format: DataFormat = Format.TEXT, url: Url = None) -> None:
    """List the methods, with their hyper-parameters."""
    _show("algorithms", format, url)


def models(format: DataFormat = Format.TEXT, url: Url = None) -> None:
    """List the models, with whether clients can train at once."""
    _show("models", format, url)


def datasets(format: DataFormat = Format.TEXT, url: Url = None) -> None:
    """List the data sets, with where each looks for its files."""
    _show("datasets", format, url)


def partitions(format: DataFormat = Format.TEXT, url: Url = None) -> None:
    """List the ways to deal a data set out to clients."""
    _show("partitions", format, url)


def presets(format: DataFormat = Format.TEXT) -> None:
    """List the specs that come with fedsim."""
    from api.display import data, plain, print_json, table
    from jobs.spec import preset_text
    from jobs.spec import presets as summaries

    found = summaries()
    if format is Format.JSON:
        print_json([{"name": n, "summary": s, "text": preset_text(n)} for n, s in found.items()])
    else:
        data().print(table(("preset", "summary"), ((plain(n), plain(s)) for n, s in found.items())))


class SchemaFormat(StrEnum):
    """How the schema is printed: there is one way, and the option is taken as by every other command."""

    JSON = "json"


def schema(
    format: Annotated[SchemaFormat, typer.Option("--format", help="What it is in any case.")] = (
        SchemaFormat.JSON
    ),
) -> None:
    """Print the JSON schema of a spec."""
    from api.display import print_json
    from jobs.spec import json_schema

    print_json(json_schema())


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (algorithms, models, datasets, partitions, presets, schema):
        app.command(rich_help_panel="What a spec can say")(command)


def _show(kind: Kind, format: Format, url: str | None) -> None:
    from api.display import data, plain, print_json, table

    entries = _entries(kind, url)
    if format is Format.JSON:
        print_json(entries)
        return
    columns = [kind[:-1], "summary", "parameters"]
    rows = [[e["name"], _summary(e), _parameters(e["parameters"])] for e in entries]
    if kind == "models":
        columns.insert(1, "at once")
        for row, entry in zip(rows, entries, strict=True):
            row.insert(1, "yes" if entry["stacks"] else "no")
    data().print(table(columns, ([plain(cell) for cell in row] for row in rows)))
    if kind in _STACKED:
        data().print(plain(_stacking(entries, _STACKED[kind])))


def _summary(entry: dict[str, Any]) -> str:
    # A service of an older version does not say whose they are: all are its own.
    plugin = entry.get("plugin")
    return f"{entry['summary']} [{plugin}]" if plugin else str(entry["summary"])


def _stacking(entries: list[dict[str, Any]], what: str) -> str:
    """With which of them clients can train at once, in a sentence."""
    alone: dict[str, list[str]] = {}
    for entry in entries:
        if not entry["stacks"]:
            alone.setdefault(entry["why_not_stacked"], []).append(entry["name"])
    told = "; ".join(f"{', '.join(names)} ({why})" for why, names in alone.items())
    rest = f"; one by one with {told}" if alone else ""
    able = sum(1 for entry in entries if entry["stacks"])
    return f"Clients can train at once (resources.stack) with {able} of {len(entries)} {what}{rest}."


def _entries(kind: Kind, url: str | None) -> list[dict[str, Any]]:
    if url is not None:
        from api.client import FedSimClient

        with FedSimClient(url) as client:
            return client.catalogue(kind)
    from jobs.catalog import catalogue

    return catalogue(kind)


def _parameters(schema: dict[str, Any]) -> str:
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    return " ".join(
        f"{name}={each['default']}" if "default" in each else name for name, each in properties.items()
    )
