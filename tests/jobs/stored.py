"""Specs, and jobs and records in a store, for the tests of jobs."""

import json
from typing import Any

from jobs.spec import JobSpec, load_spec, parse_spec
from jobs.store.records import RoundRecord
from jobs.store.states import JobState

SPEC = parse_spec({"algorithm": "fedavg", "rounds": 3})


def record(number, digest="d", **metrics):
    return RoundRecord.model_validate(
        {
            "round": number,
            "digest": f"{digest}{number}",
            "cohort": 10,
            "seconds": {"total": 1.5},
            "bytes": {"down": 10, "up": 20, "by_payload": {"params": 20}},
            "metrics": metrics,
            "engine": {"pool": "serial", "threads": 1},
        }
    )


def running(store):
    job, _ = store.create(SPEC)
    store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
    return job.id


def spec(**fields: Any) -> JobSpec:
    """The demo with other values in these fields; `__` stands for a dot."""
    return load_spec("demo", [f"{path.replace('__', '.')}={json.dumps(v)}" for path, v in fields.items()])
