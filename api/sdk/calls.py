"""Every request of the service's API as a `Call`: a plain value with the request and a decoder of its answer.

A call does no input or output itself. `client.send(calls.readiness())` sends one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from api.sdk.artifact_file import Artifact
from api.sdk.refusals import read_fault
from fedsim.errors import FieldError
from jobs.store.records import Job, JobPage, RoundRecord

if TYPE_CHECKING:
    from jobs.local_ray.cluster import ClusterState
    from jobs.plan.plan import Plan

PREFIX = "/api/v1"

POSITION = "Log-Position"
"""The header with the position in the log, in bytes, at which an answer begins."""

PLAN_PATIENCE = 330.0
"""Seconds to wait for a plan; the service gives up a little earlier."""

CHECK_PATIENCE = 330.0
"""Seconds to wait for the check of a spec; the first check with a large data set decodes the whole set."""

STREAM_SILENCE = 60.0
"""Seconds without a byte after which an event stream counts as broken; the service sends one every 15 s."""

LOG_SILENCE = 45.0
"""Seconds without a line after which a follower of a log connects again. Many proxies close a connection
that is silent for a minute."""

DOWNLOAD_SILENCE = 120.0
"""Seconds to wait for the next block of a file; shared storage may be slow to begin."""

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and the decoder of its answer.

    Attributes:
        method: the HTTP method.
        path: the path, prefix included.
        decode: makes the result of a successful answer.
        params: the query; an entry that is None is left out.
        json: the body.
        headers: headers besides the token.
        retry: whether two requests have the same effect as one.
        patience: seconds to wait for the answer, or for each block of a stream. None means the client's
            timeout, and for a stream no limit.
    """

    method: str
    path: str
    decode: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    retry: bool = True
    patience: float | None = None

    def query_params(self) -> dict[str, Any]:
        """Give the parameters that are not None."""
        return {name: value for name, value in self.params.items() if value is not None}


def _job_path(job_id: str, rest: str = "") -> str:
    return f"{PREFIX}/jobs/{quote(job_id, safe='')}{rest}"


def _decode_job(response: httpx.Response) -> Job:
    return Job.model_validate_json(response.content)


def _decode_page(response: httpx.Response) -> JobPage:
    return JobPage.model_validate_json(response.content)


def _decode_rounds(response: httpx.Response) -> tuple[list[RoundRecord], int | None]:
    data = response.json()
    return [RoundRecord.model_validate(item) for item in data["rounds"]], data["next_after"]


def _decode_artifacts(response: httpx.Response) -> list[Artifact]:
    return [Artifact.model_validate(item) for item in response.json()["artifacts"]]


def _decode_cluster(response: httpx.Response) -> ClusterState:
    from jobs.local_ray.cluster import ClusterState  # few calls need it

    return ClusterState.model_validate_json(response.content)


def _decode_plan(response: httpx.Response) -> Plan:
    from jobs.plan.plan import Plan  # few calls need it

    return Plan.model_validate_json(response.content)


def _decode_faults(response: httpx.Response) -> list[FieldError]:
    return [read_fault(item) for item in response.json()["errors"]]


def _decode_json(response: httpx.Response) -> Any:
    return response.json()


def _decode_text(response: httpx.Response) -> str:
    return response.text


def _ignore_body(_: httpx.Response) -> None:
    return None


def submit(spec: Mapping[str, Any], priority: int, labels: Mapping[str, str], key: str) -> Call[Job]:
    """Queue a job; the key makes it safe to repeat the request."""
    body = {"spec": dict(spec), "priority": priority, "labels": dict(labels)}
    headers = {"Idempotency-Key": key}
    return Call("POST", f"{PREFIX}/jobs", _decode_job, json=body, headers=headers, patience=CHECK_PATIENCE)


def get_job(job_id: str) -> Call[Job]:
    """Get a job."""
    return Call("GET", _job_path(job_id), _decode_job)


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
    """Get one page of the jobs: in one of these states, with all of these labels."""
    filters = {"state": state, "label": label, "algorithm": algorithm, "search": search}
    params = {**filters, "order_by": order_by, "limit": limit, "page_token": page_token}
    return Call("GET", f"{PREFIX}/jobs", _decode_page, params)


def cancel(job_id: str) -> Call[Job]:
    """Cancel a job; a second request changes nothing."""
    return Call("POST", _job_path(job_id, "/cancel"), _decode_job)


def resume(job_id: str, rounds: int | None = None) -> Call[Job]:
    """Continue a job that has ended. Not repeated: the second answer would be a conflict."""
    body = None if rounds is None else {"rounds": rounds}
    path = _job_path(job_id, "/resume")
    return Call("POST", path, _decode_job, json=body, retry=False, patience=CHECK_PATIENCE if body else None)


def clone(
    job_id: str,
    fields: Mapping[str, Any],
    priority: int | None,
    labels: Mapping[str, str] | None,
    key: str,
) -> Call[Job]:
    """Queue a new job with the changed spec of another job; the key makes it safe to repeat the request."""
    own = {"priority": priority, "labels": None if labels is None else dict(labels)}
    body = {"set": dict(fields), **{name: value for name, value in own.items() if value is not None}}
    path, headers = _job_path(job_id, "/clone"), {"Idempotency-Key": key}
    return Call("POST", path, _decode_job, json=body, headers=headers, patience=CHECK_PATIENCE)


def delete(job_id: str) -> Call[None]:
    """Delete a job that has ended. Not repeated: the second answer would be JOB_NOT_FOUND."""
    return Call("DELETE", _job_path(job_id), _ignore_body, retry=False)


def rounds(job_id: str, after: int = 0) -> Call[tuple[list[RoundRecord], int | None]]:
    """Get one page of the rounds above `after`, and the `after` of the next page, None for the last page."""
    return Call("GET", _job_path(job_id, "/rounds"), _decode_rounds, {"after": after})


def plan(spec: Mapping[str, Any]) -> Call[Plan]:
    """Measure a spec. Not repeated: each attempt takes minutes."""
    return Call("POST", f"{PREFIX}/plan", _decode_plan, json=dict(spec), retry=False, patience=PLAN_PATIENCE)


def check(spec: Mapping[str, Any]) -> Call[list[FieldError]]:
    """Check a spec: get all its faults, an empty list for a valid spec."""
    return Call("POST", f"{PREFIX}/check", _decode_faults, json=dict(spec), patience=CHECK_PATIENCE)


def events(job_id: str, after: int = 0) -> Call[None]:
    """Follow the events of a job above the id `after`. A stream."""
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    return Call("GET", _job_path(job_id, "/events"), _ignore_body, headers=headers, patience=STREAM_SILENCE)


def logs(
    job_id: str, tail: int | None = None, follow: bool = False, position: int | None = None
) -> Call[str]:
    """Get the last lines of a job's log, or all lines from a position. A stream if `follow` is true."""
    params = {"tail": tail, "follow": "true" if follow else None, "from": position}
    patience = LOG_SILENCE if follow else None
    return Call("GET", _job_path(job_id, "/logs"), _decode_text, params, patience=patience)


def artifacts(job_id: str) -> Call[list[Artifact]]:
    """List the files of a job."""
    return Call("GET", _job_path(job_id, "/artifacts"), _decode_artifacts)


def artifact(job_id: str, name: str) -> Call[None]:
    """Get one file of a job. A stream."""
    path = _job_path(job_id, f"/artifacts/{quote(name, safe='')}")
    return Call("GET", path, _ignore_body, patience=DOWNLOAD_SILENCE)


def class_map(job_id: str) -> Call[dict[str, Any]]:
    """Get the number of examples of each class at each client; the first request reads the data set."""
    return Call("GET", _job_path(job_id, "/class-map"), _decode_json, patience=PLAN_PATIENCE)


def cluster() -> Call[ClusterState]:
    """Get the nodes, their free CPUs and GPUs, and the actors of each job."""
    return Call("GET", f"{PREFIX}/cluster", _decode_cluster)


def catalogue(kind: str, purpose: str | None = None) -> Call[list[dict[str, Any]]]:
    """List the names that a spec can use; `kind` is for example algorithms, models or presets.

    `purpose` selects algorithms.
    """
    return Call("GET", f"{PREFIX}/{kind}", _decode_json, params={"for": purpose})


def schema() -> Call[dict[str, Any]]:
    """Get the JSON schema of a spec."""
    return Call("GET", f"{PREFIX}/schema", _decode_json)


def version() -> Call[dict[str, str]]:
    """Get the versions of the service and of its main packages."""
    return Call("GET", "/version", _decode_json)


def readiness() -> Call[dict[str, str]]:
    """Ask whether the service can run jobs now."""
    return Call("GET", "/readyz", _decode_json, retry=False)
