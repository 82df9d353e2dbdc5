"""From whatever a caller gives as a spec to plain data that can be sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fedsim.errors import SpecError

if TYPE_CHECKING:
    from jobs.spec import JobSpec
    from jobs.spec.sweep import Member, Sweep

SpecSource: TypeAlias = "str | Path | Mapping[str, Any] | JobSpec"
"""A spec as a caller may give it: the name of a preset, the path of a file, a mapping, or a `JobSpec`."""

SweepSource: TypeAlias = "str | Path | Mapping[str, Any] | Sweep"
"""A sweep as a caller may give it: the path of a file, what would stand in it, or a `Sweep`."""


def read_members(source: SweepSource) -> tuple[Sweep, list[Member]]:
    """Read a sweep, and make the specs of its runs.

    Raises:
        SpecError: the sweep or one of its specs is wrong; holds every fault.
    """
    from jobs.spec.sweep import Sweep, members, read_sweep

    sweep = source if isinstance(source, Sweep) else read_sweep(source)
    return sweep, members(sweep)


def items(settings: Mapping[str, Any] | None) -> list[str]:
    """Write fields to set, by dotted path, as `PATH=VALUE` items."""
    return [f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in (settings or {}).items()]


class Draft(NamedTuple):
    """A spec as plain data that can be sent.

    Attributes:
        data: the spec.
        fault: what is wrong with its shape, as far as that was looked at. The names in it only the service
            can judge: it has the catalogue.
    """

    data: Mapping[str, Any]
    fault: SpecError | None = None


def read_draft(spec: SpecSource, settings: Mapping[str, Any] | None = None) -> Draft:
    """Make plain data of a spec, with fields set on top of it.

    Raises:
        SpecError: there is no such preset or file, or what is in it cannot be read or sent.
    """
    # jobs.spec is imported here because most uses of the client never need it.
    from jobs.spec import JobSpec, apply_overrides, parse_spec, read_spec

    overrides = items(settings)
    if isinstance(spec, str | Path):
        data = read_spec(spec, overrides)
        try:
            return Draft(parse_spec(data).model_dump(mode="json", exclude_unset=True))
        except SpecError as fault:
            if not _can_be_sent(data):
                raise
            return Draft(data, fault)
    if isinstance(spec, JobSpec):
        spec = spec.model_dump(mode="json", exclude_unset=True)
    return Draft(apply_overrides(spec, overrides) if overrides else spec)


def _can_be_sent(data: Any) -> bool:
    try:
        json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(data, Mapping)
