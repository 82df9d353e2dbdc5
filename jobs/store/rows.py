"""Functions on rows of the store, inside a transaction that the caller has begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Update, and_, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from fedsim.errors import Conflict, FieldError, JobNotFound, RequestError
from jobs.spec.cloning import set_last_round
from jobs.spec.submission import CheckedSubmission, new_job_id, read_creation_time
from jobs.store.records import EventType, Job, JobEvent, RoundRecord
from jobs.store.states import FINAL, RESUMABLE, STARTED, FailureReason, JobState
from jobs.store.tables import events, jobs, labels, rounds
from jobs.store.totals import add_to_totals, start_totals

INSERTS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
)
"""By database: the insert that can skip a conflicting row."""

_JOB = select(jobs).where(jobs.c.id == bindparam("job"))
_LOCKED_JOB = _JOB.with_for_update()
_DIGEST = select(rounds.c.digest).where(
    and_(rounds.c.job_id == bindparam("job"), rounds.c.round == bindparam("number"))
)
"""Statements of every round, built once: each would take longer to build than to run."""

MOST_MESSAGE = 10_000
"""The most characters of a message for people: a list of jobs has the messages of hundreds of jobs."""

STAMPS = MappingProxyType({JobState.STARTING: "submitted_at", JobState.RUNNING: "started_at"})
"""The time column that is set when a job first enters a state; a final state sets `finished_at`."""


def job_of(row: RowMapping) -> Job:
    """Make a job from its row: each field is the column of its name."""
    return Job.model_validate({name: row[name] for name in Job.model_fields})


def event_of(row: RowMapping) -> JobEvent:
    """Make an event from its row, which is joined with the record of the event's round."""
    data = row["data"] if row["record"] is None else row["record"]
    return JobEvent(id=row["id"], job_id=row["job_id"], type=row["type"], data=data, at=row["at"])


def make_storable(text: str) -> str:
    """Return the text without characters that PostgreSQL or UTF-8 cannot hold."""
    return text.replace("\0", "").encode(errors="replace").decode()


def shorten_message(text: str) -> str:
    """Return a message as the store keeps it: without its middle if it is very long, as errors with data."""
    half = MOST_MESSAGE // 2
    return make_storable(text if len(text) <= MOST_MESSAGE else f"{text[:half]} … {text[-half:]}")


def make_no_such_job_error(job_id: str) -> JobNotFound:
    """Make the error for an id that no job has."""
    return JobNotFound(f"no job has the id {job_id[:80]!r}", "`fedsim list` shows the jobs with their ids")


def read_job_row(connection: Connection, job_id: str, *, lock: bool = False) -> RowMapping:
    """Read the row of a job; with `lock`, lock it until the transaction ends.

    Raises:
        JobNotFound: if no job has this id.
    """
    # PostgreSQL raises an error for a comparison with a text that it cannot hold.
    row = None
    if job_id == make_storable(job_id):
        query = _LOCKED_JOB if lock else _JOB
        row = connection.execute(query, {"job": job_id}).mappings().one_or_none()
    if row is None:
        raise make_no_such_job_error(job_id)
    return row


def make_unsubmitted_conditions(seen: Job) -> tuple[ColumnElement[bool], ...]:
    """Make the conditions: the job has no Ray job, and was not restarted or resumed since it was read."""
    return jobs.c.submission_id.is_(None), jobs.c.restarts == seen.restarts, jobs.c.resumes == seen.resumes


def find_job_by_key(connection: Connection, key: str) -> RowMapping | None:
    """Return the row of the job with this idempotency key; None if there is none."""
    return connection.execute(select(jobs).where(jobs.c.idempotency_key == key)).mappings().one_or_none()


def check_same_submission(row: RowMapping, submission: CheckedSubmission) -> None:
    """Check that a row with the submission's key also has its body.

    Raises:
        Conflict: if the row has another body.
    """
    if not submission.has_hash(row["body_hash"]):
        raise Conflict(
            f"the Idempotency-Key {submission.idempotency_key!r} belongs to another request, job {row['id']}",
            "use a new key for a new request",
        )


def insert_job(
    connection: Connection, submission: CheckedSubmission, message: str | None
) -> tuple[RowMapping, bool]:
    """Insert a job, or find the job with its idempotency key; return its row, and whether it is new."""
    insert_or_not = INSERTS[connection.dialect.name](jobs).on_conflict_do_nothing().returning(jobs.c.id)
    while True:
        now = datetime.now(UTC)
        job_id = new_job_id(now)
        new = {**_make_job_row(job_id, submission, now), "message": message}
        if connection.execute(insert_or_not, new).scalar() is not None:
            break
        if submission.idempotency_key is not None:
            row = find_job_by_key(connection, submission.idempotency_key)
            if row is not None:
                return row, False
        # Not inserted, and no job with this key: the random id exists already. Draw again.
    if submission.labels:
        pairs = submission.labels.items()
        connection.execute(insert(labels), [{"job_id": job_id, "key": k, "value": v} for k, v in pairs])
    row = read_job_row(connection, job_id)
    write_event(connection, row, "state", _make_state_data(row, JobState.QUEUED, None))
    return read_job_row(connection, job_id), True


def insert_recovered_job(
    connection: Connection,
    job_id: str,
    submission: CheckedSubmission,
    records: Iterable[RoundRecord],
    *,
    ended_at: datetime,
    succeeded: bool,
) -> bool:
    """Insert a job that the store has lost, in a final state; return False if the store has it."""
    created_at = read_creation_time(job_id)
    row = _make_job_row(job_id, submission, created_at)
    insert_or_not = INSERTS[connection.dialect.name](jobs).on_conflict_do_nothing().returning(jobs.c.id)
    if connection.execute(insert_or_not, row).scalar() is None:
        return False
    for state in (JobState.STARTING, JobState.RUNNING):
        now = read_job_row(connection, job_id)
        enter_state(connection, now, state, None, None, **{STAMPS[state]: created_at})
    for record in records:
        insert_round(connection, read_job_row(connection, job_id), record)
    final = JobState.SUCCEEDED if succeeded else JobState.CANCELLED
    message = "recovered from the folder of the job"
    enter_state(connection, read_job_row(connection, job_id), final, None, message, finished_at=ended_at)
    return True


def _make_job_row(job_id: str, submission: CheckedSubmission, now: datetime) -> dict[str, Any]:
    spec = submission.spec
    return {
        "id": job_id,
        "name": spec.name,
        "algorithm": spec.algorithm.name,
        "state": JobState.QUEUED.value,
        "priority": submission.priority,
        "labels": submission.labels,
        "spec": spec.model_dump(mode="json"),
        "rounds_total": spec.rounds,
        "rounds_done": 0,
        "last_metrics": {},
        "restarts": 0,
        "resumes": 0,
        "idempotency_key": submission.idempotency_key,
        "body_hash": submission.body_hash(),
        "events": 0,
        "created_at": now,
    }


def enter_state(
    connection: Connection,
    row: RowMapping,
    target: JobState,
    reason: FailureReason | None,
    message: str | None,
    **overrides: Any,
) -> None:
    """Move a locked job into a state: set its times and restarts, and write its event; `overrides` win."""
    if target is JobState.FAILED:
        reason = reason or FailureReason.INTERNAL
    message = None if message is None else shorten_message(message)
    changes: dict[str, Any] = {"state": target.value, "reason": reason, "message": message, "waiting": None}
    stamp = "finished_at" if target in FINAL else STAMPS.get(target)
    if stamp and row[stamp] is None:
        changes[stamp] = overrides.get(stamp) or datetime.now(UTC)
        if stamp == "submitted_at":
            start_totals(connection, row, changes[stamp])
    if row["state"] in STARTED and target is JobState.STARTING:
        # A restart is a new Ray job with a new id, unless the runner itself goes on (see `overrides`).
        changes |= {"restarts": row["restarts"] + 1, "submission_id": None, "heartbeat_at": None}
    if row["state"] in FINAL and target is JobState.QUEUED:
        changes |= {"restarts": 0, "resumes": row["resumes"] + 1, "finished_at": None}
        changes |= {"submission_id": None, "heartbeat_at": None, "started_at": None}
        _reopen_last_event(connection, row)
    data = _make_state_data(row, target, row["state"]) | {"reason": reason, "message": message}
    write_event(connection, row, "state", data, **changes | overrides)


def resume_job(connection: Connection, row: RowMapping, rounds: int | None) -> None:
    """Put a locked job that has ended back into the queue.

    Args:
        connection: of the transaction.
        row: of the job.
        rounds: the last round from now on; None for that of the job. See `set_last_round`.

    Raises:
        Conflict: if the job has not ended, or has succeeded and gets no number of rounds.
        RequestError: with path `rounds`, if the job has these rounds already.
    """
    if row["state"] not in (RESUMABLE if rounds is None else FINAL):
        hint = f"{' or '.join(sorted(RESUMABLE))} can be; with a higher number of rounds SUCCEEDED too"
        raise Conflict(f"job {row['id']} is {row['state']} and cannot be resumed", hint)
    message, changes = None, dict[str, Any]()
    if rounds is not None:
        done = row["rounds_done"]
        if rounds <= done:
            text, hint = f"job {row['id']} has {done} rounds already", "give it a higher number"
            raise RequestError([FieldError("rounds", rounds, text, hint)])
        message = f"resumed with {rounds:,} rounds, after {done:,} of {row['rounds_total']:,}"
        spec = set_last_round(row["spec"], rounds)
        changes = {"spec": spec, "rounds_total": spec["rounds"]}
    enter_state(connection, row, JobState.QUEUED, None, message, **changes)


def _reopen_last_event(connection: Connection, row: RowMapping) -> None:
    """Mark the last event, the job's end, as not terminal: readers of a resumed job must not stop there."""
    last = and_(events.c.job_id == row["id"], events.c.id == row["events"])
    data = connection.execute(select(events.c.data).where(last)).scalar_one()
    connection.execute(update(events).where(last).values(data={**data, "terminal": False}))


def _make_state_data(row: RowMapping, state: JobState, previous: str | None) -> dict[str, Any]:
    return {
        "state": state.value,
        "previous": previous,
        "reason": row["reason"],
        "message": row["message"],
        "terminal": state in FINAL,
    }


def write_event(
    connection: Connection,
    row: RowMapping,
    kind: EventType,
    data: dict[str, Any],
    *,
    round_number: int | None = None,
    **changes: Any,
) -> None:
    """Write the next event of a locked job, and the changes of the job's row that belong to it."""
    number, job_id = row["events"] + 1, row["id"]
    new = {f"new_{name}": value for name, value in {"events": number, **changes}.items()}
    connection.execute(_make_job_update(tuple(sorted(changes))), new | {"job": job_id})
    event = {"job_id": job_id, "id": number, "type": kind, "round": round_number, "data": data}
    connection.execute(insert(events), event | {"at": datetime.now(UTC)})


@lru_cache(maxsize=64)
def _make_job_update(names: tuple[str, ...]) -> Update:
    """Make the statement that sets `events` and these columns of a job; built once, as those above."""
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in ("events", *names)}
    return update(jobs).where(jobs.c.id == bindparam("job")).values(values)


def has_round(connection: Connection, row: RowMapping, record: RoundRecord) -> bool:
    """Return whether a locked job has this round; write a warning if its stored digest differs."""
    digest = connection.execute(_DIGEST, {"job": row["id"], "number": record.round}).scalar()
    if digest not in (None, record.digest):
        text = f"round {record.round} came again with another result"
        write_warning(connection, row, f"{text}: digest {digest} stays, {record.digest} is ignored")
    return digest is not None


def insert_round(connection: Connection, row: RowMapping, record: RoundRecord) -> None:
    """Write a round of a locked job, with its event."""
    data = record.model_dump(mode="json")
    key = {"job_id": row["id"], "round": record.round}
    connection.execute(insert(rounds), key | {"digest": record.digest, "record": data})
    add_to_totals(connection, row["id"], record)
    done, metrics = row["rounds_done"] + 1, row["last_metrics"] | data["metrics"]
    if record.end is not None:
        # The result may be of an earlier round.
        metrics |= data["end"]["metrics"]
    write_event(
        connection, row, "round", {}, round_number=record.round, rounds_done=done, last_metrics=metrics
    )


def write_warning(connection: Connection, row: RowMapping, text: str) -> bool:
    """Write a warning event of a locked job; write none after the final state, whose event is the last."""
    if row["state"] in FINAL:
        return False
    write_event(connection, row, "warning", {"message": shorten_message(text)})
    return True
