"""The data roots, where loaders search for files, and the errors for missing data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

from fedsim.base.extras import describe_install
from fedsim.base.parameters import make_spec_error
from fedsim.errors import DataNotFound

FETCH_HINT = "fetch it with --set data.download=true"
"""The hint for a data set that may be downloaded."""

TEXT_EXTRA = describe_install("text")
"""The hint if the packages for texts are missing."""

OWN_FILE_HINT = "put the file there, or add its folder to FEDSIM_DATA (for a job: that of its service)"
"""The hint for a file of the user's own."""

TABLE_EXTRA = TEXT_EXTRA.replace("text", "table")
"""The hint if the package for tables is missing."""


def leaves_root(path: str) -> bool:
    """Whether a path from a user leads out of its folder."""
    return Path(path).is_absolute() or ".." in Path(path).parts


class InsideRoot:
    """The limit of a parameter that names a file or a folder: it must not lead out of the data roots."""

    hint = "put the data under a data root, and name it from there"

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and not leaves_root(value)

    def __str__(self) -> str:
        return "that names a place inside a data root (relative, without ..)"


DataPath: TypeAlias = Annotated[str, InsideRoot()]
"""The type of every parameter that names a file or a folder below a data root, plug-ins' own included: fedsim
refuses other paths before a loader sees them."""


@dataclass(frozen=True)
class DataRoots:
    """The data roots of a run, in the order of the search.

    Attributes:
        roots: folders of data sets; folders that do not exist are skipped.
        download: whether a loader may download missing files.
        system: folder of the data sets of the operating system's packages.
    """

    roots: tuple[Path, ...] = ()
    download: bool = False
    system: Path = field(default=Path("/usr/share/datasets"))

    def find_path(self, candidates: Iterable[str]) -> Path | None:
        """The first of the relative paths that exists under a root."""
        names = list(candidates)
        paths = (root.expanduser() / name for root in self.roots for name in names)
        # os.path: pathlib raises an error for a name that no file system accepts.
        return next((path for path in paths if os.path.exists(path)), None)

    def find_installed(self, name: str) -> Path | None:
        """The folder of this data set from the operating system's package, if it is installed."""
        folder = self.system / name
        return folder if folder.is_dir() else None

    def resolve_path(self, what: str, path: str, get: str, argument: str = "path") -> Path:
        """Return a file or folder inside a data root, from a user's path.

        Args:
            what: the data set's name, for the message.
            path: relative to a root.
            get: the hint of the error.
            argument: the parameter with this path.

        Raises:
            SpecError: if the path leads out of the data roots.
            DataNotFound: if it is in no root.
        """
        if leaves_root(path):
            message = f"has to be text {InsideRoot()}"
            raise make_spec_error(argument, path, message, InsideRoot.hint)
        return self.require_path(what, (path,), get)

    def require_path(self, name: str, candidates: Sequence[str], get: str) -> Path:
        """Return the first of the relative paths that exists in a root.

        Raises:
            DataNotFound: if none exists; the message says how to get the data set.
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
        """Return the first root, the target of downloads; it is made if missing.

        Raises:
            DataNotFound: if there is no root.
        """
        if not self.roots:
            raise DataNotFound(
                f"{name}: there is no data root to download into", "set FEDSIM_DATA to a folder"
            )
        root = self.roots[0].expanduser()
        root.mkdir(parents=True, exist_ok=True)
        return root


NO_ROOTS = DataRoots()
"""No data root: every look-up of a file fails."""
