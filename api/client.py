"""`FedSimClient`: the Python SDK.

    >>> from fedsim import FedSimClient                                     # doctest: +SKIP
    >>> client = FedSimClient("http://127.0.0.1:8000")
    >>> job = client.submit("demo", set={"rounds": 5})
    >>> for record in job.watch():
    ...     print(record.round, record.metrics.get("global_accuracy"))
    >>> job.wait(timeout=600)
    >>> job.rounds().to_csv("demo.csv")

Errors are those of `fedsim.errors`: a wrong spec raises `SpecError` with every fault, an unknown job
`JobNotFound`, and so on; what has no name of its own is a `ServiceError`, and silence is `Unreachable`.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx

from api import calls
from api.addresses import is_loopback
from api.calls import Call
from api.job_handle import JobHandle
from fedsim.errors import Unreachable

if TYPE_CHECKING:
    from jobs.plan import Plan
    from jobs.spec import JobSpec

__all__ = ["DEFAULT_URL", "FedSimClient", "JobHandle"]

DEFAULT_URL = "http://127.0.0.1:8000"

RETRY_STATUSES = frozenset({429, 502, 503, 504})
PAUSES = (0.2, 0.5, 1.0)
"""Seconds to wait before the second, third and fourth attempt of a call that may be repeated."""

STREAM_SILENCE = 60.0
"""Seconds without a byte after which a stream is taken for dead; the service says something every 15."""

T = TypeVar("T")


class FedSimClient:
    """A connection to a fedsim service.

    Args:
        url: where the service is; by default `FEDSIM_URL`, else http://127.0.0.1:8000.
        token: the service's token, where it asks for one; by default `FEDSIM_TOKEN`.
        timeout: seconds to wait for one answer.
        transport: an httpx transport to use instead of the network.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = (url or os.environ.get("FEDSIM_URL") or DEFAULT_URL).rstrip("/")
        token = token or os.environ.get("FEDSIM_TOKEN")
        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout,
            transport=transport,
            # A proxy of the environment cannot know what runs on this machine.
            trust_env=not is_loopback(httpx.URL(self.url).host),
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )

    def __repr__(self) -> str:
        return f"FedSimClient({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the client cannot be used afterwards."""
        self._http.close()

    def submit(
        self,
        spec: str | Path | Mapping[str, Any] | JobSpec,
        *,
        set: Mapping[str, Any] | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> JobHandle:
        """Queue a job.

        Args:
            spec: the name of a preset, the path of a YAML or JSON file, a mapping, or a `JobSpec`.
            set: fields of the spec to set on top, by dotted path: `{"rounds": 3, "local.lr": 0.05}`.
            priority: higher ones leave the queue first.
            labels: names and values to find the job by.
            idempotency_key: submissions with the same key are one job; by default a new key for each call.

        Raises:
            SpecError: the spec is wrong; holds every fault.
            DoesNotFit: what it asks for can never be placed on the service's cluster.
            Conflict: the key was used before, for something else.
        """
        key = idempotency_key or uuid.uuid4().hex
        return JobHandle(self, self.send(calls.submit(_as_mapping(spec, set), priority, labels or {}, key)))

    def plan(
        self, spec: str | Path | Mapping[str, Any] | JobSpec, *, set: Mapping[str, Any] | None = None
    ) -> Plan:
        """Have a spec measured where it would run; takes from half a minute to five minutes.

        Args:
            spec: as for `submit`.
            set: as for `submit`.

        Returns:
            What it needs and what it will take; `fits` is False where the cluster cannot hold it.

        Raises:
            SpecError: the spec is wrong; holds every fault.
        """
        return self.send(calls.plan(_as_mapping(spec, set)))

    def job(self, job_id: str) -> JobHandle:
        """Get a job by its id.

        Raises:
            JobNotFound: there is none.
        """
        return JobHandle(self, self.send(calls.get_job(job_id)))

    def jobs(
        self, *, state: str | None = None, label: str | None = None, order_by: str = "-created_at"
    ) -> Iterator[JobHandle]:
        """List jobs, page by page as they are asked for.

        Args:
            state: only those in this state.
            label: only those with this label, `name=value`.
            order_by: a field of the job; with `-` in front the largest first.
        """
        page_token: str | None = None
        while True:
            page = self.send(calls.list_jobs(state, label, order_by, page_token=page_token))
            yield from (JobHandle(self, job) for job in page.jobs)
            page_token = page.next_page_token
            if page_token is None:
                return

    def catalogue(self, kind: str) -> list[dict[str, Any]]:
        """List what a spec can name.

        Args:
            kind: algorithms, models, datasets, partitions or presets.
        """
        return self.send(calls.catalogue(kind))

    def algorithms(self) -> list[dict[str, Any]]:
        """List the methods, each with the JSON schema of its parameters."""
        return self.catalogue("algorithms")

    def models(self) -> list[dict[str, Any]]:
        """List the models, each with the JSON schema of its parameters."""
        return self.catalogue("models")

    def datasets(self) -> list[dict[str, Any]]:
        """List the data sets, each with the JSON schema of its parameters and where its files are sought."""
        return self.catalogue("datasets")

    def partitions(self) -> list[dict[str, Any]]:
        """List the ways to deal a data set out to clients, each with the JSON schema of its parameters."""
        return self.catalogue("partitions")

    def presets(self) -> list[dict[str, Any]]:
        """List the specs that come with the service."""
        return self.catalogue("presets")

    def schema(self) -> dict[str, Any]:
        """Get the JSON schema of a spec."""
        return self.send(calls.schema())

    def version(self) -> dict[str, str]:
        """Ask for the versions of the service and of what it stands on."""
        return self.send(calls.version())

    def send(self, call: Call[T]) -> T:
        """Send one call, again after a pause where that is safe and the failure may pass.

        Raises:
            FedsimError: the service refuses; see `api.calls.ERRORS`.
            Unreachable: nobody answers.
        """
        for pause in (*(PAUSES if call.retry else ()), None):
            try:
                response = self._http.send(self._request(call))
            except httpx.TransportError as error:
                if pause is None:
                    raise self._unreachable(error) from error
            else:
                if response.is_success:
                    return call.decode(response)
                if pause is None or response.status_code not in RETRY_STATUSES:
                    raise calls.error_of(response)
            time.sleep(pause)
        raise AssertionError("unreachable: the last attempt returns or raises")

    @contextmanager
    def stream(self, call: Call[Any]) -> Iterator[httpx.Response]:
        """Open a stream: one attempt, whose answer is read as it comes.

        Raises:
            FedsimError: the service refuses.
            httpx.TransportError: the connection failed, or was lost on the way.
        """
        request = self._request(call)
        request.extensions["timeout"] = httpx.Timeout(10.0, read=STREAM_SILENCE).as_dict()
        response = self._http.send(request, stream=True)
        try:
            if not response.is_success:
                response.read()
                raise calls.error_of(response)
            yield response
        finally:
            response.close()

    def _request(self, call: Call[Any]) -> httpx.Request:
        timeout = self._http.timeout
        if call.patience is not None:
            timeout = httpx.Timeout(**{**timeout.as_dict(), "read": call.patience})
        return self._http.build_request(
            call.method,
            call.path,
            params=call.query(),
            json=call.json,
            headers=dict(call.headers),
            timeout=timeout,
        )

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"no service answers at {self.url}: {error}",
            "start one with `fedsim serve`, or name it with --url",
        )


def _as_mapping(
    spec: str | Path | Mapping[str, Any] | JobSpec, settings: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    # jobs.spec is imported here because most uses of the client never need it.
    from jobs.spec import JobSpec, apply_overrides, load_spec

    overrides = [
        f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in (settings or {}).items()
    ]
    if isinstance(spec, str | Path):
        return load_spec(spec, overrides).model_dump(mode="json", exclude_unset=True)
    if isinstance(spec, JobSpec):
        spec = spec.model_dump(mode="json", exclude_unset=True)
    return apply_overrides(spec, overrides) if overrides else spec
