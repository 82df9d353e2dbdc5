"""Read a caller's spec as plain data, and check it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from api.sdk import calls
from api.sdk.transport.connection import Connection
from fedsim.errors import FedsimError, SpecError

if TYPE_CHECKING:
    from jobs.spec import JobSpec
    from jobs.spec.sweep import Member, Sweep

SpecSource: TypeAlias = "str | Path | Mapping[str, Any] | JobSpec"
"""A spec: the name of a preset, the path of a file, a mapping, or a `JobSpec`."""

SweepSource: TypeAlias = "str | Path | Mapping[str, Any] | Sweep"
"""A sweep: the path of a file, its content as a mapping, or a `Sweep`."""


def read_members(source: SweepSource) -> tuple[Sweep, list[Member]]:
    """Read a sweep, and make the specs of its runs.

    Raises:
        SpecError: the sweep or one of its specs is wrong; the error lists every fault.
    """
    from jobs.spec.sweep import Sweep, members, read_sweep

    sweep = source if isinstance(source, Sweep) else read_sweep(source)
    return sweep, members(sweep)


class Draft(NamedTuple):
    """A spec as plain data, before the service has checked it.

    Attributes:
        data: the spec.
        fault: the faults of its fields that need no service to be found; None if there are none. Only the
            service can check names of algorithms, models and data sets: it has the catalogue.
    """

    data: Mapping[str, Any]
    fault: SpecError | None = None


SetFields: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Fields of a spec to change: by dotted path, such as `{"local.lr": 0.05}`, or as `PATH=VALUE` items."""


def read_fields(settings: SetFields | None) -> dict[str, Any]:
    """Return fields by dotted path.

    Raises:
        SpecError: an item is not `PATH=VALUE`, or a spec cannot hold a value.
    """
    from jobs.spec.grid import make_set_items, require_plain_fields
    from jobs.spec.spec_text import parse_set_items

    if settings is None or isinstance(settings, Mapping):
        require_plain_fields(settings or {})
        return dict(settings or {})
    return parse_set_items(make_set_items(settings))


def read_draft(spec: SpecSource, settings: SetFields | None = None) -> Draft:
    """Read a spec as plain data.

    Args:
        spec: the spec.
        settings: fields to change, by dotted path: `{"local.lr": 0.05}`, or `PATH=VALUE` items.

    Raises:
        SpecError: the preset or file is missing, malformed, or holds a value that JSON cannot hold.
    """
    # jobs.spec is imported here because most uses of the client never need it.
    from fedsim.base.python_source import embed_sources
    from jobs.spec import JobSpec, apply_overrides, parse_spec, read_spec
    from jobs.spec.grid import make_set_items

    overrides = make_set_items(settings)
    if isinstance(spec, str | Path):
        data = read_spec(spec, overrides)
        try:
            return Draft(parse_spec(data).model_dump(mode="json", exclude_unset=True))
        except SpecError as fault:
            if not _is_json(data):
                raise
            return Draft(data, fault)
    if isinstance(spec, JobSpec):
        spec = spec.model_dump(mode="json", exclude_unset=True)
    elif not _is_json(spec):
        parse_spec(spec)  # names the field
    return Draft(embed_sources(apply_overrides(spec, overrides) if overrides else spec))


def _is_json(data: Any) -> bool:
    try:
        json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(data, Mapping)


async def check_draft(connection: Connection, draft: Draft) -> Mapping[str, Any]:
    """Give the data of a spec; if it has a fault, ask the service for the other faults first.

    Raises:
        SpecError: the spec is wrong; the error lists every fault, or the known ones if the service does not
            answer.
    """
    if draft.fault is None:
        return draft.data
    try:
        found = await connection.send(calls.check(draft.data))
    except FedsimError:
        raise draft.fault from None
    if not found:
        return draft.data
    named = {fault.path for fault in found}
    raise SpecError([*found, *(fault for fault in draft.fault.errors if fault.path not in named)])
