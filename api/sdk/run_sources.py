"""Texts that name runs: the paths of runs in files, or the jobs and sweeps of a service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from fedsim.errors import SettingsError, Unreachable

RunSource: TypeAlias = str | Path
"""A job's id, a sweep's name, or the path of a run in files."""

FILE_ENDINGS = (".json", ".jsonl")


def _has_form_of_path(text: str) -> bool:
    """Whether a text is a path and no name of a sweep, which may also have a slash."""
    is_in_folder = "/" in text and Path(text).expanduser().parent.is_dir()
    return is_in_folder or text.startswith((".", "/", "~")) or text.endswith(FILE_ENDINGS)


@contextmanager
def explain_missing_paths(sources: Iterable[RunSource]) -> Iterator[None]:
    """Ask a service for jobs and sweeps inside this context: a misspelled path is named.

    Raises:
        SettingsError: a source has the form of a path, and nothing is there. No service is asked.
        Unreachable: no service answers; the hint also names the sources that are no paths.
    """
    missing = [source for source in sources if not Path(source).expanduser().exists()]
    for source in missing:
        if isinstance(source, Path) or _has_form_of_path(source):
            hint = f"correct the path; a sweep of this name has the label group={source}"
            raise SettingsError(f"there is no folder or file {str(source)!r}", hint)
    try:
        yield
    except Unreachable as error:
        if missing:
            names = ", ".join(map(repr, missing))
            words = "is no file or folder here, so it was taken for a job or a sweep"
            if len(missing) > 1:
                words = "are no files or folders here, so they were taken for jobs or sweeps"
            error.hint = f"{error.hint}; {names} {words}"
        raise
