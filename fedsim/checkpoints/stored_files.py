"""Client states and round records on disk: the parts of a checkpoint that grow with the run.

A checkpoint does not write them anew each time. It writes new states and records, and names the files of
earlier checkpoints that still hold current ones. A file with mostly outdated content is rewritten, so the
files take at most about twice the space of their current content.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsim.base import tree
from fedsim.base.digest import ClientStatesDigest, client_state_digests
from fedsim.base.tree import Tree
from fedsim.checkpoints.serialization import pack, unpack
from fedsim.checkpoints.storage import Folder
from fedsim.errors import CheckpointError

FILE_BYTES = 32 << 20
"""Target size of a file of client states; about twice this amount is in RAM while files are written."""

LARGEST_CHUNK = 4096
"""Largest number of clients whose states are fetched at once."""

FetchClientStates = Callable[[Sequence[int]], Mapping[int, Tree]]
"""Function that returns the states of the given clients; clients without a state may be missing."""


@dataclass(frozen=True)
class StoredFile:
    """One file of a checkpoint: its name, size and SHA-256."""

    name: str
    size: int
    sha256: str

    @classmethod
    def write(cls, folder: Folder, kind: str, round: int, content: bytes) -> StoredFile:
        """Write a file under a unique name, so that two writers never overwrite each other's files."""
        suffix = "jsonl" if kind == "records" else "safetensors"
        name = f"{kind}-{round:06d}-{secrets.token_hex(4)}.{suffix}"
        folder.write(name, content)
        return cls(name, len(content), hashlib.sha256(content).hexdigest())

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> StoredFile:
        """Make a file from its entry in a manifest."""
        return cls(str(entry["name"]), int(entry["bytes"]), str(entry["sha256"]))

    def to_entry(self, **more: Any) -> dict[str, Any]:
        """Return the entry of this file for a manifest."""
        return {"name": self.name, "bytes": self.size, "sha256": self.sha256, **more}

    def read(self, folder: Folder) -> bytes:
        """Read the file and check its size and SHA-256.

        Raises:
            CheckpointError: the file is missing or damaged.
        """
        content = folder.read(self.name)
        if len(content) != self.size or hashlib.sha256(content).hexdigest() != self.sha256:
            raise CheckpointError(f"{folder.full_name(self.name)} is damaged: it is not what was written")
        return content

    def unpack(self, folder: Folder, template: Any = None) -> Any:
        """Read the file, and unpack its content with a template.

        Raises:
            CheckpointError: the file is missing or damaged, or its form differs from the template's.
        """
        try:
            return unpack(self.read(folder), template)
        except ValueError as error:
            raise CheckpointError(f"{folder.full_name(self.name)} {error}") from error


@dataclass
class _ClientStateFile:
    """A file of client states, its number of states, and the clients whose latest state is in it."""

    file: StoredFile
    entries: int
    clients: set[int] = field(default_factory=set)


class StoredClientStates:
    """The stored client states of a run, and the file that holds each client's latest state.

    Args:
        folder: the folder of the files.
        entries: the entries of the files in a manifest.
    """

    def __init__(self, folder: Folder, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self.folder = folder
        self._files = [
            _ClientStateFile(StoredFile.from_entry(entry), int(entry["entries"]), set(entry["clients"]))
            for entry in entries
        ]
        self._holder = {client: held for held in self._files for client in held.clients}

    def save(self, round: int, changed: Iterable[int], fetch: FetchClientStates) -> None:
        """Write the changed client states, and move the remaining states out of mostly outdated files."""
        wanted = set(changed)
        for held in self._files:
            live = held.clients - wanted
            if 2 * len(live) < held.entries:
                wanted |= live
        waiting: dict[int, Tree] = {}
        size = 0
        for client, client_state in _fetch_in_chunks(sorted(wanted), fetch):
            waiting[client] = client_state
            size += _bytes(client_state)
            if size >= FILE_BYTES:
                self._write_file(round, waiting)
                waiting, size = {}, 0
        if waiting:
            self._write_file(round, waiting)
        self._files = [held for held in self._files if held.clients]

    def _write_file(self, round: int, client_states: dict[int, Tree]) -> None:
        """Write these client states into one file, which is then the latest for these clients."""
        file = StoredFile.write(self.folder, "memories", round, pack(client_states))
        made = _ClientStateFile(file, len(client_states), set(client_states))
        for client in client_states:
            if client in self._holder:
                self._holder[client].clients.discard(client)
            self._holder[client] = made
        self._files.append(made)

    def list_entries(self) -> list[dict[str, Any]]:
        """Return the entries of the files for a manifest."""
        return [
            held.file.to_entry(entries=held.entries, clients=sorted(held.clients)) for held in self._files
        ]

    def __iter__(self) -> Iterator[dict[int, Tree]]:
        """Yield the latest states of all clients, file by file.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        for held in self._files:
            try:
                found = unpack(held.file.read(self.folder))
                yield {client: found[client] for client in sorted(held.clients)}
            except (ValueError, KeyError) as error:
                raise CheckpointError(
                    f"{self.folder.full_name(held.file.name)} is damaged: {error}"
                ) from error

    def digest(self) -> str:
        """Return the digest of all client states (see `ClientStatesDigest`); read file by file.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        found = ClientStatesDigest()
        for client_states in self:
            found.update(client_state_digests(client_states))
        return found.hexdigest()

    def check_files(self) -> None:
        """Read every file; raise CheckpointError if one is missing or damaged."""
        for held in self._files:
            held.file.read(self.folder)


def _fetch_in_chunks(clients: Sequence[int], fetch: FetchClientStates) -> Iterator[tuple[int, Tree]]:
    """Fetch client states in chunks of clients, sized by the largest state seen so far.

    The first state is fetched alone because its size is unknown. Each chunk has at most twice as many clients
    as the one before. Clients of several architectures alternate, so the largest state comes early.
    """
    start, count, heaviest = 0, 1, 1
    while start < len(clients):
        chunk = fetch(clients[start : start + count])
        yield from chunk.items()
        start += count
        heaviest = max(heaviest, *map(_bytes, chunk.values()), 1)
        count = max(1, min(LARGEST_CHUNK, 2 * count, FILE_BYTES // heaviest))


def _bytes(client_state: Tree) -> int:
    """Return the size of a client state in bytes."""
    return sum(leaf.numel() * leaf.element_size() for _, leaf in tree.leaves(client_state))


class StoredRecords:
    """The stored records of all rounds, in few files: small files merge, like digits of a binary counter.

    Args:
        folder: the folder of the files.
        entries: the entries of the files in a manifest.
    """

    def __init__(self, folder: Folder, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self.folder = folder
        self._files = [(StoredFile.from_entry(entry), int(entry["rounds"])) for entry in entries]

    def save(self, round: int, fresh: Sequence[Mapping[str, Any]]) -> None:
        """Write the records since the last checkpoint, merged with earlier files that are no larger."""
        content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in fresh).encode()
        rounds = len(fresh)
        while self._files and self._files[-1][1] <= rounds:
            file, more = self._files.pop()
            content, rounds = file.read(self.folder) + content, rounds + more
        self._files.append((StoredFile.write(self.folder, "records", round, content), rounds))

    def list_entries(self) -> list[dict[str, Any]]:
        """Return the entries of the files for a manifest."""
        return [file.to_entry(rounds=rounds) for file, rounds in self._files]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield every record, from round 1 on.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        for file, _ in self._files:
            for line in file.read(self.folder).splitlines():
                yield json.loads(line)

    def check_files(self) -> None:
        """Read every file; raise CheckpointError if one is missing or damaged."""
        for file, _ in self._files:
            file.read(self.folder)
