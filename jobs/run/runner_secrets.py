"""What a runner must know and nobody else may see: passwords in URLs, handed over in a file of the job.

Environment variables of a Ray job stand in Ray's dashboard for everybody to read. So what may hold a password
goes into a file that only its owner can read, and the variables name the file. The runner removes it once it
has read it: it must lie in no backup.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from jobs.settings import SECRETS_VARIABLE, Settings

SECRETS_FILE = ".handover-{}.json"
"""By the Ray job: one that begins and one that is given up never touch each other's."""


def write_runner_secrets(settings: Settings, job_id: str, ray_job: str) -> dict[str, str]:
    """Write the secret settings into the job's directory, for its owner only.

    Returns:
        The variables that lead the runner there.

    Raises:
        OSError: it could not be written; nothing stays behind.
    """
    path = settings.job_dir(job_id) / SECRETS_FILE.format(ray_job)
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(settings.secret_environment(), file)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return {SECRETS_VARIABLE: str(path)}


def read_runner_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings of this process, and remove the file with which secret ones were handed over.

    Raises:
        SettingsError: a variable that is not what it should be, or a file that cannot be read.
    """
    settings = Settings.from_env(environment)
    if path := environment.get(SECRETS_VARIABLE):
        with contextlib.suppress(OSError):
            Path(path).unlink()
    return settings


def remove_runner_secrets(settings: Settings, job_id: str, ray_job: str) -> None:
    """Remove what was handed over to a runner that has ended, or that never began."""
    with contextlib.suppress(OSError):
        (settings.job_dir(job_id) / SECRETS_FILE.format(ray_job)).unlink(missing_ok=True)
