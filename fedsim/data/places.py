"""Where loaders look for files: the data roots, and what to say when nothing is there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedsim.base.parameters import make_spec_error
from fedsim.errors import DataNotFound

FETCH = "fetch it with --set data.download=true"
"""The way out for a data set that upstream lets anybody download."""

TEXT_EXTRA = "install the extra: pip install --constraint constraints.txt '.[text]' in fedsim's checkout"
"""The way out where the packages for texts are missing."""


def leaves_root(path: str) -> bool:
    """Whether a path that a user gives leaves the folder that it is looked for in."""
    return Path(path).is_absolute() or ".." in Path(path).parts


@dataclass(frozen=True)
class DataRoots:
    """The data roots of a run, in the order they are searched.

    Attributes:
        roots: folders that hold data sets; those that do not exist are passed over.
        download: whether a loader may fetch what it does not find.
        system: where the operating system's packages put data sets.
    """

    roots: tuple[Path, ...] = ()
    download: bool = False
    system: Path = field(default=Path("/usr/share/datasets"))

    def find_path(self, candidates: Iterable[str]) -> Path | None:
        """The first of the relative paths that exists under a root."""
        names = list(candidates)
        paths = (root.expanduser() / name for root in self.roots for name in names)
        # Of a name that no file system takes, pathlib would raise.
        return next((path for path in paths if os.path.exists(path)), None)

    def find_installed(self, name: str) -> Path | None:
        """The folder where the operating system's package puts this data set, if it is installed."""
        folder = self.system / name
        return folder if folder.is_dir() else None

    def resolve_path(self, what: str, path: str, get: str) -> Path:
        """A file or folder that the user names, inside a data root.

        Args:
            what: the data set's name, for the message.
            path: relative to a root.
            get: the way out.

        Raises:
            SpecError: the path leads out of the data roots.
            DataNotFound: it is under no root.
        """
        if leaves_root(path):
            hint = "put the data under a data root, and name it from there"
            raise make_spec_error("path", path, "has to be relative to a data root, and inside it", hint)
        return self.require_path(what, (path,), get)

    def require_path(self, name: str, candidates: Sequence[str], get: str) -> Path:
        """The first of the relative paths that exists, or the error that says how to get the data set.

        Raises:
            DataNotFound: none exists under any root.
        """
        found = self.find_path(candidates)
        if found is None:
            raise self.make_not_found_error(name, candidates, get)
        return found

    def make_not_found_error(self, name: str, candidates: Sequence[str], get: str) -> DataNotFound:
        """The error for a data set that is in none of the places."""
        where = ", ".join(map(str, self.roots)) or "no data root is set"
        return DataNotFound(f"{name}: found none of {', '.join(candidates)} in the data roots ({where})", get)

    def make_download_root(self, name: str) -> Path:
        """The first root, where a download goes; it is made when missing.

        Raises:
            DataNotFound: there is no root to download into.
        """
        if not self.roots:
            raise DataNotFound(
                f"{name}: there is no data root to download into", "set FEDSIM_DATA to a folder"
            )
        root = self.roots[0].expanduser()
        root.mkdir(parents=True, exist_ok=True)
        return root
