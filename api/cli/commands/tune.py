"""`fedsim tune`: search good values of a spec's fields."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.commands.options import (
    Format,
    FormatOption,
    SetOption,
    SpecArgument,
    UrlOption,
    make_folder,
    refuse_options,
)

if TYPE_CHECKING:
    from jobs.tune.result import TuneResult
    from jobs.tune.search import TuneProgress

MOST_ROWS = 20


class TrialPlace(StrEnum):
    """Where trials train."""

    POOL = "pool"
    SERVICE = "service"


class SearchMethod(StrEnum):
    """How the values of a trial are chosen."""

    BAYES = "bayes"
    RANDOM = "random"
    GRID = "grid"


def tune(
    spec: SpecArgument,
    sets: SetOption = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            "--space",
            metavar="PATH=SPACE",
            help="Values to try: local.lr=log:0.001..1, uniform:0..1, int:1..5 or [0.01, 0.1]. Repeatable.",
        ),
    ] = None,
    spaces: Annotated[
        Path | None, typer.Option("--spaces", metavar="FILE", help="A YAML file with values to try by PATH.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", help="How many sets of values to try.")] = 20,
    method: Annotated[
        SearchMethod, typer.Option("--method", help="bayes: Optuna's TPE; random; grid: every combination.")
    ] = SearchMethod.BAYES,
    first_rounds: Annotated[
        int | None,
        typer.Option(
            "--first-rounds",
            help="Rounds before trials are compared first. Default: rounds / reduction², a ninth. "
            "All rounds: no trial ends early.",
        ),
    ] = None,
    reduction: Annotated[
        int,
        typer.Option("--reduction", help="One in this many trials goes on, for this many times the rounds."),
    ] = 3,
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="A metric on the validation set, such as global_validation_loss."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the search.")] = 0,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Trials at the same time.")] = 2,
    on: Annotated[
        TrialPlace, typer.Option("--on", help="pool: processes on this machine; service: jobs.")
    ] = TrialPlace.POOL,
    test: Annotated[
        bool, typer.Option("--test/--no-test", help="Run the best spec once more, with the test set.")
    ] = True,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the search.")] = Path("tuned"),
    format: FormatOption = Format.TEXT,
    url: UrlOption = None,
) -> None:
    """Search the values of a spec's fields that do best on the validation set.

    Finished rounds are kept: run it again to continue. best.yaml in DIR is the spec with the best values.
    """
    from api.cli.display import print_json, print_message
    from jobs.settings import Settings
    from jobs.spec import read_spec
    from jobs.tune.search import tune as search
    from jobs.tune.space import parse_space_items

    refuse_options(on, {"--url": (url is not None, [TrialPlace.SERVICE])})
    service: Any = None
    if on is TrialPlace.SERVICE:
        from api.cli.commands.connection import connect

        service = connect(url)
    wanted = {**_read_spaces(spaces), **parse_space_items(space or [])}
    try:
        result = search(
            read_spec(spec, sets or ()),
            wanted,
            trials=trials,
            method=method.value,
            first_rounds=first_rounds,
            reduction=reduction,
            metric=metric,
            seed=seed,
            out=make_folder(out),
            processes=processes,
            on=service,
            test=test,
            settings=Settings.from_env().add_local_folders(spec),
            on_score=lambda progress: print_message(_describe(progress)),
        )
    except KeyboardInterrupt:
        more = "; jobs that have begun go on" if service is not None else ""
        print_message(f"stopped; {out} has what is finished; the same command goes on{more}")
        raise
    _write_run(result, out / "best")
    if format is Format.JSON:
        print_json(_make_document(result))
    else:
        _print_result(result, out)


def _read_spaces(path: Path | None) -> dict[str, Any]:
    """Read the file of `--spaces`; {} without one."""
    from fedsim.errors import SettingsError, SpecError
    from jobs.spec import parse_text

    if path is None:
        return {}
    try:
        found = parse_text(path.expanduser().read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise SettingsError(f"--spaces {str(path)!r} cannot be read: {reason}") from error
    except SpecError as error:
        message = f"--spaces {str(path)!r} {error.errors[0].message}"
        raise SettingsError(message, error.errors[0].hint) from None
    if not isinstance(found, dict):
        raise SettingsError(
            f"--spaces {str(path)!r} is no mapping", "write one line for each field: local.lr: log:0.001..1"
        )
    return found


def _describe(progress: TuneProgress) -> str:
    """Write a score, e.g. `trial 3 (of 20, 8 begun): 0.9120 after round 9; local.lr=0.1`."""
    trial = progress.trial
    score = (
        f"failed: {trial.error}" if trial.score is None else f"{trial.score:.4f} after round {trial.rounds}"
    )
    values = ", ".join(f"{path}={value}" for path, value in trial.values.items())
    job = f"; job {trial.job}" if trial.job else ""
    return f"trial {trial.number} (of {progress.trials}, {progress.begun} begun): {score}; {values}{job}"


def _write_run(result: TuneResult, folder: Path) -> None:
    """Write the run of the best spec, as `fedsim run --out` does; nothing if an earlier command made it."""
    from api.cli.run_folder import make_run_document, write_run_files

    if result.run is not None:
        write_run_files(make_folder(folder), make_run_document(result.run), result.run)


def _make_document(result: TuneResult) -> dict[str, Any]:
    trials = [
        {
            **{"trial": each.number, "values": each.values, "scores": each.scores, "error": each.error},
            **({"job": each.job} if each.job else {}),
        }
        for each in result.trials
    ]
    spec = result.spec.model_dump(mode="json")
    best = {"trial": result.best.number, "values": result.best.values, "score": result.best.score}
    found = {"metric": result.metric, "best": best, "test": result.test, "rounds": result.rounds}
    jobs = {"label": result.label, "job": result.job} if result.label else {}
    return {**found, **jobs, "spec": spec, "trials": trials}


def _print_result(result: TuneResult, out: Path) -> None:
    from api.cli.display import make_plain_text, make_table, print_message, print_table
    from fedsim.learning_tasks.metrics import main_metric_names

    heads, rows = result.list_rows()
    shown = [[*map(make_plain_text, row)] for row in rows[:MOST_ROWS]]
    print_table(make_table(heads, shown, numbers=heads))
    if len(rows) > MOST_ROWS:
        print_message(f"and {len(rows) - MOST_ROWS} more; --format json has all")
    full = len(result.trials) * result.search.rungs[-1]
    print_message(f"{result.rounds} rounds trained; without early stopping {full}")
    partner = result.metric.replace("_validation_", "_")
    if name := next((name for name in (partner, *main_metric_names()) if name in result.test), None):
        place = f"job {result.job}" if result.job else f"in {out / 'best'}"
        print_message(f"on the test set, once: {name} {result.test[name]:.4f}; the run is {place}")
    if result.label:
        print_message(f"`fedsim compare --label {result.label}` compares the trials")
    print_message(f"wrote {out / 'best.yaml'}; `fedsim run {out / 'best.yaml'}` runs it")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Start here")(tune)
