"""CheXpert: chest X-rays with 14 findings each, a CSV file per part; the patients are natural clients."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from fedsim.data.augment import Steps
from fedsim.data.cache import load_or_make
from fedsim.data.dataset import Array, Dataset, Examples
from fedsim.data.decode import decode_images
from fedsim.data.places import DataRoots
from fedsim.data.sources.folders import Size
from fedsim.data.sources.images import Normalisation, image_dataset
from fedsim.errors import DataError

_FOLDERS = ("CheXpert-v1.0-small", "CheXpert-v1.0", "chexpert")
FINDINGS = (
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
)
_PATIENT = re.compile(r"patient(\d+)")
Uncertain = Literal["zeros", "ones", "ignore"]
_UNCERTAIN: Mapping[str, float] = MappingProxyType({"zeros": 0.0, "ones": 1.0, "ignore": math.nan})


class _Row(NamedTuple):
    file: Path
    labels: tuple[float, ...]
    patient: int


def chexpert(
    places: DataRoots,
    *,
    uncertain: Uncertain = "zeros",
    views: Literal["frontal", "all"] = "frontal",
    size: Size = 64,
    normalise: Normalisation = "channel",
    augment: Steps = (),
) -> Dataset:
    """CheXpert with its 14 labels: `train.csv` to train on, `valid.csv` to test on; uint8, [1, size, size].

    A finding that the report does not mention counts as absent. The natural groups are the patients.

    Args:
        places: the data roots.
        uncertain: value of a finding that the report calls uncertain (-1): absent (`zeros`), present
            (`ones`), or unknown (`ignore`: the label is NaN, and losses and scores leave it out).
        views: frontal images only, or also lateral ones.
        size: height and width of the scaled images.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        DataNotFound: if it is in no data root.
        DataError: if a CSV file or an image is damaged, or they do not belong together.
    """
    get = "unpack CheXpert-v1.0-small.zip there (Stanford gives it out on request)"
    folder = places.require_path("chexpert", _FOLDERS, get)
    value = {"": 0.0, "0.0": 0.0, "1.0": 1.0, "-1.0": _UNCERTAIN[uncertain]}
    parts = [_read_rows(folder, folder / f"{part}.csv", views, value) for part in ("train", "valid")]
    files = [row.file for part in parts for row in part]
    recipe = f"images 1 size={size} channels=1"
    images = load_or_make(places, folder, files, recipe, lambda: {"x": decode_images(files, size, 1)})["x"]
    cut = len(parts[0])
    train, test = (_examples(x, part) for x, part in zip((images[:cut], images[cut:]), parts, strict=True))
    return image_dataset("chexpert", train, test, FINDINGS, folder, normalise, augment, task="labels")


def _examples(x: Array, rows: list[_Row]) -> Examples:
    labels = np.array([row.labels for row in rows], np.float32).reshape(len(rows), len(FINDINGS))
    return Examples(x, labels, np.array([row.patient for row in rows], np.int64))


def _read_rows(folder: Path, file: Path, views: str, value: Mapping[str, float]) -> list[_Row]:
    try:
        with file.open(newline="") as opened:
            reader = csv.DictReader(opened)
            if missing := {"Path", "Frontal/Lateral", *FINDINGS} - set(reader.fieldnames or ()):
                raise DataError(f"{file}: has no column {min(missing)!r}", "fetch it again")
            rows = [
                _parse_row(folder, file, reader.line_num, row, value)
                for row in reader
                if _is_wanted(row, views)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read ({error})", "fetch it again") from error
    if not rows:
        raise DataError(f"{file}: lists no image", "fetch it again")
    return rows


def _is_wanted(row: Mapping[str, str | None], views: str) -> bool:
    return views == "all" or row["Frontal/Lateral"] == "Frontal"


def _parse_row(
    folder: Path, file: Path, line: int, row: Mapping[str, str | None], value: Mapping[str, float]
) -> _Row:
    """Parse one line; its path begins with the folder's original name, whatever the folder's name is here."""
    for finding in FINDINGS:
        if row[finding] not in value:
            raise DataError(
                f"{file}: line {line} has {row[finding]!r} for {finding!r}, expected 1.0, 0.0, -1.0 or none"
            )
    path = row["Path"] or ""
    image, patient = folder.joinpath(*Path(path).parts[1:]), _PATIENT.search(path)
    if patient is None or ".." in image.parts or not image.is_file():
        raise DataError(f"{file}: line {line} names {path!r}, which is missing", "unpack the archive again")
    return _Row(image, tuple(value[row[finding] or ""] for finding in FINDINGS), int(patient[1]))
