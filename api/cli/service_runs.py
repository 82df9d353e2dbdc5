"""The runs of a result table as jobs of a service: one group of jobs, as `fedsim sweep` submits it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from api.sdk.client import FedSimClient
from api.sdk.transport.followers import is_temporary
from fedsim.errors import FedsimError
from jobs.grid.one_run import make_entry
from jobs.grid.runner import EndedRun
from jobs.grid.table import Table
from jobs.spec.sweep import Member
from jobs.store.records import Job
from jobs.store.states import FINAL, JobState

PAUSE = 2.0
"""Seconds between two looks at the jobs."""


def run_on_service(table: Table, missing: Sequence[Member], client: FedSimClient) -> Iterator[EndedRun]:
    """Submit runs as jobs, continue those that failed or were cancelled, and read their rounds as they end.

    A second call finds the jobs of the first one.

    Yields:
        Each run with its entry, or with the reason of its failure.
    """
    needed = {member.spec_hash for member in missing}
    known = {member.spec_hash for member in table.runs()} - needed
    group = client.sweep(table.sweep, resume=True, skip=known)
    while needed:
        for member in group.members:
            job = group.job_of(member)
            if member.spec_hash in needed and (job is None or job.state in FINAL):
                ended = _read_ended_run(table, member, job, client)
                if ended is None:
                    break  # the service does not answer: the next look waits for it
                needed.remove(member.spec_hash)
                yield ended
        if needed:
            time.sleep(PAUSE)
            group.refresh(patient=True)


def _read_ended_run(table: Table, member: Member, job: Job | None, client: FedSimClient) -> EndedRun | None:
    """Read the rounds of a run; None if the service does not answer for now."""
    if job is None:
        return EndedRun(member, "its job was deleted")
    if job.state is not JobState.SUCCEEDED:
        return EndedRun(member, f"job {job.id} {job.state}: {job.message or ''}")
    try:
        return EndedRun(member, make_entry(member, table, client.job(job.id).rounds()))
    except FedsimError as error:
        if is_temporary(error):
            return None
        return EndedRun(member, f"job {job.id}: {error}")
