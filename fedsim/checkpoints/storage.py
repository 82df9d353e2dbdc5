"""Folder: named files in one place that fsspec can reach, on a disk or in an object store."""

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
"""Number of bytes that a stream reads at once."""

_FAILURES = (OSError, ValueError, ImportError, RuntimeError)


class Folder:
    """A folder whose files are written completely or not at all; the first write creates the folder.

    Args:
        url: a path, or any URL that fsspec supports, such as `file:///...` or `s3://bucket/path`.

    Raises:
        CheckpointError: the URL is invalid, or its driver is not installed. Every method raises it too, with
            the URL and the cause.
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
        """Return the name of a file for messages: the URL of the folder and the file name."""
        return f"{self.url.rstrip('/')}/{file}"

    def check_writable(self) -> None:
        """Write a test file, read it back and remove it; raise CheckpointError if that fails."""
        name, content = f".probe-{secrets.token_hex(4)}", secrets.token_bytes(4096)
        self.write(name, content)
        try:
            if self.read(name) != content:
                raise CheckpointError(f"{self.url} gives back something else than was written there", HINT)
        finally:
            self.remove_files([name])

    def write(self, file: str, content: bytes) -> None:
        """Write a file. After a failure or crash the file is unchanged, or missing if it was new."""
        with self._name_errors(f"cannot be written ({file}, {len(content):,} bytes)"):
            if self._local:
                _write_aside(Path(self._path), file, content)
            else:
                # An object store writes whole objects; elsewhere, the reader detects a cut-off file.
                self._files.makedirs(self._path, exist_ok=True)
                self._files.pipe_file(f"{self._path}/{file}", content)

    def read(self, file: str) -> bytes:
        """Return the content of a file."""
        with self._name_errors(f"cannot be read ({file})"):
            content: bytes = self._files.cat_file(f"{self._path}/{file}")
            return content

    def size(self, file: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        with self._name_errors(f"cannot be read ({file})"):
            self._files.invalidate_cache()
            try:
                return int(self._files.size(f"{self._path}/{file}"))
            except FileNotFoundError:
                return None

    def open_stream(self, file: str) -> tuple[int, Iterator[bytes]] | None:
        """Return the size of a file in bytes and an iterator over its content; None if it does not exist.

        Size and content belong to the same file, even if another file replaces it during the reading.
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
        """Yield the content of an open file in pieces of `PIECE` bytes; close it at the end."""
        with self._name_errors(f"cannot be read ({file})"), stream:
            while piece := stream.read(PIECE):
                yield piece

    def list_files(self) -> list[str]:
        """List the names of all files, sorted; empty if the folder does not exist."""
        with self._name_errors("cannot be listed"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path, detail=False)
            except FileNotFoundError:
                return []
            return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def remove_files(self, files: Collection[str]) -> None:
        """Remove files; ignore failures, because a file that stays only takes space."""
        for file in files:
            with suppress(*_FAILURES):
                self._files.rm_file(f"{self._path}/{file}")

    def clear(self) -> None:
        """Remove the folder and everything in it, if it exists."""
        with self._name_errors("cannot be removed"), suppress(FileNotFoundError):
            self._files.rm(self._path, recursive=True)

    @contextmanager
    def _name_errors(self, what: str) -> Iterator[None]:
        """Turn failures inside into a CheckpointError with the URL and the cause, without secrets."""
        try:
            yield
        except _FAILURES as error:
            cause = hide_secrets(f"{type(error).__name__}: {error}", self._secrets)
            raise CheckpointError(f"{self.url} {what}: {cause}", HINT) from error


def _write_aside(folder: Path, file: str, content: bytes) -> None:
    """Write under another name, flush to disk, then rename: there is never half a file."""
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
    """Flush the file names of a folder to disk; systems that cannot open a folder skip this."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
