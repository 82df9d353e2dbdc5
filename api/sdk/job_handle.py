"""`JobHandle`: one job of a service."""

from __future__ import annotations

from api.sdk.async_job_handle import AsyncJobHandle, JobView
from api.sdk.rounds import Rounds
from api.sdk.transport.blocking import iterate_blocking, run_blocking
from jobs.store.records import Job

__all__ = ["JobHandle", "JobView", "Rounds"]


class JobHandle(JobView):
    """One job of a service; its methods block until the service has answered."""

    def __init__(self, awaited: AsyncJobHandle) -> None:
        self._awaited = awaited

    @property
    def job(self) -> Job:
        """The last answer about the job; `refresh()` asks again."""
        return self._awaited.job

    refresh = run_blocking(AsyncJobHandle.refresh)
    events = iterate_blocking(AsyncJobHandle.events)
    watch = iterate_blocking(AsyncJobHandle.watch)
    wait = run_blocking(AsyncJobHandle.wait)
    rounds = run_blocking(AsyncJobHandle.rounds)
    plot = run_blocking(AsyncJobHandle.plot)
    logs = run_blocking(AsyncJobHandle.logs)
    follow_logs = iterate_blocking(AsyncJobHandle.follow_logs)
    artifacts = run_blocking(AsyncJobHandle.artifacts)
    artifact = run_blocking(AsyncJobHandle.artifact)
    cancel = run_blocking(AsyncJobHandle.cancel)
    resume = run_blocking(AsyncJobHandle.resume)
    clone = run_blocking(AsyncJobHandle.clone, lambda awaited: JobHandle(awaited))
    delete = run_blocking(AsyncJobHandle.delete)
