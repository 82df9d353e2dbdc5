"""The job store: the one truth about jobs, on SQLite or PostgreSQL, shared by the API and the runners.

Every method is one transaction. A method that changes a job locks the job's row first (SQLite: the database),
so that changes of one job come one after the other and its events are numbered without gaps in the order in
which readers see them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Engine, delete, update

from fedsim.errors import Conflict
from jobs.spec import JobSpec
from jobs.spec.submission import check_submission
from jobs.store.database import make_write_engine, open_database
from jobs.store.queue_order import start_next_job, write_waiting_reasons
from jobs.store.reader import JobReader
from jobs.store.records import Job, RoundRecord, get_ray_job_id
from jobs.store.rows import (
    check_same_submission,
    enter_state,
    has_round,
    insert_job,
    insert_round,
    job_of,
    make_unsubmitted_conditions,
    read_job_row,
    write_warning,
)
from jobs.store.states import FINAL, RESUMABLE, STARTED, FailureReason, JobState, check_transition
from jobs.store.tables import jobs


class JobStore(JobReader):
    """Jobs, their rounds and their events. Safe to use from several threads and processes at once.

    Args:
        engine: an engine on a database of the newest schema; `open` makes one from a URL.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._write_engine = make_write_engine(engine)

    @classmethod
    def open(cls, url: str) -> JobStore:
        """Open the store at a database URL, making or migrating its tables where needed.

        Raises:
            StoreError: a URL that means nothing, a database that does not answer or is newer than fedsim is.
        """
        return cls(open_database(url))

    def create(
        self,
        spec: JobSpec,
        *,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Job, bool]:
        """Put a job into the queue.

        Args:
            spec: what to run.
            priority: from -1000 to 1000; higher ones run first.
            labels: for finding it again.
            idempotency_key: names this submission, so that sending it twice makes one job.

        Returns:
            The job, and whether it is new.

        Raises:
            SpecError: a priority, label or key that cannot be stored.
            Conflict: the key has been used for another body.
        """
        submission = check_submission(spec, priority, labels, idempotency_key)
        with self._write_engine.begin() as connection:
            row, is_new = insert_job(connection, submission)
        if not is_new:
            check_same_submission(row, submission)
        return job_of(row), is_new

    def change_state(
        self,
        job_id: str,
        source: JobState | Collection[JobState],
        target: JobState,
        *,
        reason: FailureReason | None = None,
        message: str | None = None,
        holder: str | None = None,
    ) -> bool:
        """Compare and set: move a job to a state if it is in one of the source states.

        Args:
            job_id: the job.
            source: the state, or states, that the caller believes it to be in.
            target: the state to enter.
            reason: why it failed; by default INTERNAL where the target is FAILED.
            message: for people.
            holder: the Ray job that asks for it, which has to be the job's own; None asks for everybody.

        Returns:
            False where the job was in another state or is another's, and nothing was changed.

        Raises:
            Conflict: the transition table does not have this way, or a reason stands without a failure.
            JobNotFound: no job has this id.
        """
        # A state is a text, and a text is a collection of texts: ask for the text first.
        sources = {JobState(source)} if isinstance(source, str) else {JobState(s) for s in source}
        target = JobState(target)
        check_transition(sources, target)
        if reason is not None and target is not JobState.FAILED:
            raise Conflict(f"{target} takes no reason, and {reason} was given", "only FAILED has a reason")
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            if row["state"] not in sources or holder not in (None, get_ray_job_id(job_of(row))):
                return False
            enter_state(connection, row, target, reason, message)
        return True

    def start_next_job(self, most: int) -> Job | None:
        """Take the first job of the queue to STARTING, unless so many jobs hold the cluster already.

        However many dispatchers there are, no job is taken twice, none before one that stands before it, and
        never more than `most` hold the cluster.

        Args:
            most: how many jobs may hold the cluster, this one included.
        """
        with self._write_engine.begin() as connection:
            row = start_next_job(connection, most)
            return None if row is None else job_of(row)

    def restart(
        self,
        job_id: str,
        limit: int,
        message: str,
        *,
        lost: str | None = None,
        holder: str | None = None,
        seen: int | None = None,
    ) -> bool:
        """Compare and set: put a job that was at work back to STARTING, to go on from its checkpoint.

        Args:
            job_id: the job.
            limit: how many restarts there may be, this one included.
            message: what happened, for people.
            lost: its Ray job that is gone, so that it takes a new one; None where its runner itself goes on.
            holder: the Ray job of a runner that goes on, as for `advance`.
            seen: its restarts when this was decided, so that asking twice makes one; None for any number.

        Returns:
            False where the job is not at work, is another's by now, or has been started again so often
            already; True as well where this very restart has been made before.

        Raises:
            JobNotFound: no job has this id.
        """
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            if row["state"] not in STARTED or holder not in (None, get_ray_job_id(job_of(row))):
                return False
            if seen not in (None, row["restarts"]):
                return bool(seen == row["restarts"] - 1)
            if row["restarts"] >= limit or lost not in (None, row["submission_id"]):
                return False
            # A runner that goes on is the job's Ray job, be that noted yet or not.
            mine = {"submission_id": row["submission_id"] or holder, "heartbeat_at": row["heartbeat_at"]}
            enter_state(connection, row, JobState.STARTING, None, message, **({} if lost else mine))
        return True

    def resume(self, job_id: str) -> Job:
        """Put a job that has FAILED or was CANCELLED back into the queue, to go on from its checkpoint.

        Raises:
            Conflict: the job has not ended, or has succeeded.
            JobNotFound: no job has this id.
        """
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            if row["state"] not in RESUMABLE:
                states = " or ".join(sorted(RESUMABLE))
                raise Conflict(f"job {job_id} is {row['state']} and cannot be resumed", f"{states} can be")
            enter_state(connection, row, JobState.QUEUED, None, None)
            return job_of(read_job_row(connection, job_id))

    def request_cancel(self, job_id: str) -> Job:
        """Cancel a job: at once where it waits, by way of CANCELLING where it runs; nothing where it ended.

        Raises:
            JobNotFound: no job has this id.
        """
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            if row["state"] == JobState.QUEUED:
                enter_state(connection, row, JobState.CANCELLED, None, "cancelled before it started")
            elif row["state"] in (JobState.STARTING, JobState.RUNNING):
                enter_state(connection, row, JobState.CANCELLING, None, None)
            return job_of(read_job_row(connection, job_id))

    def delete(self, job_id: str) -> None:
        """Remove a job with its rounds and events; its directory is the caller's.

        Raises:
            Conflict: the job has not ended.
            JobNotFound: no job has this id.
        """
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            if row["state"] not in FINAL:
                raise Conflict(f"job {job_id} is {row['state']} and cannot be deleted", "cancel it first")
            connection.execute(delete(jobs).where(jobs.c.id == job_id))

    def add_round(self, job_id: str, record: RoundRecord) -> bool:
        """Write a round and its event, exactly once.

        A round that is there already is left as it is; where its digest differs, a warning says so.

        Returns:
            Whether the round was new.

        Raises:
            Conflict: a new round for a job that has ended.
            JobNotFound: no job has this id.
        """
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            is_new = not has_round(connection, row, record)
            if is_new and row["state"] in FINAL:
                raise Conflict(f"job {job_id} is {row['state']} and takes no more rounds")
            if is_new:
                insert_round(connection, row, record)
        return is_new

    def add_warning(self, job_id: str, text: str) -> bool:
        """Write a warning among the events of a job; False, and nothing written, where the job has ended.

        Raises:
            JobNotFound: no job has this id.
        """
        with self._write_engine.begin() as connection:
            return write_warning(connection, read_job_row(connection, job_id, lock=True), text)

    def record_heartbeat(self, job_id: str) -> None:
        """Say that the runner of a job lives; `Job.heartbeat_at` tells when it last did.

        Raises:
            JobNotFound: no job has this id.
        """
        self._update_job(job_id, heartbeat_at=datetime.now(UTC))

    def set_submission(self, job_id: str, submission_id: str, *, seen: Job | None = None) -> bool:
        """Compare and set: remember the Ray job of a job.

        Args:
            job_id: the job.
            submission_id: its Ray job.
            seen: the job when this was decided, which had none; None for whatever has become of it since.

        Returns:
            False where it has one by now, or has been started again or resumed, and nothing was changed.

        Raises:
            JobNotFound: no job has this id.
        """
        same = () if seen is None else make_unsubmitted_conditions(seen)
        return self._update_job(job_id, *same, submission_id=submission_id)

    def write_waiting_reasons(
        self, reasons: Mapping[str, str | None], others: str | None = None, placed: Collection[str] = ()
    ) -> None:
        """Say of jobs, all at once, why they wait; nothing happens where one waits no more.

        Args:
            reasons: by job id.
            others: of all queued jobs that are not among them; None leaves those as they are.
            placed: jobs that are not among the others either.
        """
        with self._write_engine.begin() as connection:
            write_waiting_reasons(connection, reasons, others, placed)

    def _update_job(self, job_id: str, *where: ColumnElement[bool], **values: Any) -> bool:
        with self._write_engine.begin() as connection:
            change = update(jobs).where(jobs.c.id == job_id, *where).values(**values)
            if connection.execute(change).rowcount:
                return True
            read_job_row(connection, job_id)
        return False
