"""A grid of runs: every combination of the axes' labels, with every seed.

Sweeps of jobs (`jobs.spec.sweep`) and the tables of results use grids.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

from fedsim.errors import SpecError
from jobs.spec.error_messages import find_value_faults
from jobs.spec.fields import drop_weight_hashes
from jobs.spec.job_spec import JobSpec

Axes: TypeAlias = Mapping[str, Mapping[str, tuple[str, ...]]]
"""{axis: {label: `--set` items}}."""

FIELDS_WITHOUT_EFFECT = ("name", "resources", "faults", "checkpoint")
"""The fields of a spec that do not change its result."""


class GridRun(BaseModel):
    """One cell of a grid with one seed.

    Attributes:
        labels: {axis: label}.
        seed: of the run.
        items: the `--set` items that turn the base into the run's spec.
    """

    model_config = ConfigDict(frozen=True)

    labels: dict[str, str]
    seed: int
    items: tuple[str, ...]

    @property
    def cell(self) -> tuple[str, ...]:
        """Return the labels alone, in the order of the axes."""
        return tuple(self.labels.values())

    def __str__(self) -> str:
        return ", ".join((*self.cell, f"seed {self.seed}"))


def grid_runs(axes: Axes, seeds: Sequence[int], common: Sequence[str]) -> Iterator[GridRun]:
    """Yield all runs of a grid, seed by seed, so that every cell has a first result early.

    Args:
        axes: every combination of their labels is a cell.
        seeds: of each cell.
        common: `--set` items of every run; the items of the axes override them.
    """
    for seed in seeds:
        for labels in cells(axes, list(axes)):
            chosen = dict(zip(axes, labels, strict=True))
            items = [item for axis, label in chosen.items() for item in axes[axis][label]]
            yield GridRun(labels=chosen, seed=seed, items=(*common, *items, f"seed={seed}"))


def cells(axes: Axes, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return all combinations of the labels of these axes."""
    return list(itertools.product(*(axes[name] for name in names)))


def make_set_items(value: Any) -> list[str]:
    """Return `PATH=VALUE` items from a file's value: null, one item, a list of items, or {path: value}.

    Raises:
        SpecError: for every value that a spec cannot hold, such as one of NumPy.
    """
    if value is None:
        return []
    if isinstance(value, Mapping):
        require_plain_fields(value)
        return [f"{path}={json.dumps(entry, ensure_ascii=False)}" for path, entry in value.items()]
    return [value] if isinstance(value, str) else list(value)


def require_plain_fields(fields: Mapping[str, Any]) -> None:
    """Raise SpecError if a field has a value that a spec cannot hold; the keys are dotted paths."""
    faults = [
        fault
        for path, value in fields.items()
        for fault in find_value_faults(value, tuple(str(path).split(".")))
    ]
    if faults:
        raise SpecError(faults)


def hash_spec(spec: JobSpec, varied: Collection[str] = ()) -> str:
    """Hash all fields on which a spec's result depends, the seed included.

    Defaults are left out, so that the hash stays the same when specs get new fields. The SHA-256 of initial
    weights is left out too: a service fills it in.

    Args:
        spec: of the run.
        varied: fields of `FIELDS_WITHOUT_EFFECT` that are hashed nevertheless.
    """
    without = set(FIELDS_WITHOUT_EFFECT).difference(varied)
    plain = drop_weight_hashes(spec.model_dump(mode="json", exclude_defaults=True, exclude=without))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
