"""Sweep: a grid of specs and seeds that is submitted as one group of jobs.

name: fedprox-mu                                  # the group; by default the name of the file
base: demo                                        # a preset, a file beside this one, or a whole spec
set: {rounds: 30}                                 # changes of the base, for all runs
axes:
  local.lr: [0.05, 0.1]                           # a path, and its values
  mu: {path: algorithm.mu, values: [0, 0.1]}      # a path and its values, with another name
  data:                                           # labels, and the fields that each of them sets
    iid: {data.partition: iid}
    skewed: {data.partition.kind: dirichlet, data.partition.beta: 0.1}
seeds: [1, 2, 3]
metric: global_accuracy                           # its mean and deviation are shown
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from fedsim.base.python_source import embed_sources
from fedsim.errors import FieldError, SpecError
from jobs.spec.error_messages import shorten_value, translate_errors
from jobs.spec.fields import MAX_NAME
from jobs.spec.grid import FIELDS_WITHOUT_EFFECT, GridRun, cells, grid_runs, hash_spec, make_set_items
from jobs.spec.job_spec import JobSpec, is_sweep, parse_spec, read_spec
from jobs.spec.spec_text import CATALOGUE_SECTIONS, apply_overrides, parse_text
from jobs.spec.submission import check_submission

MAX_RUNS = 10_000

GROUP = "group"
"""The label that the jobs of a sweep share; its value is the sweep's name."""


class Sweep(BaseModel):
    """A sweep, with its base read and its axes expanded.

    Attributes:
        name: of the group.
        base: the spec from which every run is made.
        set: `--set` items of every run.
        axes: {axis: {label: `--set` items}}.
        seeds: of each cell.
        metric: a metric of the round records; None for the main metric of the jobs.
        priority: of every job.
        labels: of every job, besides the labels of the sweep.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    base: dict[str, Any]
    set: tuple[str, ...] = ()
    axes: dict[str, dict[str, tuple[str, ...]]]
    seeds: tuple[int, ...]
    metric: str | None = None
    priority: int = 0
    labels: dict[str, str] = {}
    _folder: Path = PrivateAttr(Path())

    def cells(self) -> list[tuple[str, ...]]:
        """Return all combinations of the axes' labels."""
        return cells(self.axes, list(self.axes))

    def hash_spec(self, spec: JobSpec) -> str:
        """Hash a run's spec.

        Fields without effect on the results, such as `resources`, count only if an axis varies them.
        """
        return hash_spec(spec, self._varied_parts)

    @cached_property
    def _varied_parts(self) -> frozenset[str]:
        """Return the fields of `FIELDS_WITHOUT_EFFECT` that axes vary; computed once, not for every run."""
        items = [item for values in self.axes.values() for each in values.values() for item in each]
        paths = frozenset(re.split("[.=]", item, maxsplit=1)[0].strip() for item in items)
        return paths.intersection(FIELDS_WITHOUT_EFFECT) - {"name"}


class Member(NamedTuple):
    """One run of a sweep, ready to be submitted.

    Attributes:
        run: the run of the grid.
        spec: of the run.
        spec_hash: of the spec, by which the run's job is found again.
        labels: of the job.
        key: the job's idempotency key.
    """

    run: GridRun
    spec: JobSpec
    spec_hash: str
    labels: dict[str, str]
    key: str

    def body(self) -> dict[str, Any]:
        """Return the spec as it is sent."""
        return self.spec.model_dump(mode="json", exclude_unset=True)


def read_sweep(source: str | Path | Mapping[str, Any], more: Sequence[str] = ()) -> Sweep:
    """Read a sweep.

    Args:
        source: the path of a YAML or JSON file, `-` for standard input, or the plain data itself.
        more: `--set` items of every run; they override the items of the file.

    Raises:
        SpecError: if the source cannot be read, or is no sweep; with every fault.
    """
    data, folder, name = _read_source(source)
    if not isinstance(data, Mapping):
        raise _make_error(
            "sweep", data, "is not a mapping of fields", "the smallest has base, axes and seeds"
        )
    if "algorithm" in data and "base" not in data:
        hint = "make its run with `fedsim run FILE`; a sweep has base, axes and seeds"
        given = sorted(data) if isinstance(source, Mapping) else str(source)
        raise _make_error("sweep", given, "is a spec", hint)
    opened = {"name": name, **data, "axes": _expand_axes(data.get("axes"))}
    opened["set"] = [*_list_items("set", data.get("set")), *more]
    if "base" in data:
        opened["base"] = _read_base(data["base"], folder)
    try:
        sweep = Sweep.model_validate(opened)
        sweep._folder = folder
    except ValidationError as error:
        found = translate_errors(error, Sweep.model_json_schema(mode="validation"))
        raise SpecError(
            fault._replace(message=fault.message.replace("of a spec", "of a sweep")) for fault in found
        ) from None
    if not sweep.seeds:
        raise _make_error("seeds", [], "is empty", "name at least one")
    if len(set(sweep.seeds)) < len(sweep.seeds):
        raise _make_error("seeds", list(sweep.seeds), "names a seed twice", "name each once")
    count = prod(map(len, sweep.axes.values())) * len(sweep.seeds)
    if count > MAX_RUNS:
        raise _make_error("axes", count, "runs are too many", f"allowed: {MAX_RUNS}")
    return sweep


def is_sweep_file(source: str) -> bool:
    """Return whether a file holds a sweep; False for one that cannot be read."""
    path = Path(source).expanduser()
    try:
        data = parse_text(path.read_text("utf-8")) if path.is_file() else None
    except (OSError, ValueError, SpecError):
        return False
    return isinstance(data, Mapping) and is_sweep(data)


def members(sweep: Sweep) -> list[Member]:
    """Return all runs of a sweep, each with its spec.

    Raises:
        SpecError: if specs are wrong; with every fault once, and the first run that has it.
    """
    found: list[Member] = []
    faults: dict[tuple[str, str], FieldError] = {}
    for run in grid_runs(sweep.axes, sweep.seeds, sweep.set):
        try:
            found.append(_make_member(sweep, run))
        except SpecError as error:
            for fault in error.errors:
                text = f"{fault.message} (in {run})"
                faults.setdefault((fault.path, repr(fault.value)), fault._replace(message=text))
    if faults:
        raise SpecError(faults.values())
    _require_different_runs(found)
    return found


def _require_different_runs(found: Sequence[Member]) -> None:
    """Raise SpecError if two cells have one spec: what an axis sets is replaced later, or is in the base."""
    runs = dict[str, GridRun]()
    for member in found:
        if (other := runs.setdefault(member.spec_hash, member.run)) is not member.run:
            hint = "name a whole, such as algorithm, before its parts, and each value once"
            raise _make_error("axes", None, f"'{other}' and '{member.run}' are the same run", hint)


def _make_member(sweep: Sweep, run: GridRun) -> Member:
    data = embed_sources(apply_overrides(sweep.base, run.items), (Path(), sweep._folder))
    words = ", ".join([*_name_cell(sweep, run), f"seed {run.seed}"])
    spec = parse_spec({**data, "name": f"{sweep.name}: {words}"[:MAX_NAME]})
    own = {make_label_key(axis): label for axis, label in run.labels.items()}
    labels = {**own, "seed": str(run.seed), **sweep.labels, GROUP: sweep.name}
    spec_hash = sweep.hash_spec(spec)
    key = hashlib.sha256(f"{sweep.name}\n{spec_hash}".encode()).hexdigest()[:32]
    check_submission(spec, sweep.priority, labels, key)
    return Member(run, spec, spec_hash, labels, key)


def _name_cell(sweep: Sweep, run: GridRun) -> list[str]:
    """Return the words for a cell in the name of a job: `lr=0.1` for a value, else the label."""
    short = {axis: axis.rpartition(".")[2] for axis in run.labels}
    counts = Counter(short.values())
    keys = {axis: short[axis] if counts[short[axis]] == 1 else axis for axis in run.labels}
    return [
        f"{keys[axis]}={label}" if _is_value(sweep.axes[axis][label], label) else label
        for axis, label in run.labels.items()
    ]


def _is_value(items: Sequence[str], label: str) -> bool:
    """Whether a label is the very value that it sets, and says nothing of its field, as `fedprox` does."""
    if len(items) != 1:
        return False
    path, _, value = items[0].partition("=")
    return path not in CATALOGUE_SECTIONS and value in (label, json.dumps(label, ensure_ascii=False))


def make_label_key(axis: str) -> str:
    """Turn the name of an axis into the name of a label."""
    return re.sub(r"[^A-Za-z0-9._/-]+", "-", axis).strip("-._/")[:64] or "axis"


def _read_source(source: str | Path | Mapping[str, Any]) -> tuple[Any, Path, str]:
    """Return the plain data, the folder for relative paths, and the default name."""
    if not isinstance(source, str | Path):
        return source, Path(), "sweep"
    path = Path(source).expanduser()
    try:
        if source == "-":
            return parse_text(sys.stdin.read()), Path(), "sweep"
        return parse_text(path.read_text("utf-8")), path.parent, path.stem
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _make_error("sweep", str(source), f"cannot be read: {why}", "name a file") from None


def _read_base(base: Any, folder: Path) -> Any:
    if not isinstance(base, str):
        return base
    beside = folder / base
    return read_spec(beside if beside.is_file() else base)


def _expand_axes(axes: Any) -> Any:
    if not isinstance(axes, Mapping):
        return {} if axes is None else axes
    return {str(axis): _expand_axis(str(axis), value) for axis, value in axes.items()}


def _expand_axis(axis: str, value: Any) -> Any:
    """Return the labels of one axis with their items, from any of the three notations."""
    path = f"axes.{axis}"
    if isinstance(value, Mapping) and set(value) == {"path", "values"}:
        axis, value = str(value["path"]), value["values"]
    if isinstance(value, list) and value:
        items = {make_label(entry): [f"{axis}={json.dumps(entry, ensure_ascii=False)}"] for entry in value}
        if len(items) < len(value):
            hint = "give them names: {label: {path: value}}"
            raise _make_error(path, value, "has two values with one name", hint)
        return items
    if isinstance(value, Mapping) and value:
        return {str(label): list(_list_items(f"{path}.{label}", items)) for label, items in value.items()}
    raise _make_error(path, value, "is no axis", "write [values], {path, values} or {label: {path: value}}")


def make_label(value: Any) -> str:
    """Return a value of an axis as people read it, such as `dirichlet beta=0.1` for a mapping."""
    if isinstance(value, Mapping):
        heads = [str(value[key]) for key in ("name", "kind") if key in value]
        rest = (f"{key}={make_label(entry)}" for key, entry in value.items() if key not in ("name", "kind"))
        return " ".join([*heads, *rest])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _list_items(path: str, value: Any) -> Iterator[str]:
    try:
        items = make_set_items(value)
    except TypeError:
        items = [value]
    for item in items:
        if not isinstance(item, str):
            raise _make_error(path, item, "is nothing to set", "write {path: value}, or PATH=VALUE items")
        yield item


def _make_error(path: str, value: Any, message: str, hint: str) -> SpecError:
    return SpecError([FieldError(path, shorten_value(value), message, hint)])
