"""Make the error of a service's refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from fedsim.base.secret_urls import remove_secrets
from fedsim.errors import (
    ArtifactNotFound,
    BadPageToken,
    Conflict,
    DataError,
    DoesNotFit,
    FedsimError,
    FieldError,
    JobNotFound,
    RayUnavailable,
    RequestError,
    ServiceError,
    SpecError,
)

ERRORS: dict[str, type[FedsimError]] = {
    "DOES_NOT_FIT": DoesNotFit,
    "BAD_DATA": DataError,
    "JOB_NOT_FOUND": JobNotFound,
    "ARTIFACT_NOT_FOUND": ArtifactNotFound,
    "CONFLICT": Conflict,
    "BAD_PAGE_TOKEN": BadPageToken,
    "RAY_UNAVAILABLE": RayUnavailable,
}
"""The error class of each problem code; any other code becomes a `ServiceError`."""


def read_fault(item: Mapping[str, Any]) -> FieldError:
    """Read one fault of a spec or a request."""
    return FieldError(item["path"], item["value"], item["message"], item["hint"])


def make_error(response: httpx.Response) -> FedsimError:
    """Make the error of a refusal."""
    status = response.status_code
    try:
        body = response.json()
        detail, code, hint = str(body["detail"]), str(body["code"]), str(body.get("hint", ""))
        faults = [read_fault(item) for item in body.get("errors", [])]
    except (ValueError, KeyError, TypeError):
        shown = remove_secrets(str(response.url))
        message = f"{shown} answered {status} {response.reason_phrase}, not as fedsim does"
        return ServiceError(message, "is it the right address?", status=status)
    if code == SpecError.code and faults:
        return SpecError(faults)
    if code == RequestError.code and faults:
        return RequestError(faults)
    if code in ERRORS:
        error = ERRORS[code](detail, hint)
        error.errors = faults or error.errors
        return error
    if status == 401:
        hint = "set FEDSIM_TOKEN to the service's token"
    return ServiceError(detail, hint, status=status, code=code, errors=faults)
