"""The client x class map of a job, for a picture of its partition; made once, and stored beside the job."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsim.base.files import open_aside
from jobs.settings import Settings
from jobs.spec import Curriculum, JobSpec, PartitionSection

log = logging.getLogger("fedsim.class_map")

MAX_CLIENTS_SHOWN = 200
"""The number of clients that a picture can show."""

MAX_COUNTS = 100_000
"""The most numbers of a map: with more classes than 500, it has fewer clients."""

FILE = "class-map.json"


def load_class_map(spec: JobSpec, settings: Settings, job_id: str) -> dict[str, Any]:
    """Load the map of a job from its folder; make it if it does not exist yet.

    Args:
        spec: of the job.
        settings: where data and jobs are.
        job_id: the job.

    Returns:
        `classes` (names), `counts` (examples, [n][C], of the first clients, at most `MAX_CLIENTS_SHOWN`),
        `distances` (from each client's class distribution to that of all clients, [n]), `clients` (N),
        `names` (of the first clients; [] without names), `notes` and `attackers` (the malicious clients among
        the first ones).

    Raises:
        SpecError, DataNotFound, DataError: as `make_partition_report`.
    """
    # The folder is made here, not after the map: a job that is deleted meanwhile gets no new one.
    path = settings.job_dir(job_id) / FILE
    if (known := read_class_map(settings, job_id)) is not None:
        return known
    found = make_class_map(spec, settings)
    _save_class_map(path, found)
    return found


def read_class_map(settings: Settings, job_id: str) -> dict[str, Any] | None:
    """Read the map of a job from its folder; None if it was not made yet, or a crash has damaged its file."""
    with suppress(OSError, ValueError):
        known: dict[str, Any] = json.loads((settings.job_dir(job_id) / FILE).read_text("utf-8"))
        return known
    return None


def make_class_map(spec: JobSpec, settings: Settings) -> dict[str, Any]:
    """Make the map of a spec; see `load_class_map`."""
    # Imported here because it imports torch.
    from jobs.run.partition_report import make_partition_report

    report = make_partition_report(_remove_expert(spec), settings, lambda phase: None)
    shown = min(MAX_CLIENTS_SHOWN, max(1, MAX_COUNTS // max(1, len(report.classes))))
    return {
        "classes": list(report.classes),
        "counts": report.counts[:shown].tolist(),
        "distances": [round(float(distance), 6) for distance in report.distances[:shown]],
        "clients": len(report.sizes),
        "names": list(report.names[:shown]),
        "notes": list(report.notes),
        "attackers": [client for client in _list_attackers(spec, len(report.sizes)) if client < shown],
    }


def _list_attackers(spec: JobSpec, clients: int) -> list[int]:
    """List the malicious clients of a spec."""
    from fedsim.uploads.attacks import draw_attackers
    from jobs.spec.upload_wrappers import make_attack

    attack = make_attack(spec)
    found: list[int] = [] if attack is None else draw_attackers(attack, spec.seed, clients).tolist()
    return found


def _remove_expert(spec: JobSpec) -> JobSpec:
    """Return a spec with the same class counts that trains no expert.

    A `difficulty` partition has the counts of its base partition, and curricula change no counts.
    """
    partition = spec.data.partition
    if partition.kind == "difficulty":
        from fedsim.data.partitions.base import BASE

        base = partition.params.get("base", BASE)
        partition = PartitionSection.model_validate({"kind": base} if isinstance(base, str) else dict(base))
    # Showing a job downloads no data: the data is here once the job has run.
    data = spec.data.model_copy(update={"partition": partition, "download": False})
    return spec.model_copy(update={"data": data, "curriculum": Curriculum()})


def _save_class_map(path: Path, found: dict[str, Any]) -> None:
    try:
        with open_aside(path) as file:
            file.write(json.dumps(found).encode())
    except OSError as error:
        # The caller has the map; the next request makes it again.
        log.warning("the class map cannot be stored: %s", error)
