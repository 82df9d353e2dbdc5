"""A new job from an old one: its spec, with some fields set anew."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from jobs.spec.spec_text import set_fields


def clone_spec(spec: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a clone, as plain data, unchecked.

    A job's spec has every default filled in, so what follows from the fields that are set has to give way:
    the name, where it was the algorithm's; `set_fields` takes `local.epochs` away where `local.steps` is set.

    Args:
        spec: of the job.
        fields: what to set on top, by dotted path.

    Raises:
        SpecError: for every path that leads through a plain value.
    """
    data: dict[str, Any] = copy.deepcopy(dict(spec))
    if "name" not in fields and data.get("name") == _algorithm(data):
        del data["name"]
    return set_fields(data, fields)


def _algorithm(data: Mapping[str, Any]) -> Any:
    algorithm = data.get("algorithm")
    return algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
