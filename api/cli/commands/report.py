"""`fedsim report`: an HTML report of a run or of a sweep, and pictures for a paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from api.cli.commands.completion import complete_job
from api.cli.commands.options import (
    AgainstOption,
    ComparedLabelOption,
    Format,
    FormatOption,
    LastOption,
    MetricOption,
    UrlOption,
    parse_labels,
)

if TYPE_CHECKING:
    from api.reports.class_map import ClassMapDrawing
    from api.reports.figures import ReportFigure
    from api.reports.html_report import RunReport
    from jobs.store.records import RoundRecord

    Content: TypeAlias = tuple[str, str, list[ReportFigure], ClassMapDrawing | None]


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            help="A job id, or a folder written by `run --out`. The name of a sweep, or several runs: the "
            "report of their comparison.",
            autocompletion=complete_job,
        ),
    ] = None,
    label: ComparedLabelOption = None,
    metric: MetricOption = None,
    last: LastOption = 5,
    against: AgainstOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Output folder. Default: ./RUN-report"),
    ] = None,
    png: Annotated[bool, typer.Option("--png/--no-png", help="Also write PNG pictures.")] = True,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write PDF pictures.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Also write SVG pictures.")] = False,
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """Write the report of a run or of a sweep: one HTML file that needs no network, and pictures for a paper.

    `--metric`, `--last` and `--against` are for comparisons, as in `fedsim compare`.
    """
    from api.cli.display import print_json, print_message

    options = {"metric": metric, "last": last, "against": against}
    is_comparison = (
        label or options != {"metric": None, "last": 5, "against": None} or _are_several(runs, url)
    )
    name, page, figures, class_map = (
        _read_comparison(runs or [], label, url, options)
        if is_comparison
        else _read_run((runs or [""])[0], url)
    )
    # The name may be a path: of a folder with runs, or of a service that means no good.
    folder = out or Path(f"{Path(name).name}-report")
    files = [folder / "report.html"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files[0].write_text(page, "utf-8")
        if formats := [name for name, asked in (("png", png), ("pdf", pdf), ("svg", svg)) if asked]:
            from api.reports.pictures import save_pictures

            files += save_pictures(figures, class_map, folder, formats)
    except OSError as error:
        raise _make_write_error(folder, error) from error
    if format is Format.JSON:
        print_json({"files": [str(file) for file in files]})
    else:
        for file in files:
            print_message(f"wrote {file}")


def _are_several(runs: list[str] | None, url: str | None) -> bool:
    """Whether the arguments are no single run: none, several, or the name of a sweep."""
    from api.cli.commands.connection import connect
    from api.reports.run_files import list_run_paths
    from api.sdk.run_sources import explain_missing_paths

    if runs is None or len(runs) != 1:
        return True
    if (path := Path(runs[0]).expanduser()).is_dir():
        return len(list_run_paths(path)) > 1
    with explain_missing_paths(runs), connect(url) as client:
        return any(client.jobs(label=f"group={runs[0]}", limit=1))


def _read_comparison(
    runs: list[str], label: list[str] | None, url: str | None, options: Mapping[str, Any]
) -> Content:
    """Compare the runs; return name, page and figures of their report."""
    from api.reports.comparison_figure import make_comparison_figure
    from api.reports.html_comparison import render_comparison
    from api.sdk.run_comparison import compare

    parse_labels(label)  # refuses a label without a value
    found = compare(*runs, label=label or None, url=url, **options)
    name = runs[0] if len(runs) == 1 else "comparison"
    figure = make_comparison_figure(found)
    sources = [*runs, *(label or [])]
    title = f"Comparison: {sources[0]}" if len(sources) == 1 else f"Comparison of {len(found.lines)} runs"
    return name, render_comparison(title, found), [figure] if figure else [], None


def _read_run(run: str, url: str | None) -> Content:
    """Read a run; return name, page, figures and class map of its report."""
    from api.cli.display import print_message
    from api.reports.html_report import render_report

    reported = _read(run, url)
    if reported.class_map_error:
        print_message(f"the report has no class map: {reported.class_map_error}")
    return reported.run, render_report(reported), reported.list_figures(), reported.class_map


def _make_write_error(folder: Path, error: OSError) -> Exception:
    from fedsim.errors import SettingsError

    return SettingsError(f"the report cannot be written to {str(folder)!r}: {error}", "choose another --out")


def _read(run: str, url: str | None) -> RunReport:
    path = Path(run).expanduser()
    return _from_files(path) if path.is_dir() else _from_service(run, url)


def _from_service(run: str, url: str | None) -> RunReport:
    from api.cli.commands.connection import connect
    from api.reports.html_report import RunReport
    from api.reports.run_files import PERSONAL
    from api.sdk import calls
    from fedsim.errors import ArtifactNotFound

    with connect(url) as client:
        handle = client.job(run)
        job, records = handle.job, list(handle.rounds())
        personal = ""
        with suppress(ArtifactNotFound), TemporaryDirectory() as aside:
            personal = handle.artifact(PERSONAL, aside).read_text("utf-8")
        class_map, class_map_error = _find_class_map(lambda: client.send(calls.class_map(job.id)), records)
        about = job.id, job.name, job.state, job.message or ""
        return RunReport(*about, job.spec, records, personal, class_map, class_map_error)


def _from_files(path: Path) -> RunReport:
    from api.reports.html_report import RunReport
    from api.reports.run_files import PERSONAL, read_compared_run

    run = read_compared_run(path.resolve().name, path)
    own = path / PERSONAL
    personal = own.read_text("utf-8") if own.is_file() else ""
    class_map, class_map_error = _find_class_map(lambda: _make_class_map(run.spec), run.records)
    about = run.run, run.name, "", ""
    return RunReport(*about, run.spec, run.records, personal, class_map, class_map_error)


def _make_class_map(data: Mapping[str, Any]) -> Mapping[str, Any]:
    from jobs.run.class_map import make_class_map
    from jobs.settings import Settings
    from jobs.spec import parse_spec

    return make_class_map(parse_spec(data), Settings.from_env().add_local_folders())


def _find_class_map(
    find: Callable[[], Mapping[str, Any]], records: Sequence[RoundRecord]
) -> tuple[ClassMapDrawing | None, str]:
    """Return the class map, or the reason why there is none."""
    from api.reports.class_map import draw_class_map
    from fedsim.errors import FedsimError

    try:
        return draw_class_map(find(), records), ""
    except FedsimError as error:
        # The report has no class map if the data is missing or the spec belongs to another version.
        return None, str(error)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Jobs")(report)
