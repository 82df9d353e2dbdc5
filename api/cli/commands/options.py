"""Options and arguments that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from api.cli.commands.completion import complete_job, complete_spec
from fedsim.errors import SettingsError


class Format(StrEnum):
    """How data is printed."""

    TEXT = "text"
    JSON = "json"


class RunFormat(StrEnum):
    """How a run is printed: rounds as a table, all as one object at its end, or a line for each round."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


class RoundsFormat(StrEnum):
    """How round records are printed."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


class TableFormat(StrEnum):
    """How a table is printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="A YAML or JSON file, '-' for standard input, or a preset.",
        autocompletion=complete_spec,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Set a field, e.g. local.lr=0.05. Repeatable."),
]
JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's id, or the beginning of it.", autocompletion=complete_job),
]
JobsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...", help="Ids of jobs, or the beginnings of them.", autocompletion=complete_job
    ),
]
RunsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...",
        help="Jobs, folders of `run --out`, or files of `run --format json` or `jsonl`.",
    ),
]
TableFormatOption = Annotated[
    TableFormat, typer.Option("--format", help="json or csv: data for programs on standard output.")
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The service; by default FEDSIM_URL, else the one here."),
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="WaitOption for its end; exit 1 unless it succeeds.")
]
FormatOption = Annotated[
    Format, typer.Option("--format", help="json: data for programs on standard output.", show_default=True)
]
RunFormatOption = Annotated[
    RunFormat, typer.Option("--format", help="json: one object at the end; jsonl: a line for each round.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write spec, rounds, result and checkpoints into DIR."),
]
ChaosOption = Annotated[
    list[str] | None,
    typer.Option(
        "--chaos",
        metavar="FAULT=PROBABILITY",
        help="Break things on purpose: kill-actor=0.1, fail-client=0.05. Repeatable.",
    ),
]


def parse_labels(items: list[str] | None) -> dict[str, str]:
    """Read labels written as NAME=VALUE.

    Raises:
        SettingsError: an item has no `=`.
    """
    pairs = [item.partition("=") for item in items or []]
    wrong = [name for name, sign, _ in pairs if not sign]
    if wrong:
        raise SettingsError(f"--label {', '.join(map(repr, wrong))} is not NAME=VALUE", "e.g. owner=ada")
    return {name: value for name, _, value in pairs}


def make_folder(path: Path) -> Path:
    """Make the folder that `--out` names: before the work, so that hours of it do not end in vain.

    Raises:
        SettingsError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--out {str(path)!r} cannot be made: {error.strerror}") from error
    return path
