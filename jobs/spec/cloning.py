"""Specs from the spec of a job: that of a clone, and that of the same job with more rounds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from jobs.spec.fields import drop_weight_hashes, find_algorithm_name
from jobs.spec.spec_text import set_fields


def clone_spec(spec: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a clone, as plain data, unchecked.

    A job's spec holds every default. A default that no longer fits the changed fields is removed: the name,
    if it was the algorithm's name, and the SHA-256 of initial weights. `set_fields` removes `local.epochs` if
    `local.steps` is set.

    Args:
        spec: of the job.
        fields: the changes, by dotted path.

    Raises:
        SpecError: for every path that leads through a plain value.
    """
    data: dict[str, Any] = copy.deepcopy(dict(spec))
    if any(path.startswith(("model.init.file", "model.init.job")) for path in fields):
        drop_weight_hashes(data)
    if "name" not in fields and data.get("name") == find_algorithm_name(data):
        del data["name"]
    return set_fields(data, fields)


def set_last_round(spec: Mapping[str, Any], last: int) -> dict[str, Any]:
    """Return the spec of a job that ends after another round, as plain data, unchecked.

    With `stop.round`, the number of rounds stays the same if the round is one of them: a schedule over all
    rounds keeps its shape. Otherwise `last` is the new number of rounds.

    Args:
        spec: of the job.
        last: the last round.
    """
    stop, rounds = spec.get("stop") or {}, spec["rounds"]
    if stop.get("round") is None:
        return {**spec, "rounds": last}
    round = last if last < rounds else None
    return {**spec, "rounds": max(last, rounds), "stop": {**stop, "round": round}}
