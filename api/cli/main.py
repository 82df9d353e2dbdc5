"""The `fedsim` command.

Exit codes: 0 success, 1 the job failed or a file cannot be written, 2 wrong arguments or a wrong spec,
3 the job does not fit the cluster, 4 the service does not answer or refuses, 5 internal error, 130 stopped by
Ctrl-C, 143 by SIGTERM.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from api.cli.commands import (
    catalogue,
    cluster,
    compare,
    demo,
    export,
    inspect,
    job_output,
    jobs,
    new,
    partition,
    plan,
    report,
    reproduce,
    run,
    serve,
    store,
    sweep,
    tune,
    verify,
)
from api.cli.interruption import TERMINATED, Terminated, discard_output
from fedsim.errors import (
    CheckpointError,
    ClientFailed,
    CohortFailed,
    DataError,
    DoesNotFit,
    FedsimError,
    MethodFailed,
    NotReproduced,
    OutOfMemory,
    PoolFailed,
    RayUnavailable,
    ServiceError,
    SettingsError,
    SpecError,
    StoreError,
)

EXIT_CODES: dict[type[FedsimError], int] = {
    SpecError: 2,
    SettingsError: 2,
    DataError: 2,
    DoesNotFit: 3,
    StoreError: 4,
    ServiceError: 4,
    RayUnavailable: 4,
    ClientFailed: 1,
    CohortFailed: 1,
    MethodFailed: 1,
    OutOfMemory: 1,
    PoolFailed: 1,
    CheckpointError: 1,
    NotReproduced: 1,
}
BUG = 5
INTERRUPTED = 130

DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})
"""Errors of a disk that is full or read-only, and of a file that this user may not use: no bugs of fedsim."""

app = typer.Typer(
    name="fedsim",
    help="Simulate federated learning. Start with: fedsim demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import fedsim

        print(f"fedsim {fedsim.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


PARTS = (
    *(demo, serve, store, cluster, run, tune, jobs, job_output, sweep, compare, report, reproduce),
    *(verify, export),
    *(catalogue, partition, inspect, plan, new),
)
for part in PARTS:
    part.register(app)


def main() -> None:
    """Run the command, and exit with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a locale may lack the minus sign of a difference
            stream.reconfigure(errors="replace")
    sys.exit(_run())


def _run() -> int:
    try:
        typer.main.get_command(app)(prog_name="fedsim")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich make this exit with code 1
            discard_output()
            return 0
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except Terminated:
        return TERMINATED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return 0
    except FedsimError as error:
        return _report_error(error)
    except Exception as error:
        if explained := _find_missing_library(error) or _find_disk_error(error):
            return _report_error(explained)
        path = _write_trace(traceback.format_exc())
        print(f"fedsim: internal error (a bug in fedsim); the stack trace is in {path}", file=sys.stderr)
        return BUG
    return 0


def _report_error(error: FedsimError) -> int:
    from api.cli.display import print_error, print_message

    print_error(error)
    if trace := getattr(error, "trace", ""):
        print_message(f"  the stack trace is in {_write_trace(trace)}")
    return find_exit_code(error)


def _find_missing_library(error: Exception) -> SettingsError | None:
    """Explain the missing library of an installation that is only a client of a service."""
    library = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if library in ("", "fedsim", "actors", "jobs", "api"):
        return None
    return SettingsError(
        f"this command needs {library}, which is not installed: here fedsim is only a client of a service",
        "install fedsim with its libraries (docs/operations.md, Install), or let a service run the job: "
        "fedsim submit SPEC",
    )


def _find_disk_error(error: Exception) -> CheckpointError | None:
    """Explain a file that cannot be used: the disk is full or read-only, or the user may not."""
    if not isinstance(error, OSError) or error.errno not in DISK_ERRNOS:
        return None
    # An error while a file is written does not name it.
    file = error.filename or "a file, or standard output,"
    hint = "free space on its disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "name another place"
    return CheckpointError(f"{file} cannot be used: {error.strerror}", f"{hint}, and give the command again")


def find_exit_code(error: FedsimError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), BUG)


def _write_trace(trace: str) -> Path:
    name = f"bug-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.txt"
    home = Path(os.environ.get("FEDSIM_HOME") or "~/.fedsim").expanduser()
    for folder in (home / "bugs", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # A trace may contain secrets: only its owner may read the file, and O_EXCL follows no link.
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(trace)
        except OSError:
            continue
        return folder / name
    print(trace, file=sys.stderr)
    return Path("standard error")


if __name__ == "__main__":
    main()
