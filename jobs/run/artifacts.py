"""The files that a job leaves behind, by name: a closed list, so that no name can become a path elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from fedsim.checkpoints.storage import Folder
from fedsim.engine.model_selection import ChosenModel
from fedsim.errors import ArtifactNotFound, CheckpointError
from jobs.settings import Settings
from jobs.store.records import Job


class ArtifactKind(NamedTuple):
    """What an artifact is: its media type, and a sentence."""

    media_type: str
    description: str


SPEC, REPORT, MODEL, PARTITION = "spec.yaml", "report.json", "model.safetensors", "partition.safetensors"
CHOSEN, PERSONAL = "chosen.safetensors", "personal.csv"

ARTIFACTS: Mapping[str, ArtifactKind] = MappingProxyType(
    {
        SPEC: ArtifactKind("application/yaml", "the spec, every default filled in"),
        REPORT: ArtifactKind(
            "application/json", "spec, all round records, and the result: final, best, totals"
        ),
        MODEL: ArtifactKind(
            "application/octet-stream", "the global model after the last round, by parameter name"
        ),
        CHOSEN: ArtifactKind(
            "application/octet-stream",
            "the model that did best on the validation split, of all scored rounds and deployed models; its "
            "metadata has round, model and validation_accuracy",
        ),
        PARTITION: ArtifactKind(
            "application/octet-stream",
            "who held which training example: client i has indices[offsets[i]:offsets[i + 1]], positions in "
            "what the public and then the validation set left of the training data, in order (with merged "
            "tests, the test data stands behind it)",
        ),
        PERSONAL: ArtifactKind(
            "text/csv",
            "how each client's own model did when they were last scored: client, tests, correct, loss",
        ),
    }
)

STORED_ARTIFACTS = (MODEL, CHOSEN, PARTITION, PERSONAL)
"""Written by the runner; the others are made of what the store has, whenever somebody asks."""

NO_NOTES: Mapping[str, str] = MappingProxyType({})


def spec_text(job: Job) -> str:
    """The spec of a job as YAML."""
    return yaml.safe_dump(job.spec, sort_keys=False, allow_unicode=True)


def save_spec(settings: Settings, job: Job) -> None:
    """Write the spec into the job's directory, beside its log.

    Raises:
        CheckpointError: the directory cannot be written.
    """
    Folder(str(settings.job_dir(job.id))).write(SPEC, spec_text(job).encode())


def save_model(
    settings: Settings, job_id: str, model: Mapping[str, Any], notes: Mapping[str, str] = NO_NOTES
) -> None:
    """Write the final model; nothing where the method has none for everybody.

    Args:
        settings: where to.
        job_id: the job.
        model: NumPy arrays by parameter name, or nothing.
        notes: what one needs to use it, for its metadata.

    Raises:
        CheckpointError: the place cannot be written.
    """
    if model:
        _folder(settings, job_id).write(MODEL, pack_model(model, {"job": job_id, **notes}))


def pack_model(model: Mapping[str, Any], notes: Mapping[str, str]) -> bytes:
    """`model.safetensors`, with these notes as its metadata."""
    return _pack_arrays(model, dict(notes))


def save_chosen_model(
    settings: Settings, job_id: str, chosen: ChosenModel | None, notes: Mapping[str, str] = NO_NOTES
) -> None:
    """Write the model that validation chose; nothing where there is none.

    Args:
        settings: where to.
        job_id: the job.
        chosen: the model, over NumPy arrays.
        notes: what one needs to use it, for its metadata.

    Raises:
        CheckpointError: the place cannot be written.
    """
    if chosen is not None:
        _folder(settings, job_id).write(CHOSEN, pack_chosen_model(chosen, {"job": job_id, **notes}))


def pack_chosen_model(chosen: ChosenModel, notes: Mapping[str, str]) -> bytes:
    """`chosen.safetensors`, with these notes in its metadata besides."""
    return _pack_arrays(chosen.params, {**notes, **chosen.to_text()})


def save_partition(settings: Settings, job_id: str, arrays: Mapping[str, Any], about: Any) -> None:
    """Write a partition; nothing where clients sample their examples when asked, so that none is kept.

    Args:
        settings: where to.
        job_id: the job.
        arrays: `indices` int64 [M] and `offsets` int64 [N + 1], or nothing.
        about: what made it, as plain data.

    Raises:
        CheckpointError: the place cannot be written.
    """
    if not arrays:
        return
    content = hashlib.sha256()
    for name in ("indices", "offsets"):
        content.update(arrays[name].astype("<i8").tobytes())
    notes = {"job": job_id, "about": json.dumps(about), "digest": content.hexdigest()}
    _folder(settings, job_id).write(PARTITION, _pack_arrays(arrays, notes))


def save_personal_scores(settings: Settings, job_id: str, text: str) -> None:
    """Write how the clients' own models did, in place of what was there.

    Args:
        settings: where to.
        job_id: the job.
        text: of the CSV file.

    Raises:
        CheckpointError: the place cannot be written.
    """
    _folder(settings, job_id).write(PERSONAL, text.encode())


def list_stored_artifacts(settings: Settings, job_id: str) -> dict[str, int]:
    """The artifacts that the runner of a job has written, with their sizes in bytes.

    Raises:
        CheckpointError: the place cannot be read.
    """
    folder = _folder(settings, job_id)
    there = set(folder.list_files())
    sizes = {name: folder.size(name) for name in STORED_ARTIFACTS if name in there}
    return {name: size for name, size in sizes.items() if size is not None}


def open_artifact(settings: Settings, job_id: str, name: str) -> tuple[int, Iterator[bytes]]:
    """The size of an artifact that the runner has written, and its content, a piece at a time.

    Raises:
        ArtifactNotFound: it is not there.
        CheckpointError: the place cannot be read.
    """
    found = _folder(settings, job_id).open_stream(name) if name in STORED_ARTIFACTS else None
    if found is None:
        raise make_no_artifact_error(job_id, name)
    return found


def remove_files(settings: Settings, job_id: str) -> list[CheckpointError]:
    """Remove what a job left: its checkpoints, and its artifacts whatever becomes of those.

    Returns:
        Why files stay behind; nothing where all are gone.
    """
    trouble: list[CheckpointError] = []
    for url in (settings.checkpoint_url(job_id), settings.artifact_url(job_id)):
        try:
            Folder(url).clear()
        except CheckpointError as error:
            trouble.append(error)
    return trouble


def make_no_artifact_error(job_id: str, name: str) -> ArtifactNotFound:
    """The error for a name that is no artifact, or one that is not there (yet)."""
    if name in ARTIFACTS:
        hint = "it is written when the job succeeds; clients that only sample have no partition"
        if name == MODEL:
            hint = "it is written when the job succeeds, by methods that have a model for everybody"
        if name == PERSONAL:
            hint = "it is written when clients' own models are scored; see evaluation.personal"
        if name == CHOSEN:
            hint = "it is written when a job with evaluation.validation succeeds"
        return ArtifactNotFound(f"job {job_id} has no {name}", hint)
    return ArtifactNotFound(
        f"there is no artifact {name[:80]!r}", f"the artifacts are {', '.join(ARTIFACTS)}"
    )


def _folder(settings: Settings, job_id: str) -> Folder:
    return Folder(settings.artifact_url(job_id))


def _pack_arrays(arrays: Mapping[str, Any], notes: dict[str, str]) -> bytes:
    import numpy as np
    from safetensors.numpy import save

    packed: bytes = save(
        {name: np.ascontiguousarray(value) for name, value in _flatten_arrays(arrays)}, notes
    )
    return packed


def _flatten_arrays(arrays: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays of a tree, by their way through it: `1/head.bias` of the architecture number 1."""
    for name, value in arrays.items():
        if isinstance(value, Mapping):
            yield from _flatten_arrays(value, f"{above}{name}/")
        else:
            yield f"{above}{name}", value
