"""The data set that every loader returns: compact arrays, and the normalisation of a batch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import tree
from fedsim.errors import DataError
from fedsim.learning_tasks.learning_task import UNKNOWN, LearningTask
from fedsim.learning_tasks.tasks import AS_THEY_ARE, CLASS_TASKS, LEARNING_TASKS, Regression, TargetScale

AT_ONCE = 250
"""Batch size of forward passes without training: so small that activations stay in the CPU cache."""

MOST_OUTPUTS = 2**26
"""The most outputs of such a batch, unless one example has more."""

Array: TypeAlias = NDArray[Any]
Indices: TypeAlias = NDArray[np.int64]
TaskName: TypeAlias = Literal["classes", "labels", "regression", "next_token", "segmentation"]
Augmentation: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples in their storage types; the arrays are read-only views.

    Attributes:
        x: images uint8 [n, C, H, W], flat features float32 [n, d], or tokens int32 [n, L].
        y: classes int64 [n]; several labels per example float32 [n, L], each 0, 1 or NaN (unknown); targets
            of a regression float32 [n] or [n, k]; next tokens int64 [n, length]; classes of pixels int64
            [n, H, W]. A token or pixel of the class -100 does not count.
        groups: the natural client of each example, int64 [n], or None.
        group_names: the names of the natural clients, by their numbers; () without names.

    Raises:
        DataError: if they are no arrays, differ in length, or the labels have another type.
    """

    x: Array
    y: Array
    groups: Indices | None = None
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("x", "y", "groups"):
            array = getattr(self, name)
            if not (isinstance(array, np.ndarray) or (name == "groups" and array is None)):
                raise DataError(f"{name} has to be a NumPy array, not a {type(array).__name__}")
        lengths = [len(a) for a in (self.x, self.y, self.groups) if a is not None]
        if len(set(lengths)) > 1:
            raise DataError(f"examples, labels and groups differ in length: {lengths!r}")
        if self.y.dtype not in (np.int64, np.float32):
            raise DataError(f"labels have to be int64 or float32, not {self.y.dtype}")
        for name in ("x", "y", "groups"):
            array = getattr(self, name)
            if array is not None:
                view = array.view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)

    def __len__(self) -> int:
        return len(self.y)

    def select_rows(self, indices: Array | slice) -> Examples:
        """The examples at these positions, in this order: a copy for an index array, a view for a slice."""
        groups = None if self.groups is None else self.groups[indices]
        return Examples(self.x[indices], self.y[indices], groups, self.group_names)


@dataclass(frozen=True)
class Normalise:
    """Turn a stored batch into a model's float32 input: `(x / scale - mean) / std`, per channel.

    Without a mean, uint8 is only divided by the scale, floats are unchanged and tokens stay whole numbers.

    Attributes:
        mean: of each channel, after scaling; empty for no normalisation.
        std: of each channel, after scaling.
        scale: the value that becomes 1.0, 255 for ordinary uint8 images.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    scale: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise a batch.

        Args:
            x: [..., C, H, W] for images (any number of leading dimensions), any shape for other data.

        Returns:
            float32 of the same shape and device; tokens (int32) are returned unchanged.
        """
        if not self.mean:
            return x if x.dtype in (torch.int32, torch.int64) else _scale_inputs(x, self.scale)
        gain = [1.0 / (self.scale * s) for s in self.std]
        shift = [m / s for m, s in zip(self.mean, self.std, strict=True)]
        if len(gain) == 1:
            return x.to(torch.float32) * gain[0] - shift[0]
        return x.to(torch.float32) * _channel_tensor(gain, x.device) - _channel_tensor(shift, x.device)


def _channel_tensor(values: list[float], device: torch.device) -> Tensor:
    return tree.send_to_device(torch.tensor(values, dtype=torch.float32), device).view(-1, 1, 1)


def _scale_inputs(x: Tensor, scale: float) -> Tensor:
    x = x.to(torch.float32)
    return x if scale == 1.0 else x / scale


class Column(NamedTuple):
    """One input value of a row of a table.

    Attributes:
        name: the column of the table.
        category: the text for which the value is 1, and 0 for any other; None for a column of numbers, whose
            value is (number - mean) / std.
        mean: of the training rows; 0 if numbers are not standardised.
        std: their standard deviation; 1 if numbers are not standardised.
    """

    name: str
    category: str | None = None
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True, eq=False)
class Dataset:
    """A whole data set; partitions refer to `train` by position.

    Attributes:
        name: the registered name.
        train: the examples for the clients.
        test: the global test set.
        num_classes: classes, labels if each example has several, targets of a regression, or the vocabulary.
        input_shape: of one example, without the batch dimension.
        classes: their names, in the order of the class numbers; () for the tokens of a text.
        normalise: applied to every batch before the model.
        task: the learning task: "classes" (one class each), "labels" (several yes-or-no labels each),
            "regression", "next_token" or "segmentation".
        augment: function of a stored batch and a generator, applied before normalisation; None for none.
        source: the place of the files, for the record.
        vocabulary: number of tokens, 0 for data without tokens.
        columns: for rows of a table, the column of each input value; () for other data.
        targets: scale of the targets of a regression, on which a model learns them.
        fingerprint: a hash of all examples that `load_dataset` has read; "" for a data set made otherwise.
    """

    name: str
    train: Examples
    test: Examples
    num_classes: int
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    normalise: Normalise = field(default_factory=Normalise)
    task: TaskName = "classes"
    augment: Augmentation | None = None
    source: str = ""
    vocabulary: int = 0
    columns: tuple[Column, ...] = ()
    targets: TargetScale = AS_THEY_ARE
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if self.task not in LEARNING_TASKS:
            tasks = ", ".join(LEARNING_TASKS)
            raise DataError(f"{self.name}: there is no learning task {self.task!r}", f"tasks: {tasks}")
        if len(self.classes) != self.num_classes and (self.classes or self.task != "next_token"):
            raise DataError(f"{self.name}: {len(self.classes)} class names for {self.num_classes} classes")
        for part, examples in (("training", self.train), ("test", self.test)):
            _check_labels(f"{self.name}: {part} set", examples, self)

    @cached_property
    def learning_task(self) -> LearningTask:
        """The loss and the metrics of these labels."""
        if self.task == "regression":
            return Regression(self.num_classes, self.targets)
        return LEARNING_TASKS[self.task](self.num_classes)

    @property
    def scored_at_once(self) -> int:
        """The batch size of forward passes without training.

        It is smaller for large outputs, such as those of a language model: to score 2^26 of them takes 2 GB.
        """
        outputs = math.prod(self.learning_task.output_shape(self.input_shape))
        return max(1, min(AT_ONCE, MOST_OUTPUTS // max(1, outputs)))

    def partition_labels(self, test: bool = False) -> tuple[Array, int]:
        """Return the class labels by which examples can be dealt and counted, and the number of classes.

        Without class labels, all examples are of one class.

        Args:
            test: of the test set; by default of the training set.
        """
        examples = self.test if test else self.train
        if self.task in CLASS_TASKS:
            return examples.y, self.num_classes
        return np.zeros(len(examples), np.int64), 1

    @property
    def partition_classes(self) -> tuple[str, ...]:
        """The names of the classes of `partition_labels`."""
        return self.classes if self.task in CLASS_TASKS else ("examples",)

    def to_metadata(self) -> dict[str, Any]:
        """Return the metadata that users of a model need to prepare its inputs, as plain data.

        Returns:
            `input_shape`, `num_classes`, `classes`, `task`, `vocabulary`; `normalise`: mean, std and scale,
            published or computed from these examples; and `columns`, one for each input value of a table.
            Where the outputs are not one number for each class, `outputs` is their shape. A regression also
            has `targets`: the mean and the std by which outputs become targets, `output * std + mean`.
        """
        return {
            "input_shape": list(self.input_shape),
            "num_classes": self.num_classes,
            "classes": list(self.classes),
            "task": self.task,
            "vocabulary": self.vocabulary,
            "normalise": asdict(self.normalise),
            "columns": [column._asdict() for column in self.columns],
            **self._task_metadata(),
        }

    def _task_metadata(self) -> dict[str, Any]:
        """Return the facts that only some learning tasks have."""
        outputs = self.learning_task.output_shape(self.input_shape)
        found: dict[str, Any] = {} if outputs == (self.num_classes,) else {"outputs": list(outputs)}
        return found | ({"targets": self.targets._asdict()} if self.targets.std else {})

    def check_inputs(self) -> None:
        """Raise DataError for inputs that are not finite, or have another shape than `input_shape`."""
        for part, x in (("training", self.train.x), ("test", self.test.x)):
            what, shape = f"{self.name}: {part} set", list(self.input_shape)
            if len(x) and list(x.shape[1:]) != shape:
                raise DataError(
                    f"{what}: inputs have the shape {list(x.shape[1:])}, and input_shape is {shape}"
                )
            if x.dtype.kind == "f" and not np.isfinite(x).all():
                place = np.argwhere(~np.isfinite(x))[0]
                message = f"{what}: input {x[tuple(place)]} at position {'/'.join(map(str, place))}"
                raise DataError(message, "replace it by a finite number, or leave the example out")

    def compute_fingerprint(self) -> str:
        """Return 12 hexadecimal digits that change if an example, a label or a group changes (SHA-256)."""
        sha = hashlib.sha256()
        for examples in (self.train, self.test):
            for array in (examples.x, examples.y, examples.groups):
                if array is not None:
                    sha.update(f"{array.dtype} {array.shape}".encode())
                    sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()[:12]

    def limit_train(self, limit: int | None) -> Dataset:
        """The same data set with only the first `limit` training examples (None: all)."""
        if limit is None or limit >= len(self.train):
            return self
        return replace(self, train=self.train.select_rows(slice(limit)))


def _check_labels(what: str, examples: Examples, dataset: Dataset) -> None:
    """Raise an error for labels of another type or shape than the task has, and for unknown classes."""
    y, classes, shape = examples.y, dataset.num_classes, examples.y.shape[1:]
    if dataset.task == "labels":
        _require_form(what, y, np.float32, f"{classes} labels per example", shape == (classes,))
    elif dataset.task == "regression":
        fits = shape == (classes,) or (shape == () and classes == 1)
        _require_form(what, y, np.float32, f"{classes} targets per example", fits)
        if not np.isfinite(y).all():
            raise DataError(f"{what}: {int((~np.isfinite(y)).sum()):,} targets are not finite numbers")
    elif dataset.task == "next_token":
        wanted = "the next token at every position"
        _require_form(what, y, np.int64, wanted, shape == examples.x.shape[1:])
    elif dataset.task == "segmentation":
        fits = len(shape) == 2 and shape == examples.x.shape[2:]
        _require_form(what, y, np.int64, "a class for every pixel", fits)
    else:
        _require_form(what, y, np.int64, "one class per example", shape == ())
    if y.dtype == np.int64:
        _check_classes(what, y, classes, known=y != UNKNOWN if shape else None)


def _require_form(what: str, y: Array, kind: type, wanted: str, fits: bool) -> None:
    if not fits or y.dtype != kind:
        found = f"{y.dtype} of shape {list(y.shape)}"
        raise DataError(f"{what}: labels are {found}, expected {wanted} as {np.dtype(kind)}")


def _check_classes(what: str, y: Array, num_classes: int, known: Array | None) -> None:
    """Raise an error for a class number outside 0..num_classes-1; only the known ones have to fit."""
    if not y.size or (y.min() >= 0 and y.max() < num_classes):
        return
    wrong = (y < 0) | (y >= num_classes)
    places = np.argwhere(wrong if known is None else wrong & known)
    if len(places):
        place = places[0]
        raise DataError(
            f"{what}: class {y[tuple(place)]} at position {'/'.join(map(str, place))}, "
            f"expected 0 to {num_classes - 1}"
        )
