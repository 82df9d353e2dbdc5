"""`SweepHandle` and `AsyncSweepHandle`: the jobs of one sweep."""

from __future__ import annotations

from api.sdk.async_job_handle import AsyncJobHandle
from api.sdk.job_handle import JobHandle
from api.sdk.sweeps import News, SweepView, refresh_sweep, wait_for_sweep
from api.sdk.transport.blocking import run_blocking
from api.sdk.transport.connection import Connection
from api.sdk.waiting import retry_while_away
from jobs.spec.sweep import Member, Sweep


class AsyncSweepHandle(SweepView):
    """The jobs of one sweep, for asyncio."""

    def __init__(self, connection: Connection, sweep: Sweep, members: list[Member]) -> None:
        super().__init__(sweep, members)
        self._connection = connection

    @property
    def jobs(self) -> list[AsyncJobHandle]:
        """The jobs of the last answer, in the order of the runs."""
        found = map(self.job_of, self.members)
        return [AsyncJobHandle(self._connection, job) for job in found if job is not None]

    async def refresh(self, *, patient: bool = False) -> None:
        """Ask the service for the jobs.

        Args:
            patient: repeat the question for up to a minute while the service does not answer.

        Raises:
            Unreachable: the service does not answer.
        """
        if patient:
            await retry_while_away(self._connection, lambda: refresh_sweep(self._connection, self))
        else:
            await refresh_sweep(self._connection, self)

    async def wait(self, timeout: float | None = None, *, news: News | None = None) -> bool:
        """Wait until every job has ended.

        Args:
            timeout: seconds; None waits as long as necessary.
            news: called with the sweep after each look at the jobs.

        Returns:
            Whether every run has succeeded.

        Raises:
            TimeoutError: a job has not ended in this time.
        """
        await wait_for_sweep(self._connection, self, timeout, news)
        return self.succeeded


class SweepHandle(SweepView):
    """The jobs of one sweep; its methods block until the service has answered."""

    def __init__(self, awaited: AsyncSweepHandle) -> None:
        super().__init__(awaited.sweep, awaited.members, awaited.found)
        self._awaited = awaited

    @property
    def jobs(self) -> list[JobHandle]:
        """The jobs of the last answer, in the order of the runs."""
        return [JobHandle(job) for job in self._awaited.jobs]

    refresh = run_blocking(AsyncSweepHandle.refresh)
    wait = run_blocking(AsyncSweepHandle.wait)
