"""Hugging Face `datasets` on disk, as `save_to_disk` writes them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from fedsim.data.augment import Steps, augmentation
from fedsim.data.cache import cached
from fedsim.data.dataset import Array, Dataset, Examples, Indices, Normalise
from fedsim.data.decode import Channels, to_pixels
from fedsim.data.places import Places
from fedsim.data.sources.folders import Size, cut_off
from fedsim.data.sources.images import Normalisation, normalisation
from fedsim.data.text import TRAINED, tokenise
from fedsim.errors import DataError, DataNotFound
from fedsim.parameters import Range, Share, refuse, unknown

_PARTS = ("train", "test")


def hugging_face(
    places: Places,
    *,
    path: str,
    inputs: str = "image",
    labels: str = "label",
    groups: str | None = None,
    train: str = "train",
    test: str | None = "test",
    test_share: Share = 0.2,
    size: Size | None = None,
    channels: Channels = 3,
    tokenizer: str = TRAINED,
    vocabulary: Annotated[int, Range(100, 100_000)] = 8_000,
    length: Annotated[int, Range(8, 512)] = 128,
    normalise: Normalisation = "channel",
    augment: Steps = (),
) -> Dataset:
    """A data set that was saved with `save_to_disk`: images, texts or lists of numbers, with one class each.

    Args:
        places: where to look.
        path: the folder, relative to a data root.
        inputs: the column to learn from; its type decides how it is read.
        labels: the column of classes.
        groups: the column of natural clients, if there is one.
        train: the part to train on; not used when the folder holds a single part.
        test: the part to test on; null to cut it off the training part.
        test_share: the share cut off in that case, always the same examples.
        size: height and width to scale images to.
        channels: of images.
        tokenizer: for texts, "bpe" to train one, or the name of one that exists.
        vocabulary: how many tokens a trained one has at most.
        length: tokens per text.
        normalise: how, for images.
        augment: steps of the augmentation, for images.

    Raises:
        SpecError: a column or a part is not there.
        DataNotFound: there is no such folder, or the package `datasets` is missing.
        DataError: the folder cannot be read, or the inputs are not equally large.
    """
    folder = places.named("hugging_face", path, "save it there with save_to_disk")
    parts = _parts(folder, train, test)
    _check_columns(parts, {"inputs": inputs, "labels": labels, "groups": groups})
    read: Callable[[], dict[str, Array]] = {
        "text": lambda: _texts(places, [p[inputs][:] for p in parts], tokenizer, vocabulary, length),
        "image": lambda: _by_part(_images(folder, p[inputs], size, channels) for p in parts),
        "numbers": lambda: _by_part(_numbers(folder, p[inputs][:]) for p in parts),
    }[_kind(parts[0].features[inputs])]
    recipe = f"hugging_face 1 {inputs} {train} {test} {size} {channels} {tokenizer} {vocabulary} {length}"
    arrays = cached(places, folder, sorted(f for f in folder.rglob("*") if f.is_file()), recipe, read)
    examples = _examples(arrays, parts, labels, groups)
    first, second = examples if len(examples) == 2 else cut_off(examples[0], test_share)
    images = first.x.dtype == np.uint8
    classes = _classes(parts[0].features[labels], first.y, second.y)
    return Dataset(
        name="hugging_face",
        train=first,
        test=second,
        num_classes=len(classes),
        input_shape=first.x.shape[1:],
        classes=classes,
        normalise=normalisation(normalise, first.x) if images else Normalise(),
        augment=augmentation(augment) if images else None,
        source=str(folder),
        vocabulary=int(arrays.get("vocabulary", 0)),
    )


def _examples(
    arrays: Mapping[str, Array], parts: Sequence[Any], labels: str, groups: str | None
) -> list[Examples]:
    return [
        Examples(arrays[name], np.array(part[labels][:], np.int64), _groups(part, groups))
        for name, part in zip(_PARTS, parts, strict=False)
    ]


def _parts(folder: Path, train: str, test: str | None) -> list[Any]:
    """The training part, and the test part where there is one."""
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise DataNotFound("this needs the package 'datasets'", "install fedsim-ray[text]") from error
    try:
        whole = library.load_from_disk(str(folder))
    except Exception as error:  # the library raises its own, Arrow's and Python's errors for a damaged folder
        raise DataError(f"{folder}: was not written by save_to_disk, or is damaged ({error})") from error
    if not isinstance(whole, dict):
        return [whole]
    names = [train] if test is None else [train, test]
    for argument, name in zip(("train", "test"), names, strict=False):
        if name not in whole:
            raise refuse(argument, name, "no such part", unknown(name, whole))
    return [whole[name] for name in names]


def _check_columns(parts: Sequence[Any], columns: Mapping[str, str | None]) -> None:
    for part in parts:
        for argument, column in columns.items():
            if column is not None and column not in part.column_names:
                raise refuse(argument, column, "no such column", unknown(column, part.column_names))


def _kind(feature: Any) -> Literal["text", "image", "numbers"]:
    if type(feature).__name__ == "Image":
        return "image"
    return "text" if getattr(feature, "dtype", "") in ("string", "large_string") else "numbers"


def _by_part(arrays: Iterable[Array]) -> dict[str, Array]:
    return dict(zip(_PARTS, arrays, strict=False))


def _texts(
    places: Places, texts: Sequence[Sequence[str]], tokenizer: str, vocabulary: int, length: int
) -> dict[str, Array]:
    both = [*texts, []][:2]
    tokens = tokenise(places, *both, tokenizer=tokenizer, vocabulary=vocabulary, length=length)
    return {"train": tokens.train, "test": tokens.test, "vocabulary": np.array(tokens.vocabulary)}


def _images(folder: Path, images: Iterable[Any], size: int | None, channels: Channels) -> Array:
    return _stacked(
        folder, [to_pixels(image, size, channels) for image in images], "give a size to scale them to"
    )


def _numbers(folder: Path, rows: Sequence[Any]) -> Array:
    found = _stacked(folder, [np.asarray(row, np.float32) for row in rows], "make them equally long")
    return found[:, None] if found.ndim == 1 else found


def _stacked(folder: Path, rows: Sequence[Array], way_out: str) -> Array:
    if len({row.shape for row in rows}) > 1:
        odd = next(n for n, row in enumerate(rows) if row.shape != rows[0].shape)
        raise DataError(
            f"{folder}: example {odd} is {rows[odd].shape}, the first is {rows[0].shape}", way_out
        )
    return np.stack(rows)


def _groups(part: Any, column: str | None) -> Indices | None:
    if column is None:
        return None
    return np.unique(np.asarray(part[column][:]), return_inverse=True)[1].astype(np.int64)


def _classes(feature: Any, *labels: Array) -> tuple[str, ...]:
    """The names that the data set gives its classes, numbers where it gives none."""
    highest = max(int(each.max(initial=0)) for each in labels)
    return tuple(getattr(feature, "names", None) or map(str, range(highest + 1)))
