"""Artifacts on the client's side: their descriptions, and the names of the files that downloads write."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fedsim.errors import ArtifactNotFound


class Artifact(BaseModel):
    """A file of a job, such as `model.safetensors`.

    Attributes:
        name: the argument of `job.artifact(name)`.
        media_type: of the content.
        description: one sentence.
        bytes: the size; None if the service makes the file on request.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    media_type: str = "application/octet-stream"
    description: str = ""
    bytes: int | None = None


def choose_path(name: str, path: str | Path | None) -> Path:
    """Choose the file that a download writes.

    Args:
        name: of the artifact.
        path: a file, an existing folder, or None for the working folder.

    Raises:
        ArtifactNotFound: the name is not that of a file, such as `..`, which in an address is another page.
    """
    if Path(name).name in ("", ".."):
        raise ArtifactNotFound(f"'{name}' is not the name of a file; job.artifacts() lists them")
    wanted = Path() if path is None else Path(path)
    return wanted / Path(name).name if wanted.is_dir() else wanted
