"""Reads runs from files: a folder written by `fedsim run --out`, or output of `--format json` or `jsonl`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedsim.errors import SettingsError

if TYPE_CHECKING:
    from api.comparison.compared_run import ComparedRun

SPEC, ROUNDS, CSV, RESULT, PERSONAL = "spec.yaml", "rounds.jsonl", "rounds.csv", "result.json", "personal.csv"
"""The files of a folder written by `fedsim run --out`."""

LABELS = "labels.json"
"""The labels of a run of `fedsim sweep --on pool`, in its folder."""

RecordData = dict[str, Any]


def read_records(path: Path) -> list[RecordData]:
    """Read the round records of a run in files, as plain data.

    Args:
        path: a folder written by `fedsim run --out`, or a file with the output of `--format json` or `jsonl`.

    Raises:
        SettingsError: there are no round records.
    """
    file = path / ROUNDS if path.is_dir() else path
    try:
        found = _records(file.read_text("utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise make_no_records_error(path, f"{type(error).__name__}: {error}") from None
    if not found:
        raise make_no_records_error(path, "it is empty")
    return found


def list_run_paths(path: Path) -> list[Path]:
    """List the runs at a path: the path itself, or the folders of the runs in the folder of a sweep."""
    if not path.is_dir() or (path / ROUNDS).exists():
        return [path]
    return sorted(file.parent for file in path.glob(f"*/{ROUNDS}")) or [path]


def read_compared_runs(source: str, path: Path) -> list[ComparedRun]:
    """Read the runs at a path, to compare them.

    Args:
        source: the path as the caller gave it; it names the run, unless the path is the folder of a sweep.
        path: as for `read_records`, or the folder of a sweep.

    Raises:
        SettingsError: there are no round records.
    """
    return [read_compared_run(source if each == path else str(each), each) for each in list_run_paths(path)]


def read_compared_run(run: str, path: Path) -> ComparedRun:
    """Read a run in files, to compare it.

    Args:
        run: the file as the caller gave it.
        path: as for `read_records`.

    Raises:
        SettingsError: there are no round records.
    """
    from api.comparison.compared_run import ComparedRun
    from jobs.store.records import RoundRecord

    try:
        records = [RoundRecord.model_validate(record) for record in read_records(path)]
    except ValueError as error:
        raise make_no_records_error(path, f"{type(error).__name__}: {error}") from None
    spec = read_plain_spec(path)
    return ComparedRun(run, str(spec.get("name", path.stem)), records, spec, _read_labels(path))


def read_plain_spec(path: Path) -> Mapping[str, Any]:
    """Read the spec of a run as plain data; {} without a spec.

    Args:
        path: as for `read_records`.
    """
    try:
        if path.is_dir():
            found = yaml.safe_load((path / SPEC).read_text("utf-8"))
        else:
            found = json.loads(path.read_text("utf-8"))["spec"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _read_labels(path: Path) -> Mapping[str, str]:
    try:
        return dict(json.loads((path / LABELS).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _records(text: str) -> list[RecordData]:
    """Parse the records of one JSON document (a run, or a list of records) or of JSON lines."""
    try:
        whole = json.loads(text)
    except ValueError:
        return _parse_lines(text)
    if isinstance(whole, dict):
        whole = whole.get("rounds", [whole])
    return list(whole)


def _parse_lines(text: str) -> list[RecordData]:
    """Parse JSON lines; leave out a last one that was cut off, when a run was killed as it wrote."""
    *lines, rest = text.split("\n")
    found = [json.loads(line) for line in lines if line.strip()]
    try:
        return [*found, json.loads(rest)] if rest.strip() else found
    except ValueError:
        if not found:
            raise
        return found


def make_no_records_error(path: Path, why: str) -> SettingsError:
    """Make the error for a file without round records."""
    hint = (
        "give a job id, a folder written by `fedsim run --out`, "
        "or a file written by `fedsim run --format json` or `jsonl`"
    )
    return SettingsError(f"{str(path)!r} has no round records: {why}", hint)
