"""The root of all errors, and what is wrong with a spec, a request or a setting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self


class FedsimError(Exception):
    """Anything that fedsim raises on purpose.

    Attributes:
        code: stable machine-readable name, in capitals.
        hint: what to do about it; may be empty.
        errors: the fields of a spec that are to blame, where it is about a spec.
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
    """An environment variable or a command-line option that is not what it should be."""

    code = "BAD_SETTINGS"


class FieldError(NamedTuple):
    """One fault of a spec: where (`clients.fraction`), what was there, why it is wrong and the way out."""

    path: str
    value: Any
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: {self.message} (got {self.value!r})"
        return f"{where}; {self.hint}" if self.hint else where


class SpecError(FedsimError):
    """A spec with one or more faults, all of them reported together."""

    code = "BAD_SPEC"
    subject = "spec"

    def __init__(self, errors: Iterable[FieldError]) -> None:
        faults = [FieldError(*e) for e in errors]
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"the {self.subject} has {len(faults)} error{'s' * (len(faults) != 1)}:\n{lines}")
        self.errors = faults

    def add_path_prefix(self, part: str) -> Self:
        """The same faults with paths that begin with this part of the spec."""
        return type(self)(fault._replace(path=f"{part}.{fault.path}") for fault in self.errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors,)


class RequestError(SpecError):
    """What comes with a spec, or asks for jobs, has faults: a label, an idempotency key, a filter."""

    code = "BAD_REQUEST"
    subject = "request"
