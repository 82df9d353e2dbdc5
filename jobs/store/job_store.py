"""JobStore: the database of jobs, on SQLite or PostgreSQL, shared by the API and the runners.

Every method is one transaction. A method that changes a job first locks the job's row (SQLite: the database).
Changes of one job therefore happen one after the other, and readers see its events numbered without gaps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
    insert_recovered_job,
    insert_round,
    job_of,
    make_unsubmitted_conditions,
    read_job_row,
    resume_job,
    shorten_message,
    write_warning,
)
from jobs.store.states import FINAL, STARTED, FailureReason, JobState, check_transition
from jobs.store.tables import jobs


class JobStore(JobReader):
    """Jobs, their rounds and their events. Safe to use from several threads and processes at once.

    Args:
        engine: on a database with the newest schema; `open` makes one from a URL.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._write_engine = make_write_engine(engine)

    @classmethod
    def open(cls, url: str) -> JobStore:
        """Open the store at a database URL; make or migrate its tables if necessary.

        Raises:
            StoreError: if the URL is wrong, or the database does not answer or is newer than this fedsim.
        """
        return cls(open_database(url))

    def create(
        self,
        spec: JobSpec,
        *,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        message: str | None = None,
    ) -> tuple[Job, bool]:
        """Put a job into the queue.

        Args:
            spec: of the job.
            priority: from -1000 to 1000; the highest runs first.
            labels: by which the job can be found.
            idempotency_key: of this submission: the same submission sent twice makes one job.
            message: for people, such as a warning about the job's length.

        Returns:
            The job, and whether it is new.

        Raises:
            RequestError: if a priority, a label or the key cannot be stored.
            Conflict: if the key was used for another body.
        """
        submission = check_submission(spec, priority, labels, idempotency_key)
        with self._write_engine.begin() as connection:
            row, is_new = insert_job(connection, submission, message)
        if not is_new:
            check_same_submission(row, submission)
        return job_of(row), is_new

    def recover(
        self,
        job_id: str,
        spec: JobSpec,
        records: Iterable[RoundRecord],
        *,
        ended_at: datetime,
        succeeded: bool,
    ) -> bool:
        """Put back a job that the store has lost, as SUCCEEDED or as CANCELLED, which can be resumed.

        Args:
            job_id: the job.
            spec: of the job.
            records: of its rounds, from round 1 on.
            ended_at: when its last file was written.
            succeeded: whether it had ended with success.

        Returns:
            False, and nothing has changed, if the store has this job.
        """
        submission = check_submission(spec, 0, None, None)
        with self._write_engine.begin() as connection:
            return insert_recovered_job(
                connection, job_id, submission, records, ended_at=ended_at, succeeded=succeeded
            )

    def change_state(
        self,
        job_id: str,
        source: JobState | Collection[JobState],
        target: JobState,
        *,
        reason: FailureReason | None = None,
        message: str | None = None,
        ray_job_id: str | None = None,
    ) -> bool:
        """Compare and set: move a job to a state if it is in one of the source states.

        Args:
            job_id: the job.
            source: the state, or states, in which the caller expects the job.
            target: the state to enter.
            reason: of a failure; by default INTERNAL if the target is FAILED.
            message: for people.
            ray_job_id: the Ray job of the caller, which must be the job's own; None for no check.

        Returns:
            False, and nothing has changed, if the job is in another state, or has another Ray job.

        Raises:
            Conflict: if the transition table does not allow the change, or a reason comes without a failure.
            JobNotFound: if no job has this id.
        """
        # A state is a `str`, and every `str` is a collection of texts: test for `str` first.
        sources = {JobState(source)} if isinstance(source, str) else {JobState(s) for s in source}
        target = JobState(target)
        check_transition(sources, target)
        if reason is not None and target is not JobState.FAILED:
            raise Conflict(f"{target} takes no reason, and {reason} was given", "only FAILED has a reason")
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            if row["state"] not in sources or ray_job_id not in (None, get_ray_job_id(job_of(row))):
                return False
            enter_state(connection, row, target, reason, message)
        return True

    def start_next_job(self, most: int) -> Job | None:
        """Move the first job of the queue to STARTING, unless `most` jobs are active already.

        With any number of dispatchers no job is taken twice, jobs start in the order of the queue, and at
        most `most` jobs are active.

        Args:
            most: the most active jobs, this one included.
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
        lost_ray_job_id: str | None = None,
        ray_job_id: str | None = None,
        restarts_before: int | None = None,
    ) -> bool:
        """Compare and set: move a started job back to STARTING, to go on from its checkpoint.

        Args:
            job_id: the job.
            limit: the most restarts, this one included.
            message: the cause, for people.
            lost_ray_job_id: the Ray job that is gone, so that the job gets a new one; None if its runner goes
                on.
            ray_job_id: the Ray job of a runner that goes on; see `change_state`.
            restarts_before: the number of restarts before this one, so that a repeated call counts once;
                None for any.

        Returns:
            False if the job is not started, has another Ray job, or has had all its restarts. True also if an
            earlier call made this restart.

        Raises:
            JobNotFound: if no job has this id.
        """
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            if row["state"] not in STARTED or ray_job_id not in (None, get_ray_job_id(job_of(row))):
                return False
            if restarts_before not in (None, row["restarts"]):
                return bool(restarts_before == row["restarts"] - 1)
            if row["restarts"] >= limit or lost_ray_job_id not in (None, row["submission_id"]):
                return False
            overrides: dict[str, Any] = {}
            if lost_ray_job_id is None:
                # A runner that goes on stays the job's Ray job, even if the store does not have its id yet.
                overrides["submission_id"] = row["submission_id"] or ray_job_id
                overrides["heartbeat_at"] = row["heartbeat_at"]
            enter_state(connection, row, JobState.STARTING, None, message, **overrides)
        return True

    def resume(self, job_id: str, rounds: int | None = None) -> Job:
        """Put a job that has ended back into the queue, to go on from its checkpoint.

        Args:
            job_id: the job.
            rounds: its new number of rounds, with those before; None for the number that it has.

        Raises:
            Conflict, RequestError: as `resume_job`.
            JobNotFound: if no job has this id.
        """
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            resume_job(connection, row, rounds)
            return job_of(read_job_row(connection, job_id))

    def request_cancel(self, job_id: str) -> Job:
        """Cancel a job: at once if it waits, through CANCELLING if it runs; do nothing if it has ended.

        Raises:
            JobNotFound: if no job has this id.
        """
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            if row["state"] == JobState.QUEUED:
                enter_state(connection, row, JobState.CANCELLED, None, "cancelled before it started")
            elif row["state"] in STARTED:
                enter_state(connection, row, JobState.CANCELLING, None, None)
            return job_of(read_job_row(connection, job_id))

    def delete(self, job_id: str) -> None:
        """Remove a job with its rounds and events; the caller removes its files.

        Raises:
            Conflict: if the job has not ended.
            JobNotFound: if no job has this id.
        """
        with self._write_engine.begin() as connection:
            row = read_job_row(connection, job_id, lock=True)
            if row["state"] not in FINAL:
                raise Conflict(f"job {job_id} is {row['state']} and cannot be deleted", "cancel it first")
            connection.execute(delete(jobs).where(jobs.c.id == job_id))

    def add_round(self, job_id: str, record: RoundRecord) -> bool:
        """Write a round and its event, exactly once.

        A stored round is not changed; if the new digest differs, a warning event is written.

        Returns:
            Whether the round was new.

        Raises:
            Conflict: if the round is new and the job has ended.
            JobNotFound: if no job has this id.
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
        """Write a warning event of a job; if the job has ended, write nothing and return False.

        Raises:
            JobNotFound: if no job has this id.
        """
        with self._write_engine.begin() as connection:
            return write_warning(connection, read_job_row(connection, job_id, lock=True), text)

    def record_heartbeat(self, job_id: str) -> None:
        """Set `Job.heartbeat_at` to now; the runner of the job calls this while it lives.

        Raises:
            JobNotFound: if no job has this id.
        """
        self._update_job(job_id, heartbeat_at=datetime.now(UTC))

    def set_ray_job_id(self, job_id: str, ray_job_id: str, *, seen: Job | None = None) -> bool:
        """Compare and set: store the Ray job of a job.

        Args:
            job_id: the job.
            ray_job_id: the id of its Ray job.
            seen: the job as the caller read it, without a Ray job; None for no check.

        Returns:
            False, and nothing has changed, if the job now has a Ray job, or was restarted or resumed.

        Raises:
            JobNotFound: if no job has this id.
        """
        same = () if seen is None else make_unsubmitted_conditions(seen)
        return self._update_job(job_id, *same, submission_id=ray_job_id)

    def write_waiting_reasons(
        self, reasons: Mapping[str, str | None], others: str | None = None, placed: Collection[str] = ()
    ) -> None:
        """Write the waiting reasons of several jobs at once; skip jobs that no longer wait.

        Args:
            reasons: by job id.
            others: the reason of all other queued jobs; None leaves their reasons as they are.
            placed: further jobs that `others` does not apply to.
        """
        with self._write_engine.begin() as connection:
            write_waiting_reasons(connection, reasons, others, placed)

    def write_start_step(self, job_id: str, text: str) -> None:
        """Write what a STARTING job does, as its waiting reason; do nothing in other states.

        Raises:
            JobNotFound: if no job has this id.
        """
        self._update_job(job_id, jobs.c.state == JobState.STARTING, waiting=shorten_message(text))

    def _update_job(self, job_id: str, *where: ColumnElement[bool], **values: Any) -> bool:
        with self._write_engine.begin() as connection:
            change = update(jobs).where(jobs.c.id == job_id, *where).values(**values)
            if connection.execute(change).rowcount:
                return True
            read_job_row(connection, job_id)
        return False
