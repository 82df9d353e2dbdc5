"""The submission of a job: priority, labels and idempotency key beside the spec; and the job's new id."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fedsim.errors import FieldError, RequestError
from jobs.spec.error_messages import shorten_value
from jobs.spec.fields import drop_weight_hashes
from jobs.spec.job_spec import JobSpec

MAX_SPEC = 100_000
"""The most characters of a job's spec, as JSON: lists of jobs hold hundreds of specs. The text of a Python
file with a model has a limit of its own."""

MAX_PRIORITY = 1000
MAX_LABELS = 32
MAX_LABEL_VALUE = 200
LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,200}")

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH_MS = 1_577_836_800_000  # 2020-01-01: 40 bits of milliseconds from then last until 2054


class CheckedSubmission(NamedTuple):
    """A submission whose values have been checked."""

    spec: JobSpec
    priority: int
    labels: dict[str, str]
    idempotency_key: str | None

    def body_hash(self) -> str:
        """Return the SHA-256 of the submission without its key; equal hashes mean equal bodies.

        Fields with their default are left out, so that a version with more fields computes the same hash. The
        SHA-256 of initial weights is left out too: the service fills it in.
        """
        return self._compute_hash(
            drop_weight_hashes(self.spec.model_dump(mode="json", exclude_defaults=True))
        )

    def has_hash(self, body_hash: str) -> bool:
        """Return whether this is the body's hash; older versions hashed every default too."""
        return body_hash in (self.body_hash(), self._compute_hash(self.spec.model_dump(mode="json")))

    def _compute_hash(self, spec: dict[str, Any]) -> str:
        text = json.dumps([spec, self.priority, self.labels], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def find_size_faults(spec: JobSpec) -> list[FieldError]:
    """Find a spec that is too long to be stored with its job."""
    data = spec.model_dump(mode="json", exclude={"model"})
    data["model"] = [
        {name: value for name, value in model.model_dump(mode="json").items() if name != "source"}
        for model in spec.models
    ]
    size = len(json.dumps(data, ensure_ascii=False))
    if size <= MAX_SPEC:
        return []
    message = f"has {size:,} characters, and the most for a job is {MAX_SPEC:,}"
    return [FieldError("spec", None, message, "shorten its longest lists and texts")]


def check_submission(
    spec: JobSpec, priority: int, labels: Mapping[str, str] | None, idempotency_key: str | None
) -> CheckedSubmission:
    """Check that the priority, the labels and the key can be stored and shown.

    Raises:
        RequestError: see `check_job_fields`.
    """
    check_job_fields(priority, labels, idempotency_key)
    return CheckedSubmission(spec, priority, dict(labels or {}), idempotency_key)


def check_job_fields(
    priority: int | None, labels: Mapping[str, str] | None, idempotency_key: str | None
) -> None:
    """Check what is given for a job beside its spec.

    Raises:
        RequestError: with all faults at once; paths `priority`, `labels`, `labels.KEY`, `Idempotency-Key`.
    """
    errors = [] if priority is None else _find_priority_faults(priority)
    errors += _find_label_faults(labels or {})
    if idempotency_key is not None and not IDEMPOTENCY_KEY.fullmatch(idempotency_key):
        hint = "use 1 to 200 printable ASCII characters without spaces"
        errors.append(FieldError("Idempotency-Key", idempotency_key[:200], "is not a key", hint))
    if errors:
        raise RequestError(errors)


def _find_priority_faults(priority: Any) -> list[FieldError]:
    if isinstance(priority, int) and not isinstance(priority, bool) and abs(priority) <= MAX_PRIORITY:
        return []
    hint = f"allowed: a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}; the highest runs first"
    return [FieldError("priority", shorten_value(priority), "is not a priority", hint)]


def _find_label_faults(labels: Mapping[Any, Any]) -> list[FieldError]:
    if len(labels) > MAX_LABELS:
        return [FieldError("labels", len(labels), "are too many", f"at most {MAX_LABELS} labels")]
    faults = []
    for key, value in labels.items():
        if not isinstance(key, str) or not LABEL_KEY.fullmatch(key):
            hint = (
                "a key has 1 to 64 letters, digits, '.', '_', '/' or '-', and starts with a letter or digit"
            )
            faults.append(FieldError("labels", str(key)[:200], "is not a label's key", hint))
        elif not isinstance(value, str) or len(value) > MAX_LABEL_VALUE or not value.isprintable():
            hint = f"a value is a text of one printable line of at most {MAX_LABEL_VALUE} characters"
            faults.append(FieldError(f"labels.{key}", str(value)[:200], "is not a label's value", hint))
    return faults


def new_job_id(now: datetime) -> str:
    """Make an id of 12 characters that sorts by time: 8 characters of milliseconds, 4 random ones."""
    number = ((int(now.timestamp() * 1000) - _EPOCH_MS) << 20) | secrets.randbits(20)
    return "".join(_DIGITS[(number >> shift) & 31] for shift in range(55, -1, -5))


def read_creation_time(job_id: str) -> datetime:
    """Return the time in the id of a job."""
    number = 0
    for digit in job_id:
        number = number << 5 | _DIGITS.index(digit)
    return datetime.fromtimestamp(((number >> 20) + _EPOCH_MS) / 1000, UTC)
