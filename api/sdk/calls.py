"""Every request that the service understands, as plain values, and how to read its answer.

A `Call` says what to send and how to decode what comes back; it does no input or output itself.
`FedSimClient` sends calls with a blocking `httpx` client, `AsyncFedSimClient` with an asynchronous one;
whoever wants another way of sending them takes the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from api.sdk.artifact_file import Artifact
from api.sdk.refusals import fault
from fedsim.errors import FieldError
from jobs.store.records import Job, JobPage, RoundRecord

if TYPE_CHECKING:
    from jobs.local_ray.cluster import ClusterState
    from jobs.plan.plan import Plan

PREFIX = "/api/v1"

POSITION = "Log-Position"
"""The header that says where in a log an answer begins, in bytes."""

PLAN_PATIENCE = 330.0
"""Seconds to wait for a plan: the service itself gives up a little earlier."""

CHECK_PATIENCE = 330.0
"""Seconds to wait where a spec is looked over: the first look at a large data set decodes all of it."""

STREAM_SILENCE = 60.0
"""Seconds without a byte after which an event stream is taken for dead; the service speaks every 15."""

LOG_SILENCE = 45.0
"""Seconds without a line after which a log is asked for anew from where it stands: sooner than a proxy
hangs up, as many do after a silent minute."""

DOWNLOAD_SILENCE = 120.0
"""Seconds to wait for the next piece of a file; one on shared storage may be slow to begin."""

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how to read its answer.

    Attributes:
        method: the HTTP method.
        path: the path, prefix included.
        decode: makes the result of a successful answer.
        params: the query; entries that are None are left out.
        json: the body.
        headers: headers besides the token.
        retry: whether sending it twice does no more than sending it once.
        patience: seconds to wait for the answer, of a stream for each piece of it; None for what the client
            waits by default, for a stream as long as it takes.
    """

    method: str
    path: str
    decode: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    retry: bool = True
    patience: float | None = None

    def query(self) -> dict[str, Any]:
        """Give the parameters that are set."""
        return {name: value for name, value in self.params.items() if value is not None}


def _job_path(job_id: str, rest: str = "") -> str:
    return f"{PREFIX}/jobs/{quote(job_id, safe='')}{rest}"


def _job(response: httpx.Response) -> Job:
    return Job.model_validate_json(response.content)


def _page(response: httpx.Response) -> JobPage:
    return JobPage.model_validate_json(response.content)


def _rounds(response: httpx.Response) -> tuple[list[RoundRecord], int | None]:
    data = response.json()
    return [RoundRecord.model_validate(item) for item in data["rounds"]], data["next_after"]


def _artifacts(response: httpx.Response) -> list[Artifact]:
    return [Artifact.model_validate(item) for item in response.json()["artifacts"]]


def _cluster(response: httpx.Response) -> ClusterState:
    from jobs.local_ray.cluster import ClusterState  # few calls need it

    return ClusterState.model_validate_json(response.content)


def _plan(response: httpx.Response) -> Plan:
    from jobs.plan.plan import Plan  # few calls need it

    return Plan.model_validate_json(response.content)


def _faults(response: httpx.Response) -> list[FieldError]:
    return [fault(item) for item in response.json()["errors"]]


def _json(response: httpx.Response) -> Any:
    return response.json()


def _text(response: httpx.Response) -> str:
    return response.text


def _nothing(_: httpx.Response) -> None:
    return None


def submit(spec: Mapping[str, Any], priority: int, labels: Mapping[str, str], key: str) -> Call[Job]:
    """Queue a job. The key makes it safe to send the same submission again."""
    body = {"spec": dict(spec), "priority": priority, "labels": dict(labels)}
    headers = {"Idempotency-Key": key}
    return Call("POST", f"{PREFIX}/jobs", _job, json=body, headers=headers, patience=CHECK_PATIENCE)


def get_job(job_id: str) -> Call[Job]:
    """Look at a job."""
    return Call("GET", _job_path(job_id), _job)


def list_jobs(
    state: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    order_by: str | None = None,
    limit: int | None = None,
    page_token: str | None = None,
    *,
    algorithm: str | None = None,
    search: str | None = None,
) -> Call[JobPage]:
    """Look at one page of the jobs: in any of these states, with all of these labels."""
    filters = {"state": state, "label": label, "algorithm": algorithm, "search": search}
    params = {**filters, "order_by": order_by, "limit": limit, "page_token": page_token}
    return Call("GET", f"{PREFIX}/jobs", _page, params)


def cancel(job_id: str) -> Call[Job]:
    """Wish a job to end; to wish it twice changes nothing."""
    return Call("POST", _job_path(job_id, "/cancel"), _job)


def resume(job_id: str) -> Call[Job]:
    """Have a job that failed or was cancelled go on. Not retried: the second answer would be a conflict."""
    return Call("POST", _job_path(job_id, "/resume"), _job, retry=False)


def clone(
    job_id: str,
    fields: Mapping[str, Any],
    priority: int | None,
    labels: Mapping[str, str] | None,
    key: str,
) -> Call[Job]:
    """Queue a new job like another one, with some fields set. The key makes it safe to send it again."""
    own = {"priority": priority, "labels": None if labels is None else dict(labels)}
    body = {"set": dict(fields), **{name: value for name, value in own.items() if value is not None}}
    path, headers = _job_path(job_id, "/clone"), {"Idempotency-Key": key}
    return Call("POST", path, _job, json=body, headers=headers, patience=CHECK_PATIENCE)


def delete(job_id: str) -> Call[None]:
    """Forget a job that has ended. Not retried: the second answer would be that there is no such job."""
    return Call("DELETE", _job_path(job_id), _nothing, retry=False)


def rounds(job_id: str, after: int = 0) -> Call[tuple[list[RoundRecord], int | None]]:
    """Read the records of rounds above `after`; with them comes where to go on, or None at the end."""
    return Call("GET", _job_path(job_id, "/rounds"), _rounds, {"after": after})


def plan(spec: Mapping[str, Any]) -> Call[Plan]:
    """Have a spec measured: that takes minutes, and a second attempt would take them again."""
    return Call("POST", f"{PREFIX}/plan", _plan, json=dict(spec), retry=False, patience=PLAN_PATIENCE)


def check(spec: Mapping[str, Any]) -> Call[list[FieldError]]:
    """Have a spec looked over: gives its faults, none if it would be accepted."""
    return Call("POST", f"{PREFIX}/check", _faults, json=dict(spec), patience=CHECK_PATIENCE)


def events(job_id: str, after: int = 0) -> Call[None]:
    """Follow a job's events, from the one after `after`. A stream."""
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    return Call("GET", _job_path(job_id, "/events"), _nothing, headers=headers, patience=STREAM_SILENCE)


def logs(
    job_id: str, tail: int | None = None, follow: bool = False, position: int | None = None
) -> Call[str]:
    """Read the last lines of a job's log, or all from a position on. With `follow` a stream."""
    params = {"tail": tail, "follow": "true" if follow else None, "from": position}
    patience = LOG_SILENCE if follow else None
    return Call("GET", _job_path(job_id, "/logs"), _text, params, patience=patience)


def artifacts(job_id: str) -> Call[list[Artifact]]:
    """List the files that a job has left so far."""
    return Call("GET", _job_path(job_id, "/artifacts"), _artifacts)


def artifact(job_id: str, name: str) -> Call[None]:
    """Read one of these files. A stream."""
    path = _job_path(job_id, f"/artifacts/{quote(name, safe='')}")
    return Call("GET", path, _nothing, patience=DOWNLOAD_SILENCE)


def class_map(job_id: str) -> Call[dict[str, Any]]:
    """Who holds what: made when first asked for, which reads the data set."""
    return Call("GET", _job_path(job_id, "/class-map"), _json, patience=PLAN_PATIENCE)


def cluster() -> Call[ClusterState]:
    """Look at the nodes, what of them is free, and the actors of each job."""
    return Call("GET", f"{PREFIX}/cluster", _cluster)


def catalogue(kind: str) -> Call[list[dict[str, Any]]]:
    """List what a spec can name: kind is algorithms, models, datasets, partitions or presets."""
    return Call("GET", f"{PREFIX}/{kind}", _json)


def schema() -> Call[dict[str, Any]]:
    """Get the JSON schema of a spec."""
    return Call("GET", f"{PREFIX}/schema", _json)


def version() -> Call[dict[str, str]]:
    """Ask for the versions of the service and of what it stands on."""
    return Call("GET", "/version", _json)


def health() -> Call[dict[str, str]]:
    """Ask whether somebody is there, and who."""
    return Call("GET", "/healthz", _json, retry=False)


def readiness() -> Call[dict[str, str]]:
    """Ask whether jobs can run now."""
    return Call("GET", "/readyz", _json, retry=False)
