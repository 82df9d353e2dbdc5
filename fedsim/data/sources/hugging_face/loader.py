"""Data sets of Hugging Face: from the hub, or as written by `save_to_disk`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedsim.base.parameters import Range, Share
from fedsim.data.augment import Steps
from fedsim.data.cache import load_or_make
from fedsim.data.dataset import Array, Augmentation, Dataset, Examples, Indices, Normalise
from fedsim.data.decode import Channels, find_channels, to_pixels
from fedsim.data.places import DataPath, DataRoots
from fedsim.data.sources.folders import Size, cut_test_examples, cut_test_positions
from fedsim.data.sources.groups import number_groups
from fedsim.data.sources.hugging_face.columns import (
    check_columns,
    choose_inputs,
    choose_labels,
    choose_parts,
    find_input_kind,
    number_labels,
    read_images,
    read_owners,
    require_agreement,
)
from fedsim.data.sources.hugging_face.hub import open_dataset
from fedsim.data.sources.images import Normalisation, choose_preparation
from fedsim.data.sources.numeric import to_float32
from fedsim.data.text import TRAINED_TOKENIZER, tokenise_texts, tokenizer_fingerprint
from fedsim.errors import DataError

_PARTS = ("train", "test")


class _Reading(NamedTuple):
    """The parameters of `hugging_face` for reading the inputs."""

    inputs: str
    train: str
    test: str | None
    test_share: float
    size: int | None
    channels: Channels | None
    tokenizer: str
    vocabulary: int
    length: int


def hugging_face(
    places: DataRoots,
    *,
    path: DataPath,
    config: str | None = None,
    inputs: str | None = None,
    labels: str | None = None,
    groups: str | None = None,
    train: str = "train",
    test: str | None = "test",
    test_share: Share = 0.2,
    size: Size | None = None,
    channels: Channels | None = None,
    tokenizer: DataPath = TRAINED_TOKENIZER,
    vocabulary: Annotated[int, Range(100, 100_000)] = 8_000,
    length: Annotated[int, Range(8, 512)] = 128,
    normalise: Normalisation = "channel",
    augment: Steps = (),
) -> Dataset:
    """Images, texts or lists of numbers with one class each, from the hub or saved with `save_to_disk`.

    Args:
        places: the data roots.
        path: a folder in a data root, or a name of the hub such as `uoft-cs/cifar10`.
        config: configuration of a data set of the hub; null if it has only one.
        inputs: column of the inputs; its type decides how it is read. By default `image`, the only column of
            images, `text`, or the only column of texts.
        labels: column of the classes: whole numbers or texts. By default `label`, or the only column of
            classes.
        groups: column of the natural clients; null for none.
        train: the training part; not used if there is a single part.
        test: the test part; null to cut it off the training part. Not used if there is a single part.
        test_share: share cut off in that case, always the same examples.
        size: height and width of scaled images.
        channels: 1 or 3, for images; by default 1 if all images are grey, and 3 otherwise.
        tokenizer: for texts, "bpe" to train one, or the name of an existing one.
        vocabulary: largest number of tokens of a trained tokenizer.
        length: tokens per text.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`; for images.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`.

    Raises:
        SpecError: if a column or a part is missing, or `normalise` or `augment` is given for inputs other
            than images.
        DataNotFound: if there is no such data set, or the package `datasets` is missing.
        DataError: if the files cannot be read, the inputs differ in size or are not finite, the labels are
            no classes, or the two parts differ in type.
    """
    opened = open_dataset(places, path, config)
    folder, parts = opened.folder, choose_parts(opened, train, test)
    labels = labels or choose_labels(parts[0], groups)
    inputs = inputs or choose_inputs(parts[0], labels, groups)
    check_columns(parts, {"inputs": inputs, "labels": labels, "groups": groups})
    how = _Reading(inputs, train, test, test_share, size, channels, tokenizer, vocabulary, length)
    arrays = _arrays(places, folder, parts, find_input_kind(folder, parts, inputs, labels), how)
    y, classes = number_labels(folder, parts, labels)
    examples = _examples(folder, arrays, parts, y, groups)
    first, second = examples if len(examples) == 2 else cut_test_examples(examples[0], test_share)
    tokens = int(arrays.get("vocabulary", 0))
    return _dataset(folder, first, second, classes, tokens, *choose_preparation(first.x, normalise, augment))


def _dataset(
    folder: Path,
    train: Examples,
    test: Examples,
    classes: tuple[str, ...],
    vocabulary: int,
    normalise: Normalise,
    augment: Augmentation | None,
) -> Dataset:
    return Dataset(
        name="hugging_face",
        train=train,
        test=test,
        num_classes=len(classes),
        input_shape=train.x.shape[1:],
        classes=classes,
        normalise=normalise,
        augment=augment,
        source=str(folder),
        vocabulary=vocabulary,
    )


def _arrays(
    places: DataRoots, folder: Path, parts: Sequence[Any], kind: str, how: _Reading
) -> dict[str, Array]:
    """The inputs of each part, from the cache if they were read in this way before."""
    column, tokens = how.inputs, how.tokenizer
    read: Callable[[], dict[str, Array]] = {
        "text": lambda: _texts(places, [part[column][:] for part in parts], how),
        "image": lambda: _name_by_part(
            _images(
                folder, [read_images(places, folder, part, column) for part in parts], how.size, how.channels
            )
        ),
        "numbers": lambda: _name_by_part(_numbers(folder, column, part[column][:]) for part in parts),
    }[kind]
    if kind == "text":
        tokens = tokenizer_fingerprint(places, how.tokenizer)
        if how.tokenizer == TRAINED_TOKENIZER and len(parts) == 1:
            tokens += f" of all but {how.test_share}"
    version = 1 if kind == "text" else 3  # before 3, transparent pixels had any colour
    recipe = f"{version} {column} {how.train} {how.test} {how.size} {how.channels}"
    recipe += f" {tokens} {how.vocabulary} {how.length}"
    files = sorted(f for f in folder.rglob("*") if f.is_file())
    return load_or_make(places, folder, files, f"hugging_face {recipe}", read)


def _examples(
    folder: Path, arrays: Mapping[str, Array], parts: Sequence[Any], y: Sequence[Indices], groups: str | None
) -> list[Examples]:
    require_agreement(
        folder, "an example has the shape", [arrays[name].shape[1:] for name in _PARTS[: len(parts)]]
    )
    owners = [None if groups is None else read_owners(folder, part, groups) for part in parts]
    of_each, names = number_groups(folder, owners)
    return [
        Examples(arrays[name], labels, mine, names)
        for name, labels, mine in zip(_PARTS, y, of_each, strict=False)
    ]


def _name_by_part(arrays: Iterable[Array]) -> dict[str, Array]:
    return dict(zip(_PARTS, arrays, strict=False))


def _texts(places: DataRoots, texts: Sequence[Sequence[str]], how: _Reading) -> dict[str, Array]:
    """The parts as tokens; a tokenizer is never trained on the test set cut from a single part."""
    for part, name in zip(texts, (how.train, how.test), strict=False):
        missing = [number for number, text in enumerate(part) if text is None]
        if missing:
            where = f"{len(missing):,} examples, the first is number {missing[0]}"
            raise DataError(
                f"{how.inputs!r} of {name!r} has no text in {where}", "remove them, or write empty texts"
            )
    rows = cut_test_positions(len(texts[0]), how.test_share) if len(texts) == 1 else None
    both = texts if rows is None else [[texts[0][row] for row in part] for part in rows]
    tokens = tokenise_texts(
        places,
        both[0],
        both[1],
        tokenizer=how.tokenizer,
        vocabulary=how.vocabulary,
        length=how.length,
    )
    made = {"train": tokens.train, "test": tokens.test}
    if rows is not None:  # one part again, in the folder's order: it is cut later with the labels
        made = {"train": np.concatenate([tokens.train, tokens.test])[np.argsort(np.concatenate(rows))]}
    return made | {"vocabulary": np.array(tokens.vocabulary)}


def _images(
    folder: Path, parts: Sequence[Iterable[Any]], size: int | None, channels: Channels | None
) -> list[Array]:
    """The parts as pixels; without a number of channels, all images are grey, or all have colours."""

    def decode(image: Any, number: int) -> Array:
        if image is None:
            raise DataError(f"{folder}: image {number} is missing", "remove this example")
        return to_pixels(image, size, channels or find_channels(image), f"{folder}: image {number}")

    made = [[decode(image, number) for number, image in enumerate(images)] for images in parts]
    if channels is None and len({pixels.shape[0] for part in made for pixels in part}) > 1:
        made = [[np.broadcast_to(pixels, (3, *pixels.shape[1:])) for pixels in part] for part in made]
    return [_stack_rows(folder, part, "give a size to scale them to") for part in made]


def _numbers(folder: Path, column: str, rows: Sequence[Any]) -> Array:
    named = (f"{folder}: example {number} of column {column!r}" for number in range(len(rows)))
    found = [_to_row(what, row) for what, row in zip(named, rows, strict=True)]
    return _stack_rows(folder, found, "make them equally long")


def _to_row(what: str, row: Any) -> Array:
    """One example, float32 of at least one dimension; a missing value raises an error."""
    try:
        numbers = np.atleast_1d(np.asarray(row, np.float64))
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{what} does not hold numbers ({error})", "choose another column for inputs"
        ) from error
    return to_float32(what, numbers)


def _stack_rows(folder: Path, rows: Sequence[Array], way_out: str) -> Array:
    if len({row.shape for row in rows}) > 1:
        odd = next(n for n, row in enumerate(rows) if row.shape != rows[0].shape)
        raise DataError(
            f"{folder}: example {odd} is {rows[odd].shape}, the first is {rows[0].shape}", way_out
        )
    return np.stack(rows)
