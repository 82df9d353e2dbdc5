"""What a runner writes down of a job that failed."""

from pathlib import Path

import pytest

from fedsim.errors import (
    ClientFailed,
    CohortFailed,
    DataError,
    DoesNotFit,
    MethodFailed,
    NodeLost,
    OutOfMemory,
    PoolFailed,
)
from jobs.runner import _fail
from jobs.spec import parse_spec
from jobs.states import FailureReason, JobState
from jobs.store import JobStore


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ClientFailed(3, "train", "KeyError: 'w'"), FailureReason.CLIENT_FAILED),
        (CohortFailed("all 10 clients of round 1 failed"), FailureReason.CLIENT_FAILED),
        (
            OutOfMemory("client 3 ran out of memory in train", "use fewer workers"),
            FailureReason.OUT_OF_MEMORY,
        ),
        (MemoryError("no more"), FailureReason.OUT_OF_MEMORY),
        (NodeLost("10.0.0.3", 1, "its heartbeat stopped"), FailureReason.NODE_LOST),
        (PoolFailed("the actor died 4 times"), FailureReason.NODE_LOST),
        (DoesNotFit("4 x 0.3 GPU asked, 1 GPU here"), FailureReason.DOES_NOT_FIT),
        (DataError("truncated"), FailureReason.BAD_DATA),
        (MethodFailed("FedAvg", "aggregate", "KeyError: 'w'", "line 7"), FailureReason.INTERNAL),
        (KeyError("odd"), FailureReason.INTERNAL),
    ],
)
def test_every_failure_has_its_reason_and_its_words(
    error: Exception, reason: FailureReason, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with JobStore.open(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        job_id = store.create(parse_spec({"algorithm": "fedavg"}))[0].id
        store.advance(job_id, JobState.QUEUED, JobState.STARTING)
        _fail(store, job_id, error)
        job = store.get(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, reason)
    assert job.message is not None
    assert str(error) in job.message
    assert getattr(error, "trace", "") in caplog.text
