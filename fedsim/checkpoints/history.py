"""What a checkpoint keeps besides the server state: every client's memory, and the record of every round.

Both grow with the run, so neither is written anew each time: a checkpoint writes what is new, and names the
files of earlier ones that still hold something. Files whose content has mostly been superseded are rewritten,
so that they take at most about twice the room of what they are for.
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
"""Memories go into files of about this size, which is also what is in memory of them at once, twice."""

LARGEST_CHUNK = 4096

FetchClientStates = Callable[[Sequence[int]], Mapping[int, Tree]]
"""What these clients keep; those that keep nothing may be missing."""


@dataclass(frozen=True)
class StoredFile:
    """One file of a checkpoint: its name, size and SHA-256."""

    name: str
    size: int
    sha256: str

    @classmethod
    def write(cls, folder: Folder, kind: str, round: int, content: bytes) -> StoredFile:
        """Write a file under a name that no other has, so that two writers cannot get in each other's way."""
        suffix = "jsonl" if kind == "records" else "safetensors"
        name = f"{kind}-{round:06d}-{secrets.token_hex(4)}.{suffix}"
        folder.write(name, content)
        return cls(name, len(content), hashlib.sha256(content).hexdigest())

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> StoredFile:
        """A file as a manifest describes it."""
        return cls(str(entry["name"]), int(entry["bytes"]), str(entry["sha256"]))

    def to_entry(self, **more: Any) -> dict[str, Any]:
        """The file as a manifest describes it."""
        return {"name": self.name, "bytes": self.size, "sha256": self.sha256, **more}

    def read(self, folder: Folder) -> bytes:
        """The content, as it was written.

        Raises:
            CheckpointError: it is not there, or is not what was written.
        """
        content = folder.read(self.name)
        if len(content) != self.size or hashlib.sha256(content).hexdigest() != self.sha256:
            raise CheckpointError(f"{folder.full_name(self.name)} is damaged: it is not what was written")
        return content


@dataclass
class _ClientStateFile:
    """A file of memories, how many it has, and the clients for which it is the latest."""

    file: StoredFile
    entries: int
    clients: set[int] = field(default_factory=set)


class StoredClientStates:
    """The clients' memories over all checkpoints of a run: who is in which file.

    Args:
        folder: where the files are.
        entries: what a manifest says of them.
    """

    def __init__(self, folder: Folder, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self.folder = folder
        self._files = [
            _ClientStateFile(StoredFile.from_entry(entry), int(entry["entries"]), set(entry["clients"]))
            for entry in entries
        ]
        self._holder = {client: held for held in self._files for client in held.clients}

    def save(self, round: int, changed: Iterable[int], fetch: FetchClientStates) -> None:
        """Write the memories that have changed, and those that lie in files which are mostly superseded."""
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
        file = StoredFile.write(self.folder, "memories", round, pack(client_states))
        made = _ClientStateFile(file, len(client_states), set(client_states))
        for client in client_states:
            if client in self._holder:
                self._holder[client].clients.discard(client)
            self._holder[client] = made
        self._files.append(made)

    def list_entries(self) -> list[dict[str, Any]]:
        """The files as a manifest describes them."""
        return [
            held.file.to_entry(entries=held.entries, clients=sorted(held.clients)) for held in self._files
        ]

    def __iter__(self) -> Iterator[dict[int, Tree]]:
        """Every client's memory, file by file.

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
        """Of all memories, as `Fingerprint` has it; read file by file.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        found = ClientStatesDigest()
        for client_states in self:
            found.update(client_state_digests(client_states))
        return found.hexdigest()

    def check_files(self) -> None:
        """Make sure that every file is there and as it was written."""
        for held in self._files:
            held.file.read(self.folder)


def _fetch_in_chunks(clients: Sequence[int], fetch: FetchClientStates) -> Iterator[tuple[int, Tree]]:
    """The memories of clients, fetched in chunks whose size follows from the heaviest memory so far.

    The first one is fetched alone, since nobody knows what it weighs, and a chunk is at most twice as large
    as the one before: clients of several architectures come in turn, so that the heaviest is met early.
    """
    start, count, heaviest = 0, 1, 1
    while start < len(clients):
        chunk = fetch(clients[start : start + count])
        yield from chunk.items()
        start += count
        heaviest = max(heaviest, *map(_bytes, chunk.values()), 1)
        count = max(1, min(LARGEST_CHUNK, 2 * count, FILE_BYTES // heaviest))


def _bytes(client_state: Tree) -> int:
    return sum(leaf.numel() * leaf.element_size() for _, leaf in tree.leaves(client_state))


class StoredRecords:
    """The records of all rounds, in files that are merged as they become many, like the digits of a counter.

    Args:
        folder: where the files are.
        entries: what a manifest says of them.
    """

    def __init__(self, folder: Folder, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self.folder = folder
        self._files = [(StoredFile.from_entry(entry), int(entry["rounds"])) for entry in entries]

    def save(self, round: int, fresh: Sequence[Mapping[str, Any]]) -> None:
        """Write the records since the last checkpoint; with them those of files that are no larger."""
        content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in fresh).encode()
        rounds = len(fresh)
        while self._files and self._files[-1][1] <= rounds:
            file, more = self._files.pop()
            content, rounds = file.read(self.folder) + content, rounds + more
        self._files.append((StoredFile.write(self.folder, "records", round, content), rounds))

    def list_entries(self) -> list[dict[str, Any]]:
        """The files as a manifest describes them."""
        return [file.to_entry(rounds=rounds) for file, rounds in self._files]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every record, from round 1.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        for file, _ in self._files:
            for line in file.read(self.folder).splitlines():
                yield json.loads(line)

    def check_files(self) -> None:
        """Make sure that every file is there and as it was written."""
        for file, _ in self._files:
            file.read(self.folder)
