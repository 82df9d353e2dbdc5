"""The commands that list what a spec can name, such as `fedsim algorithms`, and `presets` and `schema`."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from api.cli.commands.options import Format, FormatOption, UrlOption
from jobs.kinds import KINDS, Kind

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Show one entry, with the meaning of each parameter.")
]

PresetArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Print the YAML of this preset, to copy and edit.")
]

PurposeOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="PURPOSE",
        help="Only the algorithms for a purpose, such as personalisation or label-skew.",
    ),
]

_PLACES = {"Folder": "looks", "How to get it": "get"}

_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}


def algorithms(
    name: NameArgument = None,
    purpose: PurposeOption = None,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """List the algorithms: what each is for, its paper, and its traffic and computing relative to FedAvg."""
    from api.cli.algorithm_table import ABOUT_COSTS, make_algorithms_table
    from api.cli.display import make_data_console, make_plain_text, print_json, print_table

    if name is not None:
        _require_no_purpose(purpose)
        _show("algorithms", name, format, url)
        return
    entries = _entries("algorithms", url, purpose)
    if format is Format.JSON:
        print_json(entries)
        return
    console = make_data_console()
    print_table(make_algorithms_table(entries, console.width))
    console.print(make_plain_text(ABOUT_COSTS))


def presets(name: PresetArgument = None, format: FormatOption = Format.TEXT) -> None:
    """List the presets: specs that come with fedsim. With a name, print the YAML of one."""
    from api.cli.display import make_plain_text, make_table, print_json, print_table
    from jobs.spec import preset_text
    from jobs.spec import presets as summaries

    found = summaries()
    if name is not None:
        text = preset_text(name)
        if format is Format.JSON:
            print_json({"name": name, "summary": found[name], "text": text})
        else:
            typer.echo(text, nl=False)
    elif format is Format.JSON:
        print_json([{"name": n, "summary": s, "text": preset_text(n)} for n, s in found.items()])
    else:
        rows = ((make_plain_text(n), make_plain_text(s)) for n, s in found.items())
        print_table(make_table(("preset", "summary"), rows))


class SchemaFormat(StrEnum):
    """Output format of the schema; every command has the option `--format`."""

    JSON = "json"


def schema(
    format: Annotated[SchemaFormat, typer.Option("--format", help="The schema is always JSON.")] = (
        SchemaFormat.JSON
    ),
) -> None:
    """Print the JSON schema of a spec."""
    from api.cli.display import print_json
    from jobs.spec import json_schema

    print_json(json_schema())


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(rich_help_panel="Specs")(algorithms)
    for kind, (_, text) in KINDS.items():
        app.command(kind, help=text, rich_help_panel="Specs")(_make_command(kind))
    app.command(rich_help_panel="Specs")(presets)
    app.command(rich_help_panel="Specs")(schema)


def _make_command(kind: Kind) -> Callable[..., None]:
    def show(name: NameArgument = None, format: FormatOption = Format.TEXT, url: UrlOption = None) -> None:
        _show(kind, name, format, url)

    return show


def _show(kind: Kind, name: str | None, format: Format, url: str | None) -> None:
    from api.cli.display import make_data_console, make_plain_text, make_table, print_json, print_table

    entries = _entries(kind, url)
    if name is not None:
        entry = _find_entry(entries, kind, name)
        if format is Format.JSON:
            print_json(entry)
        else:
            _show_one(entry)
        return
    if format is Format.JSON:
        print_json(entries)
        return
    columns = [KINDS[kind][0], "summary", "parameters"]
    rows = [[e["name"], _summary(e), _parameters(e["parameters"])] for e in entries]
    if kind == "datasets":
        columns.insert(2, "folder")
        for row, entry in zip(rows, entries, strict=True):
            row.insert(2, entry["looks"])
    if kind == "models":
        columns.insert(1, "stackable")
        for row, entry in zip(rows, entries, strict=True):
            row.insert(1, "yes" if entry["stacks"] else "no")
    print_table(make_table(columns, ([make_plain_text(cell) for cell in row] for row in rows)))
    if kind == "models":
        make_data_console().print(make_plain_text(_describe_stacking(entries)))


def _require_no_purpose(purpose: str | None) -> None:
    from fedsim.errors import FieldError, RequestError

    if purpose is not None:
        message = "selects among all algorithms, but NAME shows one"
        raise RequestError([FieldError("for", purpose, message, "leave out NAME or --for")])


def _summary(entry: dict[str, Any]) -> str:
    from api.cli.algorithm_table import mark_plugin

    return mark_plugin(entry, entry["summary"])


def _describe_stacking(entries: list[dict[str, Any]]) -> str:
    """Describe in two sentences which models support stacking."""
    reasons: dict[str, list[str]] = {}
    for entry in entries:
        if not entry["stacks"]:
            reasons.setdefault(entry["why_not_stacked"], []).append(entry["name"])
    rest = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
    able = sum(1 for entry in entries if entry["stacks"])
    works = f"Stacking (resources.stack) works with {able} of {len(entries)} models with their defaults."
    return f"{works} Without stacking: {rest}." if reasons else works


def _entries(kind: Kind, url: str | None, purpose: str | None = None) -> list[dict[str, Any]]:
    """Return the entries of a kind, of algorithms those for a purpose; from a service if `url` names one."""
    if url is not None:
        from api.sdk.client import FedSimClient

        with FedSimClient(url) as client:
            return client.algorithms(purpose) if kind == "algorithms" else client.catalogue(kind)
    from jobs.spec.catalogue import catalogue, filter_by_purpose

    found = catalogue(kind)
    return found if purpose is None else filter_by_purpose(found, purpose)


def _parameters(schema: dict[str, Any]) -> str:
    from fedsim.base.parameters import format_value

    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    return " ".join(
        f"{name}={format_value(each['default'])}" if "default" in each else name
        for name, each in properties.items()
    )


def _find_entry(entries: list[dict[str, Any]], kind: Kind, name: str) -> dict[str, Any]:
    from fedsim.base.parameters import suggest_name
    from fedsim.errors import FieldError, RequestError

    known = {entry["name"]: entry for entry in entries}
    if name in known:
        return known[name]
    raise RequestError(
        [FieldError("name", name, f"is not a known {KINDS[kind][0]}", suggest_name(name, known))]
    )


def _show_one(entry: dict[str, Any]) -> None:
    """Print one entry: summary, source, and the allowed values and meaning of each parameter."""
    from api.cli.algorithm_table import describe_purposes_and_costs
    from api.cli.display import make_data_console, make_plain_text, make_table, print_table
    from fedsim.base.parameters import format_value

    texts = [f"{entry['name']}: {_summary(entry)}", entry.get("documentation", "")]
    texts += [f"{word}: {entry[key]}" for word, key in _PLACES.items() if entry.get(key)]
    texts += describe_purposes_and_costs(entry)
    if entry.get("tasks"):
        texts.append(f"Learning tasks: {', '.join(entry['tasks'])}.")
    if not entry.get("stacks", True):
        texts.append(f"Clients cannot be stacked: {entry['why_not_stacked']}.")
    make_data_console().print(make_plain_text("\n\n".join(filter(None, texts))))
    schema = entry["parameters"]
    if properties := schema.get("properties", {}):
        rows = (
            (
                name,
                _describe_allowed_values(each),
                format_value(each["default"]) if "default" in each else "required",
                each.get("description", ""),
            )
            for name, each in properties.items()
        )
        print_table(
            make_table(
                ("parameter", "allowed values", "default", "meaning"),
                ([make_plain_text(cell) for cell in row] for row in rows),
            )
        )


def _describe_allowed_values(schema: dict[str, Any]) -> str:
    """Describe the values that a JSON schema allows: "number above 0 or null"."""
    if "anyOf" in schema:
        return " or ".join(map(_describe_allowed_values, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    words = [schema.get("type", "anything")]
    words += [f"{word} {schema[key]:g}" for key, word in _BOUNDS.items() if key in schema]
    if "items" in schema:
        words.append(f"of {_describe_allowed_values(schema['items'])}")
    return " ".join(words)
