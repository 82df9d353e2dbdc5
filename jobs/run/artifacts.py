"""The files that a job leaves, by name. The list is closed: no other name can become a path."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedsim.checkpoints.storage import Folder
from fedsim.engine.evaluation.model_selection import ChosenModel
from fedsim.errors import ArtifactNotFound, CheckpointError
from jobs.settings import MODEL_FILE, Settings
from jobs.spec.spec_text import dump_spec
from jobs.store.records import Job


class ArtifactKind(NamedTuple):
    """The media type of an artifact, and its description."""

    media_type: str
    description: str


SPEC, REPORT, MODEL, PARTITION = "spec.yaml", "report.json", MODEL_FILE, "partition.safetensors"
CHOSEN, PERSONAL = "chosen.safetensors", "personal.csv"

ARTIFACTS: Mapping[str, ArtifactKind] = MappingProxyType(
    {
        SPEC: ArtifactKind("application/yaml", "the spec, every default filled in"),
        REPORT: ArtifactKind(
            "application/json", "spec, all round records, and the result: final, best, totals"
        ),
        MODEL: ArtifactKind(
            "application/octet-stream", "the global model of the last round, or the best one (stop.patience)"
        ),
        CHOSEN: ArtifactKind(
            "application/octet-stream",
            "the model that did best on the validation split, of all scored rounds and deployed models; its "
            "metadata has round, model and the value that chose it, such as validation_accuracy",
        ),
        PARTITION: ArtifactKind(
            "application/octet-stream",
            "the examples of each client: client i has indices[offsets[i]:offsets[i + 1]]. The indices count "
            "the training data in order, without the public set and the validation set (with merged tests "
            "the test data follows the training data)",
        ),
        PERSONAL: ArtifactKind(
            "text/csv",
            "how each client's own model did when they were last scored: client, tests, and scores such as "
            "correct and loss",
        ),
    }
)

STORED_ARTIFACTS = (MODEL, CHOSEN, PARTITION, PERSONAL)
"""Artifacts that the runner writes. The API makes the others from the store on each request."""

NO_NOTES: Mapping[str, str] = MappingProxyType({})


def save_spec(settings: Settings, job: Job) -> None:
    """Write the spec into the job's directory, beside its log.

    Raises:
        CheckpointError: the directory cannot be written.
    """
    Folder(str(settings.job_dir(job.id))).write(SPEC, dump_spec(job.spec).encode())


def save_model(
    settings: Settings, job_id: str, model: Mapping[str, Any], notes: Mapping[str, str] = NO_NOTES
) -> None:
    """Write the final global model; write nothing if the algorithm has none.

    Args:
        settings: where to.
        job_id: the job.
        model: NumPy arrays by parameter name, or nothing.
        notes: the file's metadata; see `make_model_notes`.

    Raises:
        CheckpointError: the place cannot be written.
    """
    if model:
        _open_folder(settings, job_id).write(MODEL, pack_model(model, {"job": job_id, **notes}))


def pack_model(model: Mapping[str, Any], notes: Mapping[str, str]) -> bytes:
    """Return the content of `model.safetensors`, with these notes as its metadata."""
    return _pack_arrays(model, dict(notes))


def save_chosen_model(
    settings: Settings, job_id: str, chosen: ChosenModel | None, notes: Mapping[str, str] = NO_NOTES
) -> None:
    """Write the model that validation chose; write nothing if there is none.

    Args:
        settings: where to.
        job_id: the job.
        chosen: the model, over NumPy arrays.
        notes: the file's metadata; see `make_model_notes`.

    Raises:
        CheckpointError: the place cannot be written.
    """
    if chosen is not None:
        _open_folder(settings, job_id).write(CHOSEN, pack_chosen_model(chosen, {"job": job_id, **notes}))


def pack_chosen_model(chosen: ChosenModel, notes: Mapping[str, str]) -> bytes:
    """Return the content of `chosen.safetensors`; its metadata also holds these notes."""
    return _pack_arrays(chosen.params, {**notes, **chosen.to_text()})


def save_partition(settings: Settings, job_id: str, arrays: Mapping[str, Any], about: Any) -> None:
    """Write a partition; write nothing if clients sample their examples on demand.

    Args:
        settings: where to.
        job_id: the job.
        arrays: `indices` int64 [M] and `offsets` int64 [N + 1], or {}.
        about: the seed, the clients and the data section of the spec, as plain data.

    Raises:
        CheckpointError: the place cannot be written.
    """
    if not arrays:
        return
    content = hashlib.sha256()
    for name in ("indices", "offsets"):
        content.update(arrays[name].astype("<i8").tobytes())
    notes = {"job": job_id, "about": json.dumps(about), "digest": content.hexdigest()}
    _open_folder(settings, job_id).write(PARTITION, _pack_arrays(arrays, notes))


def save_personal_scores(settings: Settings, job_id: str, text: str) -> None:
    """Write the scores of the personal models; replace an earlier file.

    Args:
        settings: where to.
        job_id: the job.
        text: of the CSV file.

    Raises:
        CheckpointError: the place cannot be written.
    """
    _open_folder(settings, job_id).write(PERSONAL, text.encode())


def list_stored_artifacts(settings: Settings, job_id: str) -> dict[str, int]:
    """Return the artifacts that the runner of a job has written, with their sizes in bytes.

    Raises:
        CheckpointError: the place cannot be read.
    """
    folder = _open_folder(settings, job_id)
    there = set(folder.list_files())
    sizes = {name: folder.size(name) for name in STORED_ARTIFACTS if name in there}
    return {name: size for name, size in sizes.items() if size is not None}


def open_artifact(settings: Settings, job_id: str, name: str) -> tuple[int, Iterator[bytes]]:
    """Return the size of an artifact that the runner wrote, and an iterator over its content.

    Raises:
        ArtifactNotFound: it is not there.
        CheckpointError: the place cannot be read.
    """
    found = _open_folder(settings, job_id).open_stream(name) if name in STORED_ARTIFACTS else None
    if found is None:
        raise make_no_artifact_error(job_id, name)
    return found


def remove_files(settings: Settings, job_id: str) -> list[CheckpointError]:
    """Remove a job's checkpoints and artifacts; an error with one does not keep the other.

    Returns:
        The errors for the files that could not be removed; [] if all are gone.
    """
    trouble: list[CheckpointError] = []
    for url in (settings.checkpoint_url(job_id), settings.artifact_url(job_id)):
        try:
            Folder(url).clear()
        except CheckpointError as error:
            trouble.append(error)
    return trouble


def make_no_artifact_error(job_id: str, name: str) -> ArtifactNotFound:
    """Make the error for a name that is no artifact, or for an artifact that does not exist (yet)."""
    if name in ARTIFACTS:
        hint = "it is written when the job succeeds; a sampled partition is not written"
        if name == MODEL:
            hint = "it is written when the job succeeds, if the algorithm has a global model"
        if name == PERSONAL:
            hint = "it is written when personal models are scored; see evaluation.personal"
        if name == CHOSEN:
            hint = "it is written when a job with evaluation.validation succeeds"
        return ArtifactNotFound(f"job {job_id} has no {name}", hint)
    return ArtifactNotFound(
        f"there is no artifact {name[:80]!r}", f"the artifacts are {', '.join(ARTIFACTS)}"
    )


def _open_folder(settings: Settings, job_id: str) -> Folder:
    return Folder(settings.artifact_url(job_id))


def _pack_arrays(arrays: Mapping[str, Any], notes: dict[str, str]) -> bytes:
    import numpy as np
    from safetensors.numpy import save

    packed: bytes = save(
        {name: np.ascontiguousarray(value) for name, value in _flatten_arrays(arrays)}, notes
    )
    return packed


def _flatten_arrays(arrays: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a tree by their path: `1/head.bias` for architecture number 1."""
    for name, value in arrays.items():
        if isinstance(value, Mapping):
            yield from _flatten_arrays(value, f"{above}{name}/")
        else:
            yield f"{above}{name}", value
