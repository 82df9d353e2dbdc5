"""Columns of a table as input values: numbers are standardised, texts become one value per category."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsim.base.parameters import make_spec_error
from fedsim.data.dataset import Array, Column, Indices
from fedsim.data.places import TABLE_EXTRA
from fedsim.data.sources.numeric import require_all, to_float32
from fedsim.errors import DataNotFound
from fedsim.learning_tasks.regression import measure_deviations

MOST_CATEGORIES = 100
"""The most different texts of a column that becomes one input value per text."""

MISSING_WORDS = {"?", "-", "--", ".", "n/a", "na", "nan", "none", "null", "missing", "unknown"}
"""Texts, in small letters, that stand for a missing number in many files."""

MOST_CODES = 10
"""The most different numbers of a column that are taken for codes of categories, such as 0, 1, 2 and 3+."""

_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+(\.\d*)?|\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")

NUMBERS, FRACTIONS, BOOLEANS, TEXTS = "whole numbers", "numbers with a fraction", "true or false", "texts"


class Features(NamedTuple):
    """The inputs of all rows of a table.

    Attributes:
        x: float32 [n, d].
        columns: description of each of the d values.
    """

    x: Array
    columns: tuple[Column, ...]


def import_pyarrow(module: str = "pyarrow") -> Any:
    """Import a module of pyarrow, which only tables need.

    Raises:
        DataNotFound: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataNotFound("tables need the package 'pyarrow'", TABLE_EXTRA) from error


def simplify_column(column: Any) -> tuple[str, Any]:
    """Convert a column to one of four types.

    Args:
        column: an Arrow column of any type.

    Returns:
        The kind of its values (`NUMBERS`, `FRACTIONS`, `BOOLEANS` or `TEXTS`; for any other type, the name of
        the type), and the column as int64, float64, bool or string.

    Raises:
        ValueError: if a whole number does not fit into int64.
    """
    arrow = import_pyarrow()
    kind, types = column.type, arrow.types
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_boolean(kind):
        return BOOLEANS, column
    if types.is_integer(kind):
        return NUMBERS, column.cast(arrow.int64())
    if types.is_floating(kind) or types.is_decimal(kind):
        return FRACTIONS, column.cast(arrow.float64(), safe=False)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return TEXTS, column.cast(arrow.string())
    return str(kind), column


def read_whole_numbers(column: Any) -> tuple[str, Any]:
    """Convert a column of float64 to int64 if all its values are whole: pandas writes 1 beside a hole as 1.0.

    Returns:
        As `simplify_column`; a column with a fraction stays as it is.
    """
    arrow, compute = import_pyarrow(), import_pyarrow("pyarrow.compute")
    nothing = arrow.scalar(None, column.type)
    try:
        return NUMBERS, compute.if_else(compute.is_nan(column), nothing, column).cast(arrow.int64())
    except ValueError:  # Arrow's, of a fraction or an infinity
        return FRACTIONS, column


def make_features(
    file: Path, table: Any, names: Sequence[str], train: Indices, *, standardise: bool
) -> Features:
    """Turn columns into input values.

    Args:
        file: of the table, for messages.
        table: an Arrow table; its columns of these names are simple, as `simplify_column` makes them. A
            missing number becomes the mean of the training rows; a missing text has no category.
        names: the columns, in the order of the values.
        train: positions of the training rows, from which mean, deviation and categories are taken.
        standardise: whether numbers get mean 0 and deviation 1.

    Raises:
        SpecError: if a column has too many categories.
        DataError: if a number is not finite.
    """
    parts, columns = list[Array](), list[Column]()
    for name in names:
        kind, column = simplify_column(table[name])
        if kind == TEXTS:
            values, made = _encode_categories(file, name, column, train)
        else:
            values, made = _standardise_numbers(
                f"{file}: column {name!r}", name, column, train, standardise and kind != BOOLEANS
            )
        parts.append(values)
        columns += made
    return Features(np.concatenate(parts, axis=1), tuple(columns))


def _standardise_numbers(
    what: str, name: str, column: Any, train: Indices, standardise: bool
) -> tuple[Array, list[Column]]:
    """The values [n, 1]. In float64: float32 would round large numbers before the mean is subtracted."""
    arrow = import_pyarrow()
    missing = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if column.type == arrow.bool_():
        column = column.cast(arrow.int64())
    values = column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    require_all(np.isfinite(values) | missing, what, values, "expected finite numbers")
    known = values[train][~missing[train]]
    mean = float(known.mean()) if len(known) else 0.0
    values = np.where(missing, mean, values)
    if not standardise:
        return to_float32(what, values)[:, None], [Column(name)]
    std = float(measure_deviations(known)) if len(known) else 1.0
    return to_float32(what, (values - mean) / std)[:, None], [Column(name, None, mean, std)]


def _check_no_numbers(file: Path, name: str, found: Sequence[str]) -> None:
    """Raise SpecError for numbers that became texts by a word such as `?`, or by commas.

    Few numbers, and numbers such as 007, may be categories.

    Args:
        file: of the table, for the message.
        name: the column.
        found: its different texts.
    """
    texts = {text.strip() for text in found} - {""}
    numbers = {text for text in texts if _NUMBER.fullmatch(text)}
    words, commas = sorted(texts - numbers), sorted(text for text in numbers if "," in text)
    if len(numbers) <= MOST_CODES or any(re.match(r"[+-]?0\d", text) for text in numbers):
        return
    if words and {word.lower() for word in words} <= MISSING_WORDS:
        message = f"column {name!r} of {file.name} has numbers and the text {words[0]!r}"
        hint = "leave such a cell empty, and set missing: mean or drop"
    elif commas and not words:
        message = f"column {name!r} of {file.name} has numbers with commas, such as {commas[0]!r}"
        hint = "write numbers as 1234.5"
    else:
        return
    raise make_spec_error("features", name, message, hint)


def _encode_categories(file: Path, name: str, column: Any, train: Indices) -> tuple[Array, list[Column]]:
    """One value per text of the training rows, in alphabetical order; 0 everywhere for any other text."""
    arrow, compute = import_pyarrow(), import_pyarrow("pyarrow.compute")
    found = sorted(compute.unique(column.take(train).drop_null()).to_pylist())
    _check_no_numbers(file, name, compute.unique(column.drop_null()).to_pylist())
    if len(found) > MOST_CATEGORIES:
        message = f"column {name!r} of {file.name} has {len(found):,} different texts, too many for inputs"
        hint = "list the columns of the inputs in features, without this one"
        raise make_spec_error("features", name, message, hint)
    places = compute.index_in(column, value_set=arrow.array(found, arrow.string()))
    numbers = compute.fill_null(places, -1).to_numpy(zero_copy_only=False)
    values = (numbers[:, None] == np.arange(len(found))).astype(np.float32)
    return values, [Column(name, text) for text in found]
