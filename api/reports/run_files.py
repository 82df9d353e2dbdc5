"""Runs in files: what `fedsim run --out` wrote, or what its `--format json` and `jsonl` printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from fedsim.errors import SettingsError

RecordData = dict[str, Any]


def read_records(path: Path) -> list[RecordData]:
    """Read the round records of a run in files, as plain data.

    Args:
        path: a folder that `fedsim run --out` wrote, or a file with what `--format json` or `jsonl` printed.

    Raises:
        SettingsError: there are no round records.
    """
    file = path / "rounds.jsonl" if path.is_dir() else path
    try:
        found = _records(file.read_text("utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise make_no_records_error(path, f"{type(error).__name__}: {error}") from None
    if not found:
        raise make_no_records_error(path, "it is empty")
    return found


def read_name(path: Path) -> str:
    """Read the name in the spec of a run in files; what the file is called where no spec says it.

    Args:
        path: as for `read_records`.
    """
    try:
        if path.is_dir():
            found = yaml.safe_load((path / "spec.yaml").read_text("utf-8"))
        else:
            found = json.loads(path.read_text("utf-8"))["spec"]
        return str(found["name"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return path.stem


def _records(text: str) -> list[RecordData]:
    """The records of one JSON document (a run, or a list of records), or of lines of JSON."""
    try:
        whole = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(whole, dict):
        whole = whole.get("rounds", [whole])
    return list(whole)


def make_no_records_error(path: Path, why: str) -> SettingsError:
    """The error for files that hold no run."""
    hint = "name a job, a folder of `fedsim run --out`, or a file of `fedsim run --format json` or `jsonl`"
    return SettingsError(f"{str(path)!r} holds no round records: {why}", hint)
