"""`SweepHandle` and its asynchronous twin: a group of jobs, seen from a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.sdk.async_job_handle import AsyncJobHandle
from api.sdk.job_handle import JobHandle
from api.sdk.sweeps import News, SweepView, look, wait_for_all
from jobs.spec.sweep import Member, Sweep

if TYPE_CHECKING:
    from api.sdk.async_client import AsyncFedSimClient
    from api.sdk.client import FedSimClient


class SweepHandle(SweepView):
    """The jobs of one sweep."""

    def __init__(self, client: FedSimClient, sweep: Sweep, members: list[Member]) -> None:
        super().__init__(sweep, members)
        self._client = client

    @property
    def jobs(self) -> list[JobHandle]:
        """The jobs, as they were when last heard of, in the order of the runs."""
        found = map(self.job_of, self.members)
        return [JobHandle(self._client, job) for job in found if job is not None]

    def refresh(self) -> None:
        """Ask the service how the jobs stand."""
        self._client.drive(look(self))

    def wait(self, timeout: float | None = None, *, news: News | None = None) -> bool:
        """Wait until every job has ended.

        Args:
            timeout: seconds; None waits for as long as it takes.
            news: is shown the sweep whenever it has been looked at.

        Returns:
            Whether every run has succeeded.

        Raises:
            TimeoutError: the time is over and jobs have not ended.
        """
        self._client.drive(wait_for_all(self, timeout, news))
        return self.succeeded


class AsyncSweepHandle(SweepView):
    """The jobs of one sweep; each method does what the one of `SweepHandle` with its name does."""

    def __init__(self, client: AsyncFedSimClient, sweep: Sweep, members: list[Member]) -> None:
        super().__init__(sweep, members)
        self._client = client

    @property
    def jobs(self) -> list[AsyncJobHandle]:
        """The jobs, as they were when last heard of, in the order of the runs."""
        found = map(self.job_of, self.members)
        return [AsyncJobHandle(self._client, job) for job in found if job is not None]

    async def refresh(self) -> None:
        """Ask the service how the jobs stand."""
        await self._client.drive(look(self))

    async def wait(self, timeout: float | None = None, *, news: News | None = None) -> bool:
        """Wait until every job has ended; see `SweepHandle.wait`.

        Raises:
            TimeoutError: the time is over and jobs have not ended.
        """
        await self._client.drive(wait_for_all(self, timeout, news))
        return self.succeeded
