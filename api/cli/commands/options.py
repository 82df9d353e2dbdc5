"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from api.cli.commands.completion import complete_job, complete_spec
from fedsim.errors import SettingsError


class Format(StrEnum):
    """Output format of data."""

    TEXT = "text"
    JSON = "json"


class RunFormat(StrEnum):
    """Output format of a run: a table, one object at the end, or one line for each round."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


class RoundsFormat(StrEnum):
    """Output format of round records."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


class Place(StrEnum):
    """Where the runs of a sweep or a table are made."""

    SERVICE = "service"
    POOL = "pool"
    RAY = "ray"


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
    typer.Argument(
        metavar="JOB",
        help="The id of the job, or the first characters of the id.",
        autocompletion=complete_job,
    ),
]
JobsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JOB...", help="Ids of jobs, or the first characters of the ids.", autocompletion=complete_job
    ),
]
SelectLabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="NAME=VALUE",
        help="In place of JOB: all jobs with this label. Repeatable: with all of them.",
    ),
]
ComparedArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN...",
        help="Names of sweeps, job ids, folders written by `run --out`, or files written by "
        "`run --format json` or `jsonl`.",
        autocompletion=complete_job,
    ),
]
ComparedLabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="NAME=VALUE", help="Also all jobs with this label. Repeatable: with all of them."
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        help="The metric to compare. Default: the main metric of the runs. For losses, RMSE, MAE and "
        "perplexity, smaller is better."
    ),
]
LastOption = Annotated[
    int, typer.Option("--last", min=1, help="Evaluated rounds in the mean of the last rounds.")
]
AgainstOption = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="GROUP",
        help="The baseline of the differences: the name of a group, or one of its runs. Default: the first "
        "group.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of the service. Default: FEDSIM_URL, then the service started on this machine.",
    ),
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for its end; exit 1 unless it succeeds.")]
FormatOption = Annotated[
    Format, typer.Option("--format", help="Output format. json is for programs.", show_default=True)
]
RunFormatOption = Annotated[
    RunFormat,
    typer.Option(
        "--format", help="Output format. json: one object at the end; jsonl: one line for each round."
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write spec, rounds, result and checkpoints into DIR."),
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="TRACKER",
        help="Also write the rounds to tensorboard, mlflow or wandb. Repeatable. Default: FEDSIM_TRACK.",
    ),
]
ChaosOption = Annotated[
    list[str] | None,
    typer.Option(
        "--chaos",
        metavar="FAULT=PROBABILITY",
        help="Inject faults, e.g. kill-actor=0.1 or fail-client=0.05. Repeatable.",
    ),
]


def parse_labels(items: list[str] | None) -> dict[str, str]:
    """Parse labels of the form NAME=VALUE.

    Raises:
        SettingsError: an item has no `=`.
    """
    pairs = [item.partition("=") for item in items or []]
    wrong = [name for name, sign, _ in pairs if not sign]
    if wrong:
        raise SettingsError(f"--label {', '.join(map(repr, wrong))} is not NAME=VALUE", "e.g. owner=ada")
    return {name: value for name, _, value in pairs}


def refuse_options(place: StrEnum, options: Mapping[str, tuple[bool, Collection[StrEnum]]]) -> None:
    """Raise SettingsError if options were given that have no effect at this place.

    Args:
        place: of the runs.
        options: whether each option was given, and the places where it has an effect.
    """
    names = [name for name, (is_given, places) in options.items() if is_given and place not in places]
    if names:
        raise SettingsError(f"{', '.join(names)} with --on {place}", "leave it out: it has no effect there")


def make_folder(path: Path) -> Path:
    """Create the folder of `--out` before the work starts, so that an error comes early.

    Raises:
        SettingsError: the folder cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--out {str(path)!r} cannot be created: {error.strerror}") from error
    return path
