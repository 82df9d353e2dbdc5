"""CelebA: faces with attributes; the celebrities are natural clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fedsim.base import rng
from fedsim.base.parameters import Count, Range, make_spec_error, suggest_name
from fedsim.data.augment import Steps
from fedsim.data.cache import load_or_make
from fedsim.data.dataset import Array, Dataset, Examples, Indices
from fedsim.data.decode import decode_images
from fedsim.data.places import FETCH_HINT, DataRoots
from fedsim.data.sources.download import find_or_download
from fedsim.data.sources.folders import Size
from fedsim.data.sources.images import Normalisation, image_dataset
from fedsim.errors import DataError

_FOLDERS = ("celeba", "CelebA")
_TEST_SHARE = 0.2

GDOWN_HINT = " (after pip install gdown)"
"""The package that a download from the authors' site needs."""


def celeba(
    places: DataRoots,
    *,
    attribute: str = "Smiling",
    celebrities: Count | None = 250,
    min_images: Annotated[int, Range(2)] = 5,
    split: Literal["celebrity", "official"] = "celebrity",
    size: Size = 84,
    normalise: Normalisation = "half",
    augment: Steps = (),
) -> Dataset:
    """CelebA with one yes-or-no attribute as two classes, prepared as in LEAF; uint8, [3, size, size].

    The natural groups are the celebrities; the partition `natural` with `groups_per_client: 10` gives LEAF's
    clients.

    Args:
        places: the data roots.
        attribute: one of the 40.
        celebrities: number of celebrities, drawn with a fixed seed; null for all (some gigabytes of memory).
        min_images: celebrities with fewer images are left out.
        split: `celebrity` tests on a fifth of each celebrity's images, `official` on CelebA's own test part
            (of other people; its validation part is not used).
        size: height and width of the scaled images.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        SpecError: if there is no such attribute.
        DataNotFound: if it is in no data root.
        DataError: if an image is damaged, or the lists and the images do not belong together.
    """
    get = "put img_align_celeba/ and the list_*.txt and identity_CelebA.txt files there, or "
    get += FETCH_HINT + GDOWN_HINT
    folder = find_or_download(places, "celeba", _FOLDERS, get, "CelebA")
    names, labels = _read_attributes(folder / "list_attr_celeba.txt", attribute)
    people = _read_column(folder / "identity_CelebA.txt", names)
    part = _read_column(folder / "list_eval_partition.txt", names) if split == "official" else None
    train, test = _choose_positions(people, part, celebrities, min_images)
    files = [folder / "img_align_celeba" / names[i] for i in np.concatenate([train, test])]
    _check_files_exist(files)
    images = load_or_make(
        places, folder, files, f"images 1 size={size} channels=3", lambda: {"x": decode_images(files, size)}
    )["x"]
    cut = len(train)
    return image_dataset(
        "celeba",
        Examples(images[:cut], labels[train], people[train]),
        Examples(images[cut:], labels[test], people[test]),
        (f"not {attribute.lower()}", attribute.lower()),
        normalise=normalise,
        augment=augment,
        source=folder,
    )


def _read_attributes(file: Path, attribute: str) -> tuple[list[str], Indices]:
    """The file names in order, and 0 or 1 for each."""
    rows = _read_rows(file)
    if len(rows) < 2 or len(rows[0]) != 1 or not rows[0][0].isdigit():
        raise DataError(f"{file}: does not begin with the number of images and the attributes")
    if attribute not in rows[1]:
        raise make_spec_error(
            "attribute", attribute, "CelebA has no such attribute", suggest_name(attribute, rows[1])
        )
    place, width = rows[1].index(attribute) + 1, len(rows[1]) + 1
    for number, row in enumerate(rows[2:], 3):
        if len(row) != width or row[place] not in ("1", "-1"):
            raise DataError(f"{file}: line {number} is not a file name and {width - 1} times 1 or -1")
    if len(rows) - 2 != int(rows[0][0]):
        raise DataError(f"{file}: truncated, {len(rows) - 2} images of {rows[0][0]}")
    return [row[0] for row in rows[2:]], np.array([row[place] == "1" for row in rows[2:]], np.int64)


def _read_rows(file: Path) -> list[list[str]]:
    try:
        return [line.split() for line in file.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error})", "fetch it again") from error


def _read_column(file: Path, names: list[str]) -> Indices:
    """The number of each name in a file of `name number` lines, int64 [n]."""
    known: Mapping[str, str] = {row[0]: row[-1] for row in _read_rows(file)}
    missing = next((name for name in names if not known.get(name, "").isdigit()), None)
    if missing is not None:
        raise DataError(f"{file}: has no number for {missing}", "fetch it again")
    return np.array([int(known[name]) for name in names], np.int64)


def _choose_positions(
    people: Indices, part: Array | None, celebrities: int | None, min_images: int
) -> tuple[Indices, Indices]:
    """The positions of the training examples and of the test examples."""
    used = np.flatnonzero(np.ones(len(people), bool) if part is None else part == 0)
    names, counts = np.unique(people[used], return_counts=True)
    names = names[counts >= min_images]
    generator = rng.stream(0, "celeba")
    if celebrities is not None and celebrities < len(names):
        names = np.sort(generator.choice(names, celebrities, replace=False))
    used = used[np.isin(people[used], names)]
    if part is not None:
        return used, np.flatnonzero(part == 2)
    # A random fifth of each celebrity's images: ranked within each celebrity by a random key.
    order = used[np.lexsort((generator.random(len(used)), people[used]))]
    _, starts, counts = np.unique(people[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(starts, counts)
    tested = rank < np.maximum(1, np.floor(_TEST_SHARE * counts)).repeat(counts)
    return np.sort(order[~tested]), np.sort(order[tested])


def _check_files_exist(files: list[Path]) -> None:
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise DataError(f"{missing}: is listed, but missing", "unpack img_align_celeba.zip again")
