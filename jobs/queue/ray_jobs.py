"""RayJobs: the part of Ray's Jobs API that the dispatcher needs. Importing this module imports Ray."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from shlex import join
from typing import Any
from urllib.parse import urlsplit

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from actors.resources import ClusterNode
from fedsim.errors import JobRefused, RayUnavailable
from jobs.local_ray.cluster import JOBS, SUBMISSION, fetch_living_nodes
from jobs.local_ray.embedded_ray import RayAddress
from jobs.run.job_cluster import RayJob

TIMEOUT_SECONDS = 20.0
CONNECT_SECONDS = 3.0

KEEP_SECONDS = 86_400.0
"""Seconds that Ray keeps the record of a job of fedsim after its end: by then fedsim has read it."""

CLEANING_SECONDS = 3600.0
"""Seconds between two removals of such records."""

MOST_REMOVED = 200
"""The most records that are removed at a time."""


class _Client(JobSubmissionClient):
    """Ray's client, with a limit on how long it waits for an answer."""

    def _do_request(self, *arguments: Any, **options: Any) -> requests.Response:
        return super()._do_request(*arguments, **{"timeout": TIMEOUT_SECONDS} | options)


class RayJobs:
    """The jobs of one cluster.

    Args:
        address: the cluster.

    Raises:
        RayUnavailable: if the cluster does not answer; every method raises this too.
    """

    def __init__(self, address: RayAddress) -> None:
        self._address = address.jobs
        if address.jobs == "auto":
            _enable_token()
        try:
            _check_reachable(address.jobs)
            self._client = _Client(address.jobs, headers=address.headers)
        except _FAILURES as error:
            raise self._make_unavailable_error(error) from error
        self._cleaned_at = -math.inf

    def find(self, ray_job_id: str) -> RayJob | None:
        """Return a job; None if Ray does not know it."""
        try:
            details = self._client.get_job_info(ray_job_id)
        except _FAILURES as error:
            if "status code 404" in str(error):
                return None
            raise self._make_unavailable_error(error) from error
        status = JobStatus(details.status)
        return RayJob(status.is_terminal(), details.message or "", details.driver_exit_code)

    def submit(self, ray_job_id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a command as a Ray job; do nothing if Ray has a job with this id."""
        try:
            self._client.submit_job(
                entrypoint=join(command),
                submission_id=ray_job_id,
                runtime_env={"env_vars": dict(environment)},
            )
        except _FAILURES as error:
            if self.find(ray_job_id) is None:
                raise JobRefused(f"Ray does not take {ray_job_id}: {_shorten_error(error)}") from error
        if time.monotonic() - self._cleaned_at > CLEANING_SECONDS:
            self._cleaned_at = time.monotonic()
            self._remove_old_records()

    def _remove_old_records(self) -> None:
        """Remove Ray's records of fedsim's jobs that ended long ago: Ray keeps and lists all of them."""
        limit = (time.time() - KEEP_SECONDS) * 1000
        with suppress(*_FAILURES):
            ended = [
                (each.end_time, str(each.submission_id))
                for each in self._client.list_jobs()
                if each.end_time and each.end_time < limit and SUBMISSION.fullmatch(each.submission_id or "")
            ]
            for _, ray_job_id in sorted(ended)[:MOST_REMOVED]:
                self._client.delete_job(ray_job_id)

    def fetch_nodes(self) -> list[ClusterNode]:
        """Return the living nodes of the cluster, with their total resources."""
        try:
            return [_make_node(row) for row in fetch_living_nodes(self.fetch_json)]
        except (KeyError, TypeError) as error:
            raise self._make_unavailable_error(error) from error

    def fetch_json(self, path: str) -> Any:
        """Return the answer of Ray's dashboard at a path, as plain data."""
        try:
            answer = self._client._do_request("GET", path)
            answer.raise_for_status()
            return answer.json()
        except _FAILURES as error:
            raise self._make_unavailable_error(error) from error

    def takes_jobs_without_token(self) -> bool:
        """Return whether everybody who reaches Ray's dashboard may run jobs."""
        url = f"{self._client.get_address()}{JOBS}"
        try:
            # The function in `auth` keeps `requests` from adding a password of ~/.netrc.
            answer = requests.get(url, auth=lambda bare: bare, allow_redirects=False, timeout=TIMEOUT_SECONDS)
        except requests.RequestException as error:
            raise self._make_unavailable_error(error) from error
        return answer.status_code == requests.codes.ok

    def stop(self, ray_job_id: str) -> None:
        """Ask Ray to end a job, by force after 3 seconds; return before the job has ended."""
        try:
            self._client.stop_job(ray_job_id)
        except _FAILURES as error:
            raise self._make_unavailable_error(error) from error

    def read_log_tail(self, ray_job_id: str, lines: int = 20) -> str:
        """Return the last lines that a job printed; "" if Ray has none."""
        try:
            text = self._client.get_job_logs(ray_job_id)
        except _FAILURES:
            return ""
        return "\n".join(text.rstrip().splitlines()[-lines:])

    def _make_unavailable_error(self, error: Exception) -> RayUnavailable:
        return RayUnavailable(f"Ray at {self._address} does not answer as expected: {_shorten_error(error)}")


def _enable_token() -> None:
    """Use this machine's Ray token, if it has one, as `ray start` and `ray.init` do."""
    # A private module of Ray, so it may move; releases before 2.60 use a token only if they are told to.
    with suppress(ImportError, AttributeError):
        setup = import_module("ray._private.authentication.authentication_token_setup")
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _make_node(row: Mapping[str, Any]) -> ClusterNode:
    total = row.get("resources_total") or {}
    cpus, gpus = total.get("CPU", 0.0), total.get("GPU", 0.0)
    return ClusterNode(row["node_ip"], cpus, gpus, id=row["node_id"], head=bool(row.get("is_head_node")))


def _check_reachable(address: str) -> None:
    """Check within seconds that a server listens at the address: Ray's own client takes minutes.

    Raises:
        ConnectionError: if no server listens.
    """
    parts = urlsplit(address if "//" in address else f"//{address}")
    if parts.hostname is None or parts.port is None:
        return
    try:
        socket.create_connection((parts.hostname, parts.port), CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"no server answers there ({error})") from error


def _shorten_error(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


_FAILURES = (RuntimeError, ConnectionError, ValueError, requests.RequestException, AuthenticationError)
