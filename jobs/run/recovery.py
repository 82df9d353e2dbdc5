"""Jobs that the store has lost: put them back from the folders of their files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.errors import FedsimError, JobNotFound
from jobs.run.artifacts import MODEL, PARTITION, SPEC, list_stored_artifacts
from jobs.settings import Settings
from jobs.spec import JobSpec, load_spec
from jobs.spec.fields import NEW_JOB_ID
from jobs.store.job_store import JobStore
from jobs.store.records import RoundRecord


def list_job_folders(settings: Settings) -> list[Path]:
    """List the folders of jobs below `FEDSIM_HOME/jobs` that have a spec, the oldest job first.

    A folder with another name, such as a copy, is none of a job: an id holds the time when the job was made.
    """
    folders = sorted((settings.home / "jobs").glob(f"*/{SPEC}"))
    return [file.parent for file in folders if NEW_JOB_ID.fullmatch(file.parent.name)]


def recover_jobs(settings: Settings, store: JobStore, warn: Callable[[str], None]) -> list[str]:
    """Put back all jobs that have a folder and that the store does not have.

    A job that had ended, by its last round or by `stop`, and has its results, is SUCCEEDED. Any other is
    CANCELLED; to resume it continues from its checkpoint. Rounds come from the newest checkpoint. Labels,
    priorities and events are lost.

    Args:
        settings: where the folders, checkpoints and artifacts are.
        store: the store.
        warn: called with a sentence for each folder that cannot be read.

    Returns:
        The ids of the jobs that were put back.
    """
    recovered = list[str]()
    for folder in list_job_folders(settings):
        try:
            if not _has_job(store, folder.name) and _recover_job(settings, store, folder):
                recovered.append(folder.name)
        except (FedsimError, ValueError, OSError) as error:
            warn(f"{folder} is left out: {error}")
    return recovered


def _has_job(store: JobStore, job_id: str) -> bool:
    try:
        store.get(job_id)
    except JobNotFound:
        return False
    return True


def _recover_job(settings: Settings, store: JobStore, folder: Path) -> bool:
    job_id, spec = folder.name, load_spec(folder / SPEC)
    stored = Checkpoints(settings.checkpoint_url(job_id)).read_records()
    records = [RoundRecord.model_validate(record) for record in stored]
    has_results = not {MODEL, PARTITION}.isdisjoint(list_stored_artifacts(settings, job_id))
    changed_at = max(file.stat().st_mtime for file in folder.iterdir())
    return store.recover(
        job_id,
        spec,
        records,
        ended_at=datetime.fromtimestamp(changed_at, UTC),
        succeeded=has_results and bool(records) and _is_last(records[-1], spec),
    )


def _is_last(record: RoundRecord, spec: JobSpec) -> bool:
    return record.end is not None or record.round >= spec.rounds
