"""The base class of all errors, and the errors of specs, requests and settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self


class FedsimError(Exception):
    """The base class of every error that fedsim raises on purpose.

    Attributes:
        code: stable name for programs, in capitals, such as "BAD_SPEC".
        hint: how to solve the problem; may be empty.
        errors: the faulty fields, if the error is about a spec; else empty.
    """

    code = "INTERNAL"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.errors: list[FieldError] = []

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.hint)


class SettingsError(FedsimError):
    """An environment variable or a command-line option has a wrong value."""

    code = "BAD_SETTINGS"


class FieldError(NamedTuple):
    """One fault of a spec.

    Attributes:
        path: the faulty field, such as `clients.fraction`.
        value: the given value.
        message: why the value is wrong.
        hint: how to correct it; may be empty.
    """

    path: str
    value: Any
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: {self.message} (got {self.value!r})"
        return f"{where}; {self.hint}" if self.hint else where


class SpecError(FedsimError):
    """A spec has one or more faults; the error reports all of them."""

    code = "BAD_SPEC"
    subject = "spec"

    def __init__(self, errors: Iterable[FieldError]) -> None:
        faults = [FieldError(*e) for e in errors]
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"the {self.subject} has {len(faults)} error{'s' * (len(faults) != 1)}:\n{lines}")
        self.errors = faults

    def add_path_prefix(self, part: str) -> Self:
        """Return the same error with longer paths: with the part `local`, `steps` becomes `local.steps`."""
        return type(self)(fault._replace(path=f"{part}.{fault.path}") for fault in self.errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors,)


class RequestError(SpecError):
    """A request has faults beside its spec: a label, an idempotency key or a filter."""

    code = "BAD_REQUEST"
    subject = "request"
