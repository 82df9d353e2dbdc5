"""`fedsim run --debug`: a run in this process, without a progress bar that would draw over a debugger."""

from __future__ import annotations

import traceback
from bdb import BdbQuit
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from api.cli.display import print_message
from fedsim.errors import (
    ClientFailed,
    DataCodeFailed,
    FedsimError,
    MethodFailed,
    OutOfMemory,
    SettingsError,
    SpecError,
)

if TYPE_CHECKING:
    from jobs.run.listener import RunListener
    from jobs.run.run_result import RunResult
    from jobs.settings import Settings
    from jobs.spec import JobSpec

FAILED = 1


def check_debug_options(out: Path | None, *, resume: bool, chaos: bool) -> None:
    """Raise SettingsError for options that need Ray or checkpoints."""
    if resume or chaos:
        option = "--resume" if resume else "--chaos"
        why = "it writes and reads no checkpoints" if resume else "it has no workers"
        raise SettingsError(f"--debug with {option}", f"{why}; leave one of the two options out")
    if out is not None and (out / "checkpoints").exists():
        hint = "name another folder: --debug writes none, and the files would be of two runs"
        raise SettingsError(f"--out {str(out)!r} has checkpoints of a run", hint)


def run_debug(spec: JobSpec, settings: Settings, listener: RunListener) -> RunResult:
    """Run a spec in this process; print the traceback of an error, from the client's or server's code on.

    Raises:
        KeyboardInterrupt: if the user left the debugger.
        FedsimError: if the run fails.
        typer.Exit: with code 1, after an error of other code, such as that of a data set.
    """
    from jobs.run.without_ray.in_process import describe_ignored_fields, run_in_process

    if note := describe_ignored_fields(spec):
        print_message(f"note: {note}")
    try:
        return run_in_process(spec, settings, listener)
    except BdbQuit:
        raise KeyboardInterrupt from None
    except (ClientFailed, DataCodeFailed, MethodFailed, OutOfMemory) as error:
        if isinstance(error.__cause__, BdbQuit):
            raise KeyboardInterrupt from None
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
            # The trace is on the screen now: `fedsim` needs not write it to a file.
            vars(error).pop("trace", None)
        raise
    except SpecError as error:
        if any(fault.path.startswith("model") for fault in error.errors):
            _show_error_of_model(spec, settings)
        raise
    except (FedsimError, BrokenPipeError):
        raise
    except Exception:
        traceback.print_exc()
        raise typer.Exit(FAILED) from None


def _show_error_of_model(spec: JobSpec, settings: Settings) -> None:
    """Run the user's own models without the checks of the spec; print the traceback of their error."""
    from jobs.run.without_ray.in_process import run_own_models

    try:
        run_own_models(spec, settings)
    except BdbQuit:
        raise KeyboardInterrupt from None
    except FedsimError:
        return  # the error of the spec says as much
    except Exception as error:
        traceback.print_exception(error)
