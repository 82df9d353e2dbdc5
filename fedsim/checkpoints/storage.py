"""Folder: whole files by name in one place that fsspec can reach, on a disk or in somebody's object store."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from fedsim.base.secret_urls import find_secrets, hide_secrets, remove_secrets
from fedsim.errors import CheckpointError

HINT = "it has to be a place that can be reached and written, with room: FEDSIM_STORAGE or --out names it"

PIECE = 2**20
"""Bytes that a stream reads at once."""

_FAILURES = (OSError, ValueError, ImportError, RuntimeError)


class Folder:
    """Files that are written whole or not at all. The folder is made when something is written.

    Args:
        url: a path, or any URL that fsspec knows: `file:///...`, `s3://bucket/path`, ...

    Raises:
        CheckpointError: a URL that means nothing, or whose driver is not installed; every method raises it
            too, naming the URL and the cause.
    """

    def __init__(self, url: str) -> None:
        self.url, self._secrets = remove_secrets(url), find_secrets(url)
        with self._name_errors("cannot be used"):
            filesystem, path = fsspec.core.url_to_fs(url)
        self._files: Any = filesystem
        self._path: str = path.rstrip("/")
        self._local = isinstance(filesystem, LocalFileSystem)

    def __repr__(self) -> str:
        return f"Folder({self.url!r})"

    def full_name(self, file: str) -> str:
        """How messages call a file."""
        return f"{self.url.rstrip('/')}/{file}"

    def check_writable(self) -> None:
        """Make sure that files can be written here, by writing one and reading it back."""
        name, content = f".probe-{secrets.token_hex(4)}", secrets.token_bytes(4096)
        self.write(name, content)
        try:
            if self.read(name) != content:
                raise CheckpointError(f"{self.url} gives back something else than was written there", HINT)
        finally:
            self.remove_files([name])

    def write(self, file: str, content: bytes) -> None:
        """Write a file. After a failure, or a crash, it is as it was before or not there."""
        with self._name_errors(f"cannot be written ({file}, {len(content):,} bytes)"):
            if self._local:
                _write_aside(Path(self._path), file, content)
            else:
                # An object store takes an object whole; what is cut off elsewhere, its reader finds out.
                self._files.makedirs(self._path, exist_ok=True)
                self._files.pipe_file(f"{self._path}/{file}", content)

    def read(self, file: str) -> bytes:
        """The content of a file."""
        with self._name_errors(f"cannot be read ({file})"):
            content: bytes = self._files.cat_file(f"{self._path}/{file}")
            return content

    def size(self, file: str) -> int | None:
        """How many bytes a file has; None where there is none."""
        with self._name_errors(f"cannot be read ({file})"):
            self._files.invalidate_cache()
            try:
                return int(self._files.size(f"{self._path}/{file}"))
            except FileNotFoundError:
                return None

    def open_stream(self, file: str) -> tuple[int, Iterator[bytes]] | None:
        """How many bytes a file has, and its content, a piece at a time; None where there is none.

        Both are of one and the same file, also where another one takes its place while this one is read.
        """
        with self._name_errors(f"cannot be read ({file})"):
            self._files.invalidate_cache()
            try:
                stream = self._files.open(f"{self._path}/{file}", "rb")
            except FileNotFoundError:
                return None
            size = int(stream.seek(0, os.SEEK_END))
            stream.seek(0)
        return size, self._pieces(file, stream)

    def _pieces(self, file: str, stream: Any) -> Iterator[bytes]:
        with self._name_errors(f"cannot be read ({file})"), stream:
            while piece := stream.read(PIECE):
                yield piece

    def list_files(self) -> list[str]:
        """The names of all files, in order; none where there is no folder."""
        with self._name_errors("cannot be listed"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path, detail=False)
            except FileNotFoundError:
                return []
            return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def remove_files(self, files: Collection[str]) -> None:
        """Remove files as far as they can be removed: one that stays costs room and nothing else."""
        for file in files:
            with suppress(*_FAILURES):
                self._files.rm_file(f"{self._path}/{file}")

    def clear(self) -> None:
        """Remove the folder and all that is in it, if it is there."""
        with self._name_errors("cannot be removed"), suppress(FileNotFoundError):
            self._files.rm(self._path, recursive=True)

    @contextmanager
    def _name_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            cause = hide_secrets(f"{type(error).__name__}: {error}", self._secrets)
            raise CheckpointError(f"{self.url} {what}: {cause}", HINT) from error


def _write_aside(folder: Path, file: str, content: bytes) -> None:
    """Write under another name, have the disk take it, then rename: there is never half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{file}.{secrets.token_hex(4)}"
    try:
        with aside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(folder / file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Have the disk take the names too; not every system lets a folder be opened for that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
