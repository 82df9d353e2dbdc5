"""Hugging Face `datasets` on disk, as written by `save_to_disk`."""

from __future__ import annotations

import importlib
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedsim.base.parameters import Range, Share, make_spec_error, suggest_name
from fedsim.data.augment import Steps
from fedsim.data.cache import load_or_make
from fedsim.data.dataset import Array, Augmentation, Dataset, Examples, Indices, Normalise
from fedsim.data.decode import Channels, to_pixels
from fedsim.data.places import TEXT_EXTRA, DataRoots
from fedsim.data.sources.folders import Size, cut_test_examples, cut_test_positions
from fedsim.data.sources.groups import number_groups
from fedsim.data.sources.images import Normalisation, choose_preparation
from fedsim.data.sources.numeric import to_float32
from fedsim.data.text import TRAINED_TOKENIZER, tokenise_texts, tokenizer_fingerprint
from fedsim.errors import DataError, DataNotFound

_PARTS = ("train", "test")


class _Reading(NamedTuple):
    """The parameters of `hugging_face` for reading the inputs."""

    inputs: str
    train: str
    test: str | None
    test_share: float
    size: int | None
    channels: Channels
    tokenizer: str
    vocabulary: int
    length: int


def hugging_face(
    places: DataRoots,
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
    tokenizer: str = TRAINED_TOKENIZER,
    vocabulary: Annotated[int, Range(100, 100_000)] = 8_000,
    length: Annotated[int, Range(8, 512)] = 128,
    normalise: Normalisation = "channel",
    augment: Steps = (),
) -> Dataset:
    """A data set that was saved with `save_to_disk`: images, texts or lists of numbers, with one class each.

    Args:
        places: the data roots.
        path: the folder, relative to a data root.
        inputs: column of the inputs; its type decides how it is read.
        labels: column of the classes.
        groups: column of the natural clients; null for none.
        train: the training part; not used if the folder has a single part.
        test: the test part; null to cut it off the training part.
        test_share: share cut off in that case, always the same examples.
        size: height and width of scaled images.
        channels: 1 or 3, for images.
        tokenizer: for texts, "bpe" to train one, or the name of an existing one.
        vocabulary: largest number of tokens of a trained tokenizer.
        length: tokens per text.
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`; for images.
        augment: steps in order, of `crop`, `reflect_crop`, `flip` and `rotate`.

    Raises:
        SpecError: if a column or a part is missing, or `normalise` or `augment` is given for inputs other
            than images.
        DataNotFound: if there is no such folder, or the package `datasets` is missing.
        DataError: if the folder cannot be read, the inputs differ in size or are not finite, the labels are
            not class numbers, or the two parts differ in type.
    """
    folder = places.resolve_path("hugging_face", path, "save it there with save_to_disk")
    parts = _parts(folder, train, test)
    _check_columns(parts, {"inputs": inputs, "labels": labels, "groups": groups})
    how = _Reading(inputs, train, test, test_share, size, channels, tokenizer, vocabulary, length)
    arrays = _arrays(places, folder, parts, _input_kind(folder, parts, inputs, labels), how)
    examples = _examples(folder, arrays, parts, labels, groups)
    first, second = examples if len(examples) == 2 else cut_test_examples(examples[0], test_share)
    classes = _classes(parts[0].features[labels], first.y, second.y)
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
            _images(folder, part[column], how.size, how.channels) for part in parts
        ),
        "numbers": lambda: _name_by_part(_numbers(folder, column, part[column][:]) for part in parts),
    }[kind]
    if kind == "text":
        tokens = tokenizer_fingerprint(places, how.tokenizer)
        if how.tokenizer == TRAINED_TOKENIZER and len(parts) == 1:
            tokens += f" of all but {how.test_share}"
    version = (
        1 if kind == "text" else 2
    )  # 1 made images of 16 bits white, and kept numbers that are not finite
    recipe = f"{version} {column} {how.train} {how.test} {how.size} {how.channels}"
    recipe += f" {tokens} {how.vocabulary} {how.length}"
    files = sorted(f for f in folder.rglob("*") if f.is_file())
    return load_or_make(places, folder, files, f"hugging_face {recipe}", read)


def _examples(
    folder: Path, arrays: Mapping[str, Array], parts: Sequence[Any], labels: str, groups: str | None
) -> list[Examples]:
    _require_agreement(
        folder, "an example has the shape", [arrays[name].shape[1:] for name in _PARTS[: len(parts)]]
    )
    of_each = number_groups([None if groups is None else np.asarray(part[groups][:]) for part in parts])
    return [
        Examples(arrays[name], _labels(folder, part, labels), mine)
        for name, part, mine in zip(_PARTS, parts, of_each, strict=False)
    ]


def _labels(folder: Path, part: Any, column: str) -> Indices:
    """The class numbers; other values raise an error, because converting them would give wrong classes."""
    values = part[column][:]
    with suppress(ValueError):  # lists of different lengths
        found = np.asarray(values)
        if not len(values) or (found.ndim == 1 and found.dtype.kind in "iub"):
            return found.astype(np.int64)
    raise DataError(
        f"{folder}: column {column!r} ({part.features[column]}) does not hold one whole number per example",
        f"cast it: dataset.class_encode_column({column!r})",
    )


def _parts(folder: Path, train: str, test: str | None) -> list[Any]:
    """The training part, and the test part if there is one."""
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise DataNotFound("this needs the package 'datasets'", TEXT_EXTRA) from error
    try:
        whole = library.load_from_disk(str(folder))
    except Exception as error:  # the library raises its own, Arrow's and Python's errors for a damaged folder
        raise DataError(f"{folder}: was not written by save_to_disk, or is damaged ({error})") from error
    if not isinstance(whole, dict):
        return [whole]
    names = [train] if test is None else [train, test]
    for argument, name in zip(("train", "test"), names, strict=False):
        if name not in whole:
            raise make_spec_error(argument, name, "there is no such part", suggest_name(name, whole))
    return [whole[name] for name in names]


def _check_columns(parts: Sequence[Any], columns: Mapping[str, str | None]) -> None:
    for part in parts:
        for argument, column in columns.items():
            if column is not None and column not in part.column_names:
                raise make_spec_error(
                    argument, column, "there is no such column", suggest_name(column, part.column_names)
                )


def _input_kind(folder: Path, parts: Sequence[Any], inputs: str, labels: str) -> str:
    """The type of the input column; both parts must have the same type and the same class numbers."""
    columns = [part.features[inputs] for part in parts]
    _require_agreement(folder, f"column {inputs!r} holds", [_describe_feature(column) for column in columns])
    names = [getattr(part.features[labels], "names", None) for part in parts]
    if all(names):
        _require_agreement(folder, f"the classes of column {labels!r} are", names)
    return _describe_feature(columns[0]).partition(" ")[0]


def _describe_feature(feature: Any) -> str:
    if type(feature).__name__ == "Image":
        return "image"
    if getattr(feature, "dtype", "") in ("string", "large_string"):
        return "text"
    return "numbers with a fraction" if "float" in repr(feature) else "numbers"


def _require_agreement(folder: Path, what: str, found: Sequence[object]) -> None:
    """Raise an error if the training part and the test part differ."""
    if len(found) == 2 and found[0] != found[1]:
        train, test = map(reprlib.repr, found)
        raise DataError(
            f"{folder}: {what} {train} in the training part, but {test} in the test part",
            "save both parts in the same way",
        )


def _name_by_part(arrays: Iterable[Array]) -> dict[str, Array]:
    return dict(zip(_PARTS, arrays, strict=False))


def _texts(places: DataRoots, texts: Sequence[Sequence[str]], how: _Reading) -> dict[str, Array]:
    """The parts as tokens; a tokenizer is never trained on the test set cut from a single part."""
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


def _images(folder: Path, images: Iterable[Any], size: int | None, channels: Channels) -> Array:
    pixels = [to_pixels(image, size, channels, f"{folder}: image {n}") for n, image in enumerate(images)]
    return _stack_rows(folder, pixels, "give a size to scale them to")


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


def _classes(feature: Any, *labels: Array) -> tuple[str, ...]:
    """The data set's names of the classes; numbers if it has none."""
    highest = max(int(each.max(initial=0)) for each in labels)
    return tuple(getattr(feature, "names", None) or map(str, range(highest + 1)))
