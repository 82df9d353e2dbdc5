"""`fedsim run`: a run of a spec without the service."""

from __future__ import annotations

from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.commands.options import (
    ChaosOption,
    OutOption,
    RunFormat,
    RunFormatOption,
    SetOption,
    SpecArgument,
    TrackOption,
    make_folder,
)
from api.cli.interruption import SignalHandler, Terminated, discard_output
from fedsim.errors import SettingsError
from jobs.run.listener import RunListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from api.cli.job_progress import ProgressView
    from api.cli.run_folder import RunFolder
    from fedsim.core.personal_scores import PersonalScores
    from fedsim.engine.faults import Chaos
    from jobs.run.run_result import RunResult
    from jobs.settings import Settings
    from jobs.spec import JobSpec
    from jobs.store.records import RoundRecord
    from jobs.tracking.trackers import Trackers


def run(
    spec: SpecArgument,
    sets: SetOption = None,
    out: OutOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint in DIR, if there is one.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that DIR has, with its checkpoints.")
    ] = False,
    track: TrackOption = None,
    chaos: ChaosOption = None,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Run without Ray, one client after another: breakpoint() works."),
    ] = False,
    format: RunFormatOption = RunFormat.TEXT,
) -> None:
    """Run a spec on this machine, without the service."""
    from api.cli.debug_run import check_debug_options
    from api.cli.display import make_rounds_table, print_json, print_message, print_table
    from api.cli.run_folder import make_run_document, write_run_files
    from fedsim.engine.faults import parse_chaos
    from jobs.spec import read_spec
    from jobs.spec.resolve import parse_spec_and_names

    faults = parse_chaos(chaos or ())
    _check_options(out, resume=resume, overwrite=overwrite)
    if debug:
        check_debug_options(out, resume=resume, chaos=bool(chaos))
    loaded = parse_spec_and_names(read_spec(spec, sets or ()))
    with _open_folder(out, loaded, resume=resume, overwrite=overwrite) as folder:
        if folder and resume and format is RunFormat.TEXT and (note := folder.describe_finished()):
            print_message(note)
            return
        trackers = _open_trackers(track, loaded, folder)
        with _report_stop(folder, trackers):
            result = _execute(
                spec, loaded, folder, format, trackers=trackers, debug=debug, resume=resume, chaos=faults
            )
        for note in _list_notes(loaded, result):
            print_message(note)
        document = make_run_document(result)
        if folder is not None:
            names = write_run_files(folder.path, document, result, resumed=resume)
            print_message(f"wrote {', '.join(names[:-1])} and {names[-1]} into {folder.path}")
        files = {name: (folder.path / name).read_bytes() for name in names} if folder else {}
        trackers.end("FINISHED", files)
    if format is RunFormat.JSON:
        print_json(document)
    elif format is RunFormat.TEXT:
        print_table(make_rounds_table(result.records))


@contextmanager
def _open_folder(
    out: Path | None, spec: JobSpec, *, resume: bool, overwrite: bool
) -> Iterator[RunFolder | None]:
    """Yield the folder of `--out`, and keep a second run out of it; None without `--out`.

    Raises:
        SettingsError: another process runs in it; see also `RunFolder`.
    """
    from api.cli.run_folder import RunFolder
    from jobs.file_locks import lock_folder

    if out is None:
        yield None
        return
    with lock_folder(make_folder(out), "run"):
        yield RunFolder(out, spec, resume=resume, overwrite=overwrite)


def _list_notes(spec: JobSpec, result: RunResult) -> list[str]:
    """List what a reader of the result has to know."""
    end = "" if result.end is None else result.end.message
    records = result.records
    notes = (describe_extra_rounds(spec.rounds, len(records)), end, describe_divergence(records))
    return [note for note in notes if note]


def describe_divergence(records: Sequence[RoundRecord]) -> str:
    """Write in which round the global model had a loss that is no finite number; "" if in none."""
    for record in records:
        loss = record.metrics.get("global_loss", record.metrics.get("global_validation_loss", 0.0))
        if not isinstance(loss, int | float) or not isfinite(loss):
            return (
                f"the global model diverged: its loss in round {record.round} is not a finite number;"
                " try a smaller local.lr"
            )
    return ""


def _open_trackers(names: list[str] | None, spec: JobSpec, folder: RunFolder | None) -> Trackers:
    """Open the trackers of the option, or those of the settings.

    Raises:
        SettingsError: a tracker cannot begin.
    """
    from uuid import uuid4

    from api.cli.display import print_message
    from jobs.settings import Settings
    from jobs.tracking.tracked_run import TrackedRun
    from jobs.tracking.trackers import Trackers, check_trackers

    chosen = names or Settings.from_env().track
    check_trackers(chosen, has_folder=folder is not None)
    id = folder.make_tracking_id() if folder and chosen else uuid4().hex[:16]
    path = folder.path.absolute() if folder else None
    return Trackers(chosen, TrackedRun.from_spec(id, spec, path), print_message)


@contextmanager
def _report_stop(folder: RunFolder | None, trackers: Trackers) -> Iterator[None]:
    """If the run does not reach its end, say how it continues, and end it in the trackers."""
    from api.cli.display import print_message

    try:
        yield
    except (KeyboardInterrupt, Terminated, BrokenPipeError) as stop:
        print_message(describe_stop(folder))
        trackers.end("KILLED")
        if isinstance(stop, BrokenPipeError):  # nobody reads the rounds any more: the run has not ended
            discard_output()
            raise Terminated from stop
        raise
    except Exception:
        trackers.end("FAILED")
        raise


def _check_options(out: Path | None, *, resume: bool, overwrite: bool) -> None:
    if out is None and (resume or overwrite):
        option = "--resume" if resume else "--overwrite"
        raise SettingsError(f"{option} without --out", "name the folder of the run: --out DIR")
    if resume and overwrite:
        raise SettingsError("--resume with --overwrite", "leave one of them out")


def describe_stop(folder: RunFolder | None) -> str:
    """Describe how to continue a run that a signal has stopped."""
    return f"stopped; {folder.describe_rest() if folder else 'give --out DIR to keep the rounds'}"


def describe_extra_rounds(asked: int, had: int) -> str:
    """Describe that a continued run has more rounds than its spec asks for; return "" if it has not.

    Args:
        asked: rounds of the spec.
        had: rounds of the run.
    """
    if had <= asked:
        return ""
    return f"note: this run already has {had} rounds; the spec asks for {asked}, and nothing is removed"


def _execute(
    source: str,
    spec: JobSpec,
    folder: RunFolder | None,
    format: RunFormat,
    *,
    trackers: Trackers,
    debug: bool,
    resume: bool,
    chaos: Chaos,
) -> RunResult:
    from api.cli.debug_run import run_debug
    from api.cli.display import print_message
    from api.cli.job_progress import ProgressLines, open_live_view
    from jobs.settings import Settings

    def ask_to_stop() -> bool:
        if signals.is_setting_up:
            print_message("stopping after this step of the set-up; again: stop at once")
            return True
        if debug or folder is None or not folder.ask_to_stop():
            return False
        print_message("stopping after this round, with a checkpoint; again: stop at once")
        return True

    settings = Settings.from_env().add_local_folders(source)
    signals = SignalHandler(ask_to_stop, lambda: print_message(describe_stop(folder)))
    signals.install()
    if debug:
        lines = ProgressLines(spec.name, spec.rounds)
        return run_debug(spec, settings, ViewListener(lines, format, folder, trackers))
    signals.is_setting_up = True
    with open_live_view(spec.name, spec.rounds) as view:
        view.show_phase("loading the libraries")
        from jobs.run.execute import execute

        url = folder.checkpoint_url if folder else None
        listener = ViewListener(
            view, format, folder, trackers, signals, lambda: _find_warning(spec, settings)
        )
        result = execute(
            spec,
            settings,
            checkpoints=url,
            resume=resume,
            overwrite=folder is not None and folder.overwrite,
            stop_file=str(folder.stop_file) if folder else None,
            chaos=chaos,
            listener=listener,
        )
    signals.raise_if_asked()
    return result


def _find_warning(spec: JobSpec, settings: Settings) -> str | None:
    from jobs.local_ray.machine import count_cpus
    from jobs.plan.long_runs import describe_long_run

    # The CPUs of another cluster are not known here.
    return None if settings.ray_address else describe_long_run(spec, settings, count_cpus(settings))


class ViewListener(RunListener):
    """The listener of `fedsim run`: it shows the progress, and prints each round if the format is jsonl.

    Args:
        view: shows the progress.
        format: of the output.
        folder: gets each round; None without `--out`.
        trackers: get each round.
        signals: installed again at each attempt; None without Ray, which takes the signals.
        find_warning: returns a warning to show before the first round; called once the spec is checked.
    """

    def __init__(
        self,
        view: ProgressView,
        format: RunFormat,
        folder: RunFolder | None,
        trackers: Trackers,
        signals: SignalHandler | None = None,
        find_warning: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.view, self.format, self.folder, self.signals = view, format, folder, signals
        self.find_warning, self.trackers = find_warning, trackers

    def on_attempt(self, attempt: Any) -> None:
        """Begin the folder, take the signals back from Ray, and warn of a long run."""
        if self.signals is not None:
            self.signals.install()
            self.signals.raise_if_asked()
        if self.folder is not None:
            self.folder.begin_attempt()
        find_warning, self.find_warning = self.find_warning, lambda: None
        if warning := find_warning():
            self.view.show_note(f"note: {warning}")

    def on_status(self, text: str) -> None:
        """Show the status; end here if a signal came during the set-up."""
        if self.signals is not None and self.signals.is_setting_up:
            self.signals.raise_if_asked()
        self.view.show_phase(text)

    def on_running(self) -> None:
        """Learn that a signal now asks the rounds to stop."""
        if self.signals is not None and self.signals.is_setting_up:
            self.signals.raise_if_asked()
            self.signals.is_setting_up = False

    def on_personal_scores(self, scores: PersonalScores) -> None:
        """Write the scores at once: after a stop in the last round no further round makes them."""
        from api.reports.run_files import PERSONAL

        if self.folder is not None:
            (self.folder.path / PERSONAL).write_text(scores.to_csv(), "utf-8")

    def on_round(self, record: RoundRecord) -> None:
        """Show the round."""
        from api.cli.display import print_line

        self.view.show_round(record)
        if self.folder is not None:
            self.folder.add_round(record)
        self.trackers.log_round(record)
        if self.format is RunFormat.JSONL:
            print_line(record.model_dump(mode="json"))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Start here")(run)
