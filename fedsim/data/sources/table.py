"""The user's own table: a CSV or Parquet file with a row per example, a target and maybe a client column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsim.base.parameters import Share, make_spec_error, suggest_name
from fedsim.data.dataset import Array, Dataset, Examples, Indices
from fedsim.data.places import OWN_FILE_HINT, DataPath, DataRoots
from fedsim.data.sources.columns import (
    BOOLEANS,
    FRACTIONS,
    NUMBERS,
    TEXTS,
    import_pyarrow,
    make_features,
    read_whole_numbers,
    simplify_column,
)
from fedsim.data.sources.folders import cut_test_positions
from fedsim.data.sources.groups import number_groups
from fedsim.data.sources.numeric import to_float32_targets
from fedsim.errors import DataError, SpecError
from fedsim.learning_tasks.regression import AS_THEY_ARE, TargetScale

MOST_CLASSES = 1_000
"""The most different values of a target of classes; more are a quantity, such as a price."""

_INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+")
"""Names of columns that hold the index of pandas; the last one after a second round through a file."""

Missing = Literal["refuse", "drop", "mean"]


def table(
    places: DataRoots,
    *,
    path: DataPath,
    target: str,
    client: str | None = None,
    features: tuple[str, ...] | None = None,
    test: DataPath | None = None,
    test_share: Share = 0.2,
    missing: Missing = "refuse",
    normalise: Literal["column", "none"] = "column",
    task: Literal["auto", "classes", "regression"] = "auto",
) -> Dataset:
    """A `.csv` file with a header, or a `.parquet` file: one row per example; float32 [d].

    A column of numbers or of true and false is one input value. A column of texts is one value for each text,
    1 for the text of the row and 0 for all others. The classes are the different values of the target, in
    order. A target of numbers with a fraction is the target of a regression.

    Args:
        places: the data roots.
        path: the file, relative to a data root.
        target: column of the classes (texts, whole numbers, or true and false), or of numbers to predict.
            With `task: classes` also 0.0 and 1.0, as pandas writes whole numbers beside a missing value.
        client: column of the natural clients, for the partition `natural`; null for none.
        features: columns of the inputs; by default all others, without the index of pandas.
        test: the file of the test examples; null to cut them off the training examples.
        test_share: share cut off in that case, always the same rows.
        missing: `refuse` a table with missing values, `drop` the rows, or put the `mean` of the column there
            (a missing text is none of the texts).
        normalise: `column` (mean 0 and deviation 1 of each column of numbers, computed from all training
            rows), or `none`.
        task: `auto` (`regression` for a target of numbers with a fraction, else `classes`), or one of these.

    Raises:
        SpecError: if a column does not exist or cannot be used.
        DataNotFound: if there is no such file in a data root, or the package `pyarrow` is missing.
        DataError: if a file is damaged, a value is missing, or the two files differ in type.
    """
    files = [places.resolve_path("table", path, OWN_FILE_HINT)]
    if test is not None:
        files.append(places.resolve_path("table", test, OWN_FILE_HINT, argument="test"))
    tables = [_read_table(file) for file in files]
    names = _choose_features(files[0], tables[0].column_names, target, client, features)
    _check_column(files[0], "target", target, tables[0].column_names)
    if client is not None:
        _check_column(files[0], "client", client, tables[0].column_names)
    used = {"target": [target], "client": [client] if client else [], "features": names}
    whole = ("client", "target") if task == "classes" else ("client",)
    tables = [_take_columns(*each, used, whole) for each in zip(files, tables, strict=True)]
    for file, each in zip(files, tables, strict=True):
        _check_target(file, each, target, task)
    if len(tables) == 2:
        _check_alike(files, tables)
        tables = [tables[0], _match_target(files, tables, target, task)]
    tables = [_treat_missing(*each, used, missing) for each in zip(files, tables, strict=True)]
    rows = _choose_rows([each.num_rows for each in tables], test_share)
    is_regression = task == "regression" or simplify_column(tables[0][target])[0] == FRACTIONS
    return _make_dataset(files, tables, rows, used, normalise == "column", is_regression)


def _read_table(file: Path) -> Any:
    """Read a file as an Arrow table."""
    kind = file.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise make_spec_error("path", file.name, "is not a table", "give a .csv or a .parquet file")
    library = import_pyarrow(f"pyarrow{kind}")
    try:
        if kind == ".csv":
            _check_commas(file)
            options = library.ConvertOptions(strings_can_be_null=True)
            found = library.read_csv(file, convert_options=options)
        else:
            found = library.read_table(file)
    except (ValueError, OSError) as error:  # Arrow's own errors are among these
        raise DataError(f"{file}: is not a complete table ({error})", "save it again") from error
    twice = sorted({name for name in found.column_names if found.column_names.count(name) > 1})
    if twice:
        raise DataError(f"{file}: has several columns named {twice[0]!r}", "rename all but one of them")
    if not found.num_rows:
        raise DataError(f"{file}: has no rows", "save it again")
    return found


def _check_commas(file: Path) -> None:
    """Raise DataError if another sign than the comma separates the columns."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        header = lines.readline()
    for sign, name in ((";", "semicolons"), ("\t", "tabs")):
        if sign in header and "," not in header:
            raise DataError(
                f"{file}: its columns are separated by {name}",
                "save it with commas between the columns, and with points in numbers",
            )


def _choose_features(
    file: Path, there: Sequence[str], target: str, client: str | None, given: Sequence[str] | None
) -> list[str]:
    """The columns of the inputs: the given ones, or all others than target, client and index."""
    for name in given or ():
        _check_column(file, "features", name, there)
        if list(given or ()).count(name) > 1:
            raise make_spec_error("features", name, "is named more than once", "name each column once")
        if name in (target, client):
            role = "target" if name == target else "client"
            raise make_spec_error("features", name, f"is the {role} already", "leave it out of features")
    others = [name for name in there if not _INDEX.fullmatch(name)]
    names = [name for name in others if name not in (target, client)] if given is None else [*given]
    if not names:
        raise make_spec_error("features", given, f"{file.name} has no column left for the inputs")
    return names


def _check_column(file: Path, argument: str, name: str, there: Sequence[str]) -> None:
    if name not in there:
        raise make_spec_error(argument, name, f"{file.name} has no such column", suggest_name(name, there))


def _check_target(file: Path, whole: Any, target: str, task: str) -> None:
    """Raise an error if the target does not suit the task that the user has asked for."""
    kind = simplify_column(whole[target])[0]
    wrong = {"classes": (FRACTIONS,), "regression": (TEXTS, BOOLEANS), "auto": ()}[task]
    if kind in wrong:
        message = f"does not suit the target {target!r} of {file.name}, which holds {kind}"
        hint = "save the classes as whole numbers or texts; with task: auto the model predicts the number"
        raise make_spec_error("task", task, message, hint if task == "classes" else "use task: auto")


def _take_columns(
    file: Path, whole: Any, used: Mapping[str, Sequence[str]], whole_roles: Sequence[str]
) -> Any:
    """The used columns in simple types; a column of another type raises an error.

    In `whole_roles`, numbers such as 1.0 are whole numbers.
    """
    fine = {
        "target": (TEXTS, NUMBERS, FRACTIONS, BOOLEANS),
        "client": (TEXTS, NUMBERS),
        "features": (NUMBERS, FRACTIONS, BOOLEANS, TEXTS),
    }
    columns = dict[str, Any]()
    for role, names in used.items():
        for name in names:
            if role == "client" and name not in whole.column_names:
                continue  # nobody needs the clients of the test examples, but merged tests
            _check_column(file, role, name, whole.column_names)
            try:
                kind, columns[name] = simplify_column(whole[name])
            except ValueError as error:  # Arrow's, such as a whole number of more than 63 bits
                raise DataError(f"{file}: column {name!r} cannot be read ({error})") from error
            if kind == FRACTIONS and role in whole_roles:
                kind, columns[name] = read_whole_numbers(columns[name])
            if kind not in fine[role]:
                raise _make_kind_error(file, role, name, kind)
    return import_pyarrow().table(columns)


def _make_kind_error(file: Path, role: str, name: str, kind: str) -> SpecError:
    if kind == "binary" and file.suffix.lower() == ".csv":  # Arrow's word for bytes that are no text
        message = f"this column of {file.name} holds text that is not UTF-8"
        return make_spec_error(role, name, message, "save the file as UTF-8")
    holds = "no values" if kind == "null" else kind
    hints = {
        "target": "a target holds classes (whole numbers, texts, true and false) or numbers to predict",
        "client": "choose a column of names or whole numbers",
        "features": "list the columns of the inputs in features, without this one; or save it as numbers",
    }
    return make_spec_error(role, name, f"this column of {file.name} holds {holds}", hints[role])


def _check_alike(files: Sequence[Path], tables: Sequence[Any]) -> None:
    """Raise an error if a column has texts in one file and numbers in the other."""
    train, test = tables
    for name in test.column_names:
        kinds = [simplify_column(part[name])[0].replace(FRACTIONS, NUMBERS) for part in (train, test)]
        if kinds[0] != kinds[1]:
            message = f"column {name!r} holds {kinds[1]}, but {kinds[0]} in {files[0].name}"
            raise DataError(f"{files[1]}: {message}", "save both files in the same way")


def _match_target(files: Sequence[Path], tables: Sequence[Any], target: str, task: str) -> Any:
    """The test table; its target holds whole numbers if those of the training table are classes."""
    train, test = (simplify_column(each[target]) for each in tables)
    if task == "regression" or (train[0], test[0]) != (NUMBERS, FRACTIONS):
        return tables[1]
    kind, column = read_whole_numbers(test[1])
    if kind != NUMBERS:
        message = f"column {target!r} holds {kind}, but {NUMBERS} in {files[0].name}"
        raise DataError(f"{files[1]}: {message}", "to predict the number, set task: regression")
    return tables[1].set_column(tables[1].column_names.index(target), target, column)


def _treat_missing(file: Path, whole: Any, used: Mapping[str, Sequence[str]], how: Missing) -> Any:
    """The table without missing targets and clients; missing inputs are left only for `mean`."""
    masks = {
        name: whole[name].is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        for name in whole.column_names
        if how != "mean" or name not in used["features"]
    }
    absent = np.any(list(masks.values()), axis=0)
    if not absent.any():
        return whole
    if how != "drop":
        name = next(name for name, mask in masks.items() if mask.any())
        holes = sum(bool(mask.any()) for mask in masks.values()) - 1
        more = f", and {holes} more column{'s' * (holes > 1)} with missing values" if holes else ""
        message = f"column {name!r} has no value in {int(masks[name].sum()):,} of {len(absent):,} rows{more}"
        fill = "" if name not in used["features"] else ", or missing: mean fills in the mean of the column"
        left_out = f"{int(absent.sum()):,} row{'s' * (int(absent.sum()) > 1)}"
        raise DataError(f"{file}: {message}", f"missing: drop leaves {left_out} out{fill}")
    if absent.all():
        raise DataError(f"{file}: every row has a missing value", "list fewer columns in features")
    return whole.take(np.flatnonzero(~absent))


def _choose_rows(counts: Sequence[int], test_share: float) -> tuple[Indices, Indices]:
    """The positions of the training and of the test rows in the table of all rows."""
    if len(counts) == 2:
        return np.arange(counts[0]), np.arange(counts[0], sum(counts))
    return cut_test_positions(counts[0], test_share)


def _make_dataset(
    files: Sequence[Path],
    tables: Sequence[Any],
    rows: tuple[Indices, Indices],
    used: Mapping[str, Sequence[str]],
    standardise: bool,
    is_regression: bool,
) -> Dataset:
    arrow = import_pyarrow()
    [target], names = used["target"], used["features"]
    inputs = arrow.concat_tables([each.select(names) for each in tables], promote_options="permissive")
    x, columns = make_features(files[0], inputs, names, rows[0], standardise=standardise)
    targets = arrow.concat_tables([each.select([target]) for each in tables], promote_options="permissive")
    y, classes = _read_numbers(target, targets) if is_regression else _number_classes(target, targets)
    groups, owners = _number_clients(files[0], used["client"], tables, rows)
    train, test = (
        Examples(x[mine], y[mine], whose, owners) for mine, whose in zip(rows, groups, strict=True)
    )
    return Dataset(
        name="table",
        train=train,
        test=test,
        num_classes=len(classes),
        input_shape=x.shape[1:],
        classes=classes,
        source=str(files[0]),
        columns=columns,
        task="regression" if is_regression else "classes",
        targets=TargetScale.measure(train.y) if is_regression else AS_THEY_ARE,
    )


def _read_numbers(target: str, whole: Any) -> tuple[Array, tuple[str, ...]]:
    """The target of each row, float32 [n], and its name."""
    y = whole[target].to_numpy()
    with np.errstate(over="ignore"):
        if not np.isfinite(y.astype(np.float32)).all():
            raise make_spec_error("target", target, "has infinite values", "leave these rows out")
    return to_float32_targets(f"column {target!r}", y), (target,)


def _number_classes(target: str, whole: Any) -> tuple[Indices, tuple[str, ...]]:
    """The class of each row, int64 [n], and the names of the classes."""
    compute, column = import_pyarrow("pyarrow.compute"), whole[target]
    found = sorted(compute.unique(column).to_pylist())
    if len(found) > MOST_CLASSES:
        message = f"has {len(found):,} different values, more than {MOST_CLASSES:,} classes"
        numbers = not isinstance(found[0], str)
        hint = "choose a column of classes" + (
            ", or predict the number with task: regression" if numbers else ""
        )
        raise make_spec_error("target", target, message, hint)
    _check_spelling(target, found)
    values = import_pyarrow().array(found, column.type)
    numbers = compute.index_in(column, value_set=values).to_numpy(zero_copy_only=False)
    names = (str(value).lower() if isinstance(value, bool) else str(value) for value in found)
    return numbers.astype(np.int64), tuple(names)


def _check_spelling(target: str, values: Sequence[Any]) -> None:
    """Raise SpecError if two classes differ by spaces at their ends or by case alone."""
    seen = dict[str, str]()
    for value in values:
        if isinstance(value, str):
            other = seen.setdefault(value.strip().lower(), value)
            if other != value:
                message = f"has the classes {other!r} and {value!r}, which differ by spaces or case alone"
                raise make_spec_error("target", target, message, "write one class in one way")


def _number_clients(
    source: Path, client: Sequence[str], tables: Sequence[Any], rows: tuple[Indices, Indices]
) -> tuple[list[Indices | None], tuple[str, ...]]:
    """The natural client of the training and of the test examples, None without a column; and their names."""
    names = list[Array | None]()
    for part in tables:
        there = [np.asarray(part[name].to_pylist()) for name in client if name in part.column_names]
        names.append(there[0] if there else None)
    numbers, owners = number_groups(source, names)
    if len(numbers) == 2 or numbers[0] is None:
        return [*numbers, None][:2], owners
    return [numbers[0][mine] for mine in rows], owners
