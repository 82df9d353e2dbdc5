"""`FedSimClient`: the Python SDK.

Errors are those of `fedsim.errors`: a wrong spec raises `SpecError` with every fault, an unknown job
`JobNotFound`. A refusal without a class of its own is a `ServiceError`; a service that does not answer is
`Unreachable`.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from api.sdk.client_methods import ClientMethods
from api.sdk.job_handle import JobHandle
from api.sdk.started_service import DEFAULT_URL
from api.sdk.transport.blocking import iterate_blocking, run_blocking
from api.sdk.transport.connection import BaseClient
from api.sdk.transport.senders import BlockingSender, Sender

if TYPE_CHECKING:
    from api.sdk.sweep_handle import AsyncSweepHandle, SweepHandle

__all__ = ["DEFAULT_URL", "FedSimClient", "JobHandle"]


def _make_sweep_handle(awaited: AsyncSweepHandle) -> SweepHandle:
    from api.sdk.sweep_handle import SweepHandle  # imports the whole spec

    return SweepHandle(awaited)


class FedSimClient(BaseClient[httpx.BaseTransport]):
    """A client of a fedsim service; its methods block until the service has answered.

    Several threads may use one client.

    >>> from fedsim import FedSimClient
    >>> client = FedSimClient()  # the service that `fedsim list` finds
    >>> job = client.submit("demo", set={"rounds": 3})
    >>> for record in job.watch():  # the past rounds, then each round as it ends
    ...     print(f"round {record.round} of {job.job.rounds_total}")
    round 1 of 3
    round 2 of 3
    round 3 of 3
    >>> job.wait(timeout=600)
    <JobState.SUCCEEDED: 'SUCCEEDED'>
    >>> job.rounds()
    Rounds(3 records)
    >>> client.close()
    """

    def _make_sender(self, transport: httpx.BaseTransport | None, options: dict[str, Any]) -> Sender:
        return BlockingSender(transport, options)

    @property
    def _awaited(self) -> ClientMethods:
        return ClientMethods(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    close = run_blocking(ClientMethods.close)
    send = run_blocking(ClientMethods.send)
    submit = run_blocking(ClientMethods.submit, JobHandle)
    check = run_blocking(ClientMethods.check)
    plan = run_blocking(ClientMethods.plan)
    job = run_blocking(ClientMethods.job, JobHandle)
    jobs = iterate_blocking(ClientMethods.jobs, JobHandle)
    sweep = run_blocking(ClientMethods.sweep, _make_sweep_handle)
    compare = run_blocking(ClientMethods.compare)
    catalogue = run_blocking(ClientMethods.catalogue)
    algorithms = run_blocking(ClientMethods.algorithms)
    models = run_blocking(ClientMethods.models)
    datasets = run_blocking(ClientMethods.datasets)
    partitions = run_blocking(ClientMethods.partitions)
    samplers = run_blocking(ClientMethods.samplers)
    attacks = run_blocking(ClientMethods.attacks)
    aggregators = run_blocking(ClientMethods.aggregators)
    compressors = run_blocking(ClientMethods.compressors)
    optimizers = run_blocking(ClientMethods.optimizers)
    schedules = run_blocking(ClientMethods.schedules)
    fleets = run_blocking(ClientMethods.fleets)
    policies = run_blocking(ClientMethods.policies)
    presets = run_blocking(ClientMethods.presets)
    schema = run_blocking(ClientMethods.schema)
    cluster = run_blocking(ClientMethods.cluster)
    version = run_blocking(ClientMethods.version)
