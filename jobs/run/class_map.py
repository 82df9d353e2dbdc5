"""Who holds what, as a picture needs it: the client x class map of a job, made once and kept beside it."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs.settings import Settings
from jobs.spec import Curriculum, JobSpec, PartitionSection

log = logging.getLogger("fedsim.class_map")

MAX_CLIENTS_SHOWN = 200
"""Clients that still can be told apart in a picture."""

FILE = "class-map.json"


def load_class_map(spec: JobSpec, settings: Settings, job_id: str) -> dict[str, Any]:
    """The map of a job, out of its folder where it was made before.

    Args:
        spec: of the job.
        settings: where data and jobs are.
        job_id: the job.

    Returns:
        `classes` (names), `counts` (examples, [n][C], of the first `SHOWN` clients), `distances` (of each
        one's mix to that of all, [n]), `clients` (N) and `notes`.

    Raises:
        SpecError, DataNotFound, DataError: as `jobs.run.partition_report.deal`.
    """
    kept = settings.job_dir(job_id) / FILE
    if kept.is_file():
        known: dict[str, Any] = json.loads(kept.read_text("utf-8"))
        return known
    found = make_class_map(spec, settings)
    _save_class_map(kept, found)
    return found


def make_class_map(spec: JobSpec, settings: Settings) -> dict[str, Any]:
    """The map of a spec, as `class_map` gives it, made anew."""
    # Here, because it brings torch along.
    from jobs.run.partition_report import make_partition_report

    dealing = make_partition_report(_without_expert(spec), settings, lambda phase: None)
    return {
        "classes": list(dealing.classes),
        "counts": dealing.counts[:MAX_CLIENTS_SHOWN].tolist(),
        "distances": [round(float(distance), 6) for distance in dealing.distances[:MAX_CLIENTS_SHOWN]],
        "clients": len(dealing.sizes),
        "notes": list(dealing.notes),
    }


def _without_expert(spec: JobSpec) -> JobSpec:
    """The same counts without training: `difficulty` keeps those of its base, and curricula change none."""
    partition = spec.data.partition
    if partition.kind == "difficulty":
        base = partition.params.get("base", {"kind": "dirichlet", "beta": 0.5})
        partition = PartitionSection.model_validate({"kind": base} if isinstance(base, str) else base)
    # A look at a job fetches no data: it is here once the job has run.
    data = spec.data.model_copy(update={"partition": partition, "download": False})
    return spec.model_copy(update={"data": data, "curriculum": Curriculum()})


def _save_class_map(path: Path, found: dict[str, Any]) -> None:
    # Written aside and renamed: two that ask at once must not read half a file.
    aside = path.with_suffix(f".{os.getpid()}.part")
    try:
        aside.write_text(json.dumps(found), "utf-8")
        aside.replace(path)
    except OSError as error:
        # It is there, and whoever asks again waits for another one.
        log.warning("the class map cannot be kept: %s", error)
        with suppress(OSError):
            aside.unlink(missing_ok=True)
