"""The user's own arrays, in one `.npz` file."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedsim.base.memory_usage import require_memory
from fedsim.base.parameters import Share, make_spec_error
from fedsim.data.augment import Steps
from fedsim.data.damage import UNREADABLE
from fedsim.data.dataset import Array, Dataset, Examples, Indices
from fedsim.data.places import OWN_FILE_HINT, DataPath, DataRoots
from fedsim.data.sources.folders import cut_test_examples
from fedsim.data.sources.groups import number_groups
from fedsim.data.sources.images import Normalisation, choose_preparation
from fedsim.data.sources.numeric import require_all, to_float32, to_float32_targets
from fedsim.errors import DataError
from fedsim.learning_tasks.tasks import AS_THEY_ARE, TargetScale


def npz(
    places: DataRoots,
    *,
    path: DataPath,
    test_share: Share = 0.2,
    tokens: bool = False,
    task: Literal["auto", "regression", "next_token", "segmentation"] = "auto",
    normalise: Normalisation = "channel",
    augment: Steps = (),
) -> Dataset:
    """A `.npz` file with `x_train`, `y_train`, `x_test`, `y_test`, or with `x` and `y` to be divided.

    `groups_train` or `groups` may name the natural client of each example, `classes` the classes. Images are
    uint8 of [n, H, W], [n, C, H, W] or [n, H, W, C] with 1 or 3 channels; everything else becomes float32, or
    int32 tokens. Labels are class numbers [n], or zeros and ones [n, L] for several labels. With `task` they
    are targets of a regression [n] or [n, k], or classes of tokens [n, length] or of pixels [n, H, W], where
    -100 does not count.

    Args:
        places: the data roots.
        path: the file, relative to a data root.
        test_share: share cut off as the test set if the file has none, always the same examples.
        tokens: whether x holds token numbers [n, L]; always so with `task: next_token`.
        task: the learning task, if the labels are not classes of whole examples (`auto`).
        normalise: `channel` (mean 0 and deviation 1 in each), `half` ((x - 0.5) / 0.5) or `none`; for images.
        augment: steps in order, of `crop`, `reflect_crop`, `flip`, `rotate` and `color`; with `task:
            segmentation` only `color`.

    Raises:
        SpecError: if `normalise` or `augment` is given, and x does not hold images of uint8.
        DataNotFound: if there is no such file in a data root.
        DataError: if the file is damaged or its arrays do not belong together; the message names the array.
    """
    file = places.resolve_path("npz", path, OWN_FILE_HINT)
    arrays, tokens = _read(file), tokens or task == "next_token"
    train, test = _parts(file, arrays, test_share, tokens, task)
    several = train.y.dtype == np.float32
    highest = int(max(train.y.max(initial=0), test.y.max(initial=0)))
    number = train.y.reshape(len(train.y), -1).shape[1] if several else highest + 1
    vocabulary = int(max(train.x.max(initial=0), test.x.max(initial=0))) + 1 if tokens else 0
    number = max(number, vocabulary) if task == "next_token" else number
    classes = tuple(map(str, arrays.get("classes", np.arange(number)).tolist()))
    if task == "segmentation" and set(augment) - {"color"}:
        message = "moves the pixels of an image, and not those of its mask"
        raise make_spec_error("augment", augment, message, "use color, or leave it out")
    normalised, augmented = choose_preparation(train.x, normalise, augment)
    return Dataset(
        name="npz",
        train=train,
        test=test,
        num_classes=len(classes),
        input_shape=train.x.shape[1:],
        classes=classes,
        normalise=normalised,
        task=("labels" if several else "classes") if task == "auto" else task,
        augment=augmented,
        source=str(file),
        vocabulary=vocabulary,
        targets=TargetScale.measure(train.y) if task == "regression" else AS_THEY_ARE,
    )


def _read(file: Path) -> dict[str, Array]:
    try:
        # A small file may unpack to any size.
        require_memory(f"{file}: unpacked, it", _count_unpacked_bytes(file))
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except MemoryError:
        raise
    except (*UNREADABLE, AttributeError, TypeError) as error:  # a file of a single array raises the last two
        raise DataError(f"{file}: is not a complete .npz file of plain arrays ({error})") from error


def _count_unpacked_bytes(file: Path) -> int:
    """Count the bytes of all arrays, from their headers."""
    total = 0
    with zipfile.ZipFile(file) as members:
        for name in members.namelist():
            with members.open(name) as opened:
                version = np.lib.format.read_magic(opened)
                read = np.lib.format.read_array_header_1_0
                if version != (1, 0):
                    read = np.lib.format.read_array_header_2_0
                shape, _, dtype = read(opened)
                total += math.prod(shape) * dtype.itemsize
    return total


def _parts(
    file: Path, arrays: Mapping[str, Array], share: float, tokens: bool, task: str
) -> tuple[Examples, Examples]:
    endings = ("_train", "_test") if "x_train" in arrays else ("",)
    right, wrong = ("groups_train", "groups") if "x_train" in arrays else ("groups", "groups_train")
    if wrong in arrays:
        raise DataError(f"{file}: {wrong} does not belong to x{endings[0]}", f"call it {right}")
    groups, owners = number_groups(file, [arrays.get("groups" + ending) for ending in endings])
    parts = [
        replace(_examples(file, arrays, ending, mine, tokens, task), group_names=owners)
        for ending, mine in zip(endings, groups, strict=True)
    ]
    if task == "auto" and all(_is_one_hot(part.y) for part in parts):
        message = f"{file}: y{endings[0]} has exactly one 1 in every row: one-hot classes"
        raise DataError(message, f"save class numbers: y{endings[0]}.argmax(1)")
    if len(parts) == 1:
        return cut_test_examples(parts[0], share)
    _check_alike(file, arrays, *parts)
    return parts[0], parts[1]


def _check_alike(file: Path, arrays: Mapping[str, Array], train: Examples, test: Examples) -> None:
    """Raise an error if the training part and the test part differ in type or shape.

    Whole numbers and fractions rarely have the same scale: 0 to 255, and 0 to 1.
    """
    for name, mine, other in (("x", train.x, test.x), ("y", train.y, test.y)):
        one, two = arrays[f"{name}_train"], arrays[f"{name}_test"]
        same = mine.dtype == other.dtype and mine.shape[1:] == other.shape[1:]
        if not same or (name == "x" and (one.dtype.kind == "f") != (two.dtype.kind == "f")):
            both = f"{name}_train is {one.dtype} of {one.shape}, but {name}_test {two.dtype} of {two.shape}"
            raise DataError(f"{file}: {both}", "save both in the same way")


def _examples(
    file: Path, arrays: Mapping[str, Array], ending: str, groups: Indices | None, tokens: bool, task: str
) -> Examples:
    for name in ("x" + ending, "y" + ending):
        if name not in arrays:
            raise DataError(f"{file}: has no array {name!r} among {', '.join(sorted(arrays))}")
    x, y = arrays["x" + ending], arrays["y" + ending]
    if not (x.ndim and y.ndim and (len(x) or ending == "_test")):
        raise DataError(f"{file}: x{ending} or y{ending} has no examples", "save one row for each example")
    if len(x) != len(y) or (groups is not None and len(groups) != len(x)):
        raise DataError(f"{file}: x{ending}, y{ending} and groups{ending} differ in length")
    return Examples(_inputs(file, "x" + ending, x, tokens), _labels(file, "y" + ending, y, task), groups)


def _labels(file: Path, name: str, y: Array, task: str) -> Array:
    if task == "regression":
        return to_float32_targets(f"{file}: {name}", y)
    if task in ("next_token", "segmentation") and np.issubdtype(y.dtype, np.integer):
        return y.astype(np.int64)
    if y.ndim == 2 and y.shape[1] > 1 and np.isin(y, (0, 1)).all():
        return y.astype(np.float32)
    if y.size == len(y) and np.issubdtype(y.dtype, np.integer) and y.min(initial=0) >= 0:
        return y.ravel().astype(np.int64)
    message = f"{file}: {name} ({y.dtype} of {y.shape}) holds neither class numbers nor zeros and ones"
    raise DataError(message, _suggest_labels(name, y))


def _suggest_labels(name: str, y: Array) -> str:
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        return "leave out the examples with missing or infinite labels"
    if y.dtype.kind == "f" and not np.array_equal(y, np.floor(y)):
        return "to predict numbers with a fraction, set task: regression"
    if y.dtype.kind == "f" and y.min(initial=0) >= 0 and y.size == len(y):
        return f"save class numbers as whole numbers: {name} = {name}.astype(int)"
    if y.size != len(y):
        return ""
    if name == "y_test":
        return "number them as y_train: y_test = np.searchsorted(names, y_test), with the names of y_train"
    return (
        f"number them: names, {name} = np.unique({name}, return_inverse=True), and save the names as classes"
    )


def _is_one_hot(y: Array) -> bool:
    """Whether several yes-or-no labels are the classes of one label each: they would train as independent."""
    return y.ndim == 2 and len(y) > 0 and bool((y.sum(1) == 1).all())


def _inputs(file: Path, name: str, x: Array, tokens: bool) -> Array:
    if x.dtype.kind not in "iuf":
        raise DataError(f"{file}: {name} is of {x.dtype}, expected numbers")
    if tokens:
        return _tokens(file, name, x)
    if x.ndim == 1:
        x = x[:, None]  # one number for each example
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        return to_float32(f"{file}: {name}", x)
    if x.ndim == 3:
        return x[:, None]
    if x.shape[1] in (1, 3):
        return x
    if x.shape[3] not in (1, 3):
        message = f"{file}: {name} has the shape {x.shape}, and images of uint8 have 1 or 3 channels"
        raise DataError(message, f"leave the others out, such as {name}[..., :3]; or save it as float32")
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _tokens(file: Path, name: str, x: Array) -> Array:
    whole = (x >= 0) & (x <= np.iinfo(np.int32).max) & (x == np.floor(x))
    require_all(whole, f"{file}: {name}", x, "a token is a whole number of at least 0 and below 2^31")
    return x.astype(np.int32)
