"""What a runner must know and nobody else may see: passwords in URLs, handed over in a file of the job.

Environment variables of a Ray job stand in Ray's dashboard for everybody to read. So what may hold a password
goes into a file that only its owner can read, and the variables name the file.
"""

from __future__ import annotations

import json
import os
import secrets

from jobs.settings import SECRETS, Settings

FILE = ".handover.json"


def hand_over(settings: Settings, job_id: str) -> dict[str, str]:
    """Write the secret settings into the job's directory, for its owner only.

    Returns:
        The variables that lead the runner there.
    """
    path = settings.job_dir(job_id) / FILE
    aside = path.with_name(f"{FILE}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(settings.secrets(), file)
    aside.replace(path)
    return {SECRETS: str(path)}
