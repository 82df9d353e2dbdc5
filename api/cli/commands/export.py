"""`fedsim export`: the model of a run in a format that other programs read."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.commands.completion import complete_job
from api.cli.commands.options import UrlOption, make_folder

if TYPE_CHECKING:
    from jobs.export.source import ModelSource


class ExportFormat(StrEnum):
    """The format of an exported model."""

    SAFETENSORS = "safetensors"
    HUGGINGFACE = "huggingface"
    EXPORT = "export"
    ONNX = "onnx"


class WhichModel(StrEnum):
    """The model of a run to export."""

    LAST = "last"
    CHOSEN = "chosen"


def export(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A job, or a folder of `run --out`.", autocompletion=complete_job),
    ],
    to: Annotated[
        ExportFormat,
        typer.Option(
            "--to",
            help="safetensors: weights; export: a program of torch.export; onnx; huggingface: the files of "
            "a repository.",
        ),
    ] = ExportFormat.HUGGINGFACE,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the files.")] = Path(
        "exported"
    ),
    model: Annotated[
        WhichModel,
        typer.Option("--model", help="last: of the result; chosen: the one that validation chose."),
    ] = WhichModel.LAST,
    url: UrlOption = None,
) -> None:
    """Write the global model of a run for other programs, with a model card.

    Personal models of clients are not kept by a run, so they cannot be exported.
    """
    from api.cli.display import print_message
    from jobs.export.export import export_model

    path, file = Path(run).expanduser(), f"{'model' if model is WhichModel.LAST else 'chosen'}.safetensors"
    source = _read_folder(path, file) if path.is_dir() else _read_job(run, file, url, to)
    names = export_model(source, to.value, make_folder(out))
    print_message(f"wrote {', '.join(names)} into {out}")


def _read_folder(folder: Path, file: str) -> ModelSource:
    from api.reports.run_files import read_plain_spec, read_records
    from jobs.export.source import read_model

    return read_model(folder / file, read_plain_spec(folder), list[Mapping[str, Any]](read_records(folder)))


def _read_job(job: str, file: str, url: str | None, to: ExportFormat) -> ModelSource:
    """Fetch the model of a job.

    Raises:
        SettingsError: the model is code of the job's owner, and the format needs to run it; or `job` is the
            path of a folder that is missing.
    """
    from api.cli.commands.connection import connect
    from api.sdk.run_sources import explain_missing_paths
    from fedsim.errors import SettingsError
    from jobs.export.source import read_model

    with explain_missing_paths([job]), tempfile.TemporaryDirectory() as folder, connect(url) as client:
        handle = client.job(job)
        path = handle.artifact(file, Path(folder) / file)
        report = json.loads(handle.artifact("report.json", Path(folder) / "report.json").read_text("utf-8"))
        source = read_model(path, report["spec"], report["rounds"])
    if to is not ExportFormat.SAFETENSORS and any(net["name"] == "python" for net in source.nets):
        hint = "export the weights: --to safetensors; or export a run of your own: fedsim run --out"
        raise SettingsError("the model is Python code of the job's owner, which would run here", hint)
    return source


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Jobs")(export)
