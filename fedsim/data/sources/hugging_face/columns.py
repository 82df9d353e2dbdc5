"""The parts and columns of a Hugging Face data set: which ones hold inputs, classes and clients."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.base.parameters import make_spec_error, suggest_name
from fedsim.data.dataset import Array, Indices
from fedsim.data.decode import open_image
from fedsim.data.places import DataRoots
from fedsim.data.sources.hugging_face.hub import OpenedDataset, import_datasets, is_in_cache
from fedsim.errors import DataError

_KINDS = ("image", "text")


def choose_parts(opened: OpenedDataset, train: str, test: str | None) -> list[Any]:
    """The training part, and the test part if there is one."""
    if len(opened.parts) == 1:
        return list(opened.parts.values())
    names = [train] if test is None else [train, test]
    for argument, name in zip(("train", "test"), names, strict=False):
        if name not in opened.parts:
            raise make_spec_error(argument, name, "there is no such part", suggest_name(name, opened.parts))
    return [opened.parts[name] for name in names]


def choose_labels(part: Any, groups: str | None) -> str:
    """The column of the classes: `label`, or the only one with names of classes."""
    named = [name for name in part.column_names if type(part.features[name]).__name__ == "ClassLabel"]
    return _choose_column("labels", part, ["label"], [[name for name in named if name != groups]])


def choose_inputs(part: Any, labels: str, groups: str | None) -> str:
    """The column of the inputs: `image`, the only one with images, `text`, or the only one with texts."""
    kinds = {name: _describe_feature(part.features[name]) for name in part.column_names}
    found = [[n for n, of in kinds.items() if of == kind and n not in (labels, groups)] for kind in _KINDS]
    return _choose_column("inputs", part, list(_KINDS), found)


def _choose_column(argument: str, part: Any, usual: Sequence[str], found: Sequence[Sequence[str]]) -> str:
    """The first column with its usual name, or alone of its type."""
    for name, alike in zip(usual, found, strict=True):
        if name in part.column_names:
            return name
        if len(alike) == 1:
            return alike[0]
    message = f"has to name the column of the {argument}: the types of the columns leave it open"
    raise make_spec_error(argument, None, message, f"one of: {', '.join(part.column_names)}")


def check_columns(parts: Sequence[Any], columns: Mapping[str, str | None]) -> None:
    """Raise an error for a column that is missing, or that the library would decode; None is no column.

    To decode images, sounds or documents, also in lists, the library opens any path and any address that a
    data set names. fedsim itself opens only the images of the inputs: see `read_images`.
    """
    needs_decoding = import_datasets(".features.features").require_decoding
    for part in parts:
        for argument, column in columns.items():
            if column is None:
                continue
            if column not in part.column_names:
                raise make_spec_error(
                    argument, column, "there is no such column", suggest_name(column, part.column_names)
                )
            feature = part.features[column]
            if needs_decoding(feature) and (argument, _describe_feature(feature)) != ("inputs", "image"):
                message = f"holds {feature}, which fedsim does not read"
                hint = "choose a column of numbers or texts, or one image per example for the inputs"
                raise make_spec_error(argument, column, message, hint)


def find_input_kind(folder: Path, parts: Sequence[Any], inputs: str, labels: str) -> str:
    """The type of the input column; both parts must have the same type and the same class numbers."""
    columns = [part.features[inputs] for part in parts]
    require_agreement(folder, f"column {inputs!r} holds", [_describe_feature(column) for column in columns])
    kinds = [_describe_feature(part.features[labels]) for part in parts]
    require_agreement(folder, f"column {labels!r} holds", kinds)
    names = [getattr(part.features[labels], "names", None) for part in parts]
    if all(names):
        require_agreement(folder, f"the classes of column {labels!r} are", names)
    return _describe_feature(columns[0]).partition(" ")[0]


def _describe_feature(feature: Any) -> str:
    if type(feature).__name__ == "Image":
        return "image"
    if getattr(feature, "dtype", "") in ("string", "large_string"):
        return "text"
    return "numbers with a fraction" if "float" in repr(feature) else "numbers"


def require_agreement(folder: Path, what: str, found: Sequence[object]) -> None:
    """Raise an error if the training part and the test part differ."""
    if len(found) == 2 and found[0] != found[1]:
        train, test = map(reprlib.repr, found)
        raise DataError(
            f"{folder}: {what} {train} in the training part, but {test} in the test part",
            "save both parts in the same way",
        )


def number_labels(folder: Path, parts: Sequence[Any], column: str) -> tuple[list[Indices], tuple[str, ...]]:
    """The class numbers of each part, and the names of the classes."""
    feature = parts[0].features[column]
    if _describe_feature(feature) != "text":
        y = [_read_classes(folder, part, column) for part in parts]
        highest = max(int(each.max(initial=0)) for each in y)
        return y, tuple(getattr(feature, "names", None) or map(str, range(highest + 1)))
    texts = [part[column][:] for part in parts]
    if any(None in each for each in texts):
        raise _make_missing_error(folder, column)
    names = sorted(set().union(*texts))
    return [np.searchsorted(names, each).astype(np.int64) for each in texts], tuple(names)


def _make_missing_error(folder: Path, column: str) -> DataError:
    return DataError(f"{folder}: column {column!r} holds missing labels", "remove these examples")


def _read_classes(folder: Path, part: Any, column: str) -> Indices:
    """The class numbers; other values raise an error, because converting them would give wrong classes."""
    values = part[column][:]
    if None in values:
        raise _make_missing_error(folder, column)
    with suppress(ValueError):  # lists of different lengths
        found = np.asarray(values)
        if not len(values) or (found.ndim == 1 and found.dtype.kind in "iub"):
            return found.astype(np.int64)
    raise DataError(
        f"{folder}: column {column!r} ({part.features[column]}) does not hold one whole number per example",
        f"cast it: dataset.class_encode_column({column!r})",
    )


def read_owners(folder: Path, part: Any, column: str) -> Array:
    """The natural client of each example, by name or number."""
    values = part[column][:]
    if None in values:
        raise DataError(f"{folder}: column {column!r} names no client for example {values.index(None)}")
    return np.asarray(values)


def read_images(places: DataRoots, folder: Path, part: Any, column: str) -> Iterator[Any]:
    """The images as Pillow's; None for a missing one.

    The library would open any path, any address and any format that a data set names.
    """
    mode = part.features[column].mode
    stored = part.cast_column(column, import_datasets().Image(decode=False))[column]
    for number, image in enumerate(stored):
        if image is not None and image["bytes"] is None and not is_in_cache(places, image["path"] or ""):
            raise DataError(
                f"{folder}: image {number} is {image['path']!r}, a place outside the data roots",
                "save it with save_to_disk, which puts the images into the data set",
            )
        yield None if image is None else _decode_image(image, mode, f"{folder}: image {number}")


def _decode_image(stored: Mapping[str, Any], mode: str | None, name: str) -> Any:
    """Decode a stored image as the library does: upright, and of the mode of its column."""
    source = Path(stored["path"]) if stored["bytes"] is None else BytesIO(stored["bytes"])
    with open_image(source, name) as image:
        image.load()
    return image.convert(mode) if mode and mode != image.mode else image
