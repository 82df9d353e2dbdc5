"""`fedsim backup` and `fedsim recover`: the store of the service on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The new file.")]


def backup(file: FileArgument) -> None:
    """Copy the store (SQLite) into a file, and check it; the service may run meanwhile."""
    from api.cli.display import print_message
    from api.reports.formatting import format_bytes
    from jobs.home_permissions import private_files
    from jobs.settings import Settings
    from jobs.store.backup import back_up_store

    settings = Settings.from_env()
    with private_files():
        size = back_up_store(settings.database_url, file)
    print_message(f"wrote {file}, {format_bytes(size)}; back up {settings.home / 'jobs'} as well")


def recover() -> None:
    """Put jobs that the store has lost back into it, from their folders in FEDSIM_HOME."""
    from api.cli.display import print_message
    from jobs.home_permissions import private_files
    from jobs.run.recovery import recover_jobs
    from jobs.settings import Settings
    from jobs.store.job_store import JobStore

    settings = Settings.from_env()
    with private_files(), JobStore.open(settings.database_url) as store:
        recovered = recover_jobs(settings, store, print_message)
    print_message(f"recovered {len(recovered)} job{'s' * (len(recovered) != 1)}")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (backup, recover):
        app.command(rich_help_panel="The service")(command)
