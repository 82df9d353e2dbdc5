"""What the shell may complete: the names of presets and files, and the ids of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

TIMEOUT_SECONDS = 1.0
"""Seconds that a shell waits for the ids of jobs."""

MOST_JOBS_OFFERED = 50


def complete_spec(incomplete: str) -> Iterator[tuple[str, str]]:
    """Offer the presets, and the spec files of a folder."""
    from jobs.spec import presets

    yield from ((name, text) for name, text in presets().items() if name.startswith(incomplete))
    folder = Path(incomplete).parent
    for path in sorted(folder.glob("*")):
        if path.suffix in (".yaml", ".yml", ".json") and str(path).startswith(incomplete):
            yield str(path), ""


def complete_job(incomplete: str) -> Iterator[tuple[str, str]]:
    """Offer the youngest jobs of the service, if it answers at once; a shell cannot show why it does not."""
    from api.sdk import calls
    from api.sdk.client import FedSimClient
    from api.server.local_service import find_default_url
    from fedsim.errors import FedsimError

    try:
        with FedSimClient(find_default_url(), timeout=TIMEOUT_SECONDS) as client:
            call = calls.list_jobs(limit=MOST_JOBS_OFFERED, search=incomplete or None)
            jobs = client.send(replace(call, retry=False)).jobs
    except FedsimError:
        return
    yield from ((job.id, f"{job.name}, {job.state}") for job in jobs if job.id.startswith(incomplete))
