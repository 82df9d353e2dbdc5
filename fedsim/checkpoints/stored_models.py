"""Models on disk that a run keeps beside its state: the one that validation chose, and the best by `stop`.

A checkpoint writes such a model only when it has changed, and else names the file of an earlier checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fedsim.checkpoints.serialization import pack
from fedsim.checkpoints.storage import Folder
from fedsim.checkpoints.stored_files import StoredFile
from fedsim.engine.evaluation.model_selection import BestModel, ChosenModel

KINDS = ("chosen", "best")
"""The kinds, which are also the beginnings of their file names; `OURS` of `checkpoint.py` lists these too."""

Model = TypeVar("Model", ChosenModel, BestModel)


class StoredModels:
    """The stored models of a run, at most one of each kind in `KINDS`.

    Args:
        folder: the folder of the files.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._files: dict[str, tuple[ChosenModel | BestModel, StoredFile]] = {}

    def save(self, kind: str, round: int, model: ChosenModel | BestModel | None) -> None:
        """Write a model, unless its file exists already; forget the file if there is no model."""
        if model is None:
            self._files.pop(kind, None)
        elif kind not in self._files or self._files[kind][0] is not model:
            self._files[kind] = model, StoredFile.write(self.folder, kind, round, pack(vars(model)))

    def load(
        self, kind: str, content: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Model]
    ) -> Model | None:
        """Read a model that the content of a manifest names; None if it names none.

        Args:
            kind: one of `KINDS`.
            content: of the manifest.
            make: makes the model from its fields.

        Raises:
            CheckpointError: the file is missing or damaged.
        """
        if not content.get(kind):
            return None
        file = StoredFile.from_entry(content[kind])
        model = make(file.unpack(self.folder))
        self._files[kind] = model, file
        return model

    def list_entries(self) -> dict[str, dict[str, Any] | None]:
        """Return the entries of the files for a manifest, by kind; None for a kind without a model."""
        return {kind: self._files[kind][1].to_entry() if kind in self._files else None for kind in KINDS}
