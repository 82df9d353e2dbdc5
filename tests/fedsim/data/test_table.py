"""The user's own tables: CSV and Parquet files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.data import Dataset, load_dataset, make_federation
from fedsim.data.sources.columns import MOST_CATEGORIES
from fedsim.data.sources.folders import cut_test_positions
from fedsim.data.sources.table import MOST_CLASSES
from fedsim.errors import DataError, DataNotFound, SpecError
from fedsim.learning_tasks.regression import TargetScale
from tests.fedsim.data.samples import broken

pytest.importorskip("pyarrow", reason="the extra 'table' is not installed")
import pyarrow as pa
import pyarrow.parquet as pq

AGES = np.arange(20) * 3.0 + 18
CITIES = np.array(["bonn", "aachen", "bonn", "celle"] * 5)
USERS = np.array(["eve", "ann", "bob", "ann"] * 5)
ANSWERS = np.array(["no", "yes"] * 10)
WHOLE: dict[str, Any] = {
    "age": AGES,
    "city": CITIES,
    "member": np.arange(20) % 3 == 0,
    "user": USERS,
    "answer": ANSWERS,
}


def write(file: Path, columns: dict[str, Any]) -> Path:
    table = pa.table(columns)
    if file.suffix == ".parquet":
        pq.write_table(table, file)
    else:
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        texts = [["" if value is None else str(value).lower() for value in row] for row in rows]
        file.write_text("\n".join(map(",".join, [[*columns], *texts])) + "\n")
    return file


def load(root: Path, path: str = "mine.parquet", target: str = "answer", **given: Any) -> Dataset:
    return load_dataset("table", roots=[root], path=path, target=target, **given)


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet"])
def test_the_inputs_are_those_that_numpy_computes(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, WHOLE)
    data = load(tmp_path, name, client="user", test_share=0.25)
    train, test = cut_test_positions(20, 0.25)
    age = (AGES - AGES[train].mean()) / AGES[train].std()
    one_hot = [city == CITIES for city in ("aachen", "bonn", "celle")]
    wanted = np.stack([age, *one_hot, WHOLE["member"]], axis=1)
    names = np.array(["ann", "bob", "eve"])
    for part, rows in ((data.train, train), (data.test, test)):
        assert part.x == pytest.approx(wanted[rows], abs=1e-6)
        assert part.x.dtype == np.float32
        assert (np.array(data.classes)[part.y] == ANSWERS[rows]).all()
        assert part.groups is not None
        assert (names[part.groups] == USERS[rows]).all()
    assert (data.classes, data.input_shape) == (("no", "yes"), (5,))
    columns = data.to_metadata()["columns"]
    assert [(each["name"], each["category"]) for each in columns] == [
        ("age", None),
        ("city", "aachen"),
        ("city", "bonn"),
        ("city", "celle"),
        ("member", None),
    ]
    assert columns[0]["mean"] == pytest.approx(AGES[train].mean())


def test_every_client_of_the_natural_partition_is_one_person(tmp_path: Path) -> None:
    write(tmp_path / "mine.parquet", WHOLE)
    data = load(tmp_path, client="user", features=["age"], normalise="none", test_share=0.0)
    shared = make_federation(data, "natural", num_clients=3, seed=0)
    for client, name in enumerate(["ann", "bob", "eve"]):
        held = data.train.x[shared.train.client_positions(client), 0]
        assert held.tolist() == AGES[name == USERS].tolist()
    assert shared.train.names == ("ann", "bob", "eve")


def test_clients_have_names_only_where_each_is_one_person(tmp_path: Path) -> None:
    write(tmp_path / "mine.parquet", WHOLE)
    data = load(tmp_path, client="user", test_share=0.25)
    merged = make_federation(data, "natural", num_clients=3, seed=0, tests="merged")
    assert merged.train.names == ("ann", "bob", "eve")
    for clients, kind in ((2, "natural"), (3, "iid")):
        assert make_federation(data, kind, num_clients=clients, seed=0).train.names == ()
    numbers = load(tmp_path, client="user", features=["age"], test_share=0.25)
    assert numbers.train.group_names == numbers.test.group_names == ("ann", "bob", "eve")


def test_a_file_of_test_rows_is_measured_with_the_training_rows(tmp_path: Path) -> None:
    write(tmp_path / "mine.parquet", {"age": [1.0, 3.0], "city": ["a", "b"], "id": [7, 7], "y": [1, 5]})
    write(tmp_path / "test.parquet", {"city": ["c", "b", "a"], "age": [5, 2, 1], "y": [5, 9, 1]})
    data = load(tmp_path, target="y", client="id", test="test.parquet")
    assert data.test.x.tolist() == [[3, 0, 0], [0, 0, 1], [-1, 1, 0]]
    assert (data.classes, data.test.y.tolist()) == (("1", "5", "9"), [1, 2, 0])
    assert data.train.groups is not None
    assert data.test.groups is None
    write(tmp_path / "test.parquet", {"city": [1, 2], "age": [5, 2], "y": [5, 9]})
    with pytest.raises(DataError, match=r"test\.parquet: column 'city' holds whole numbers, but texts"):
        load(tmp_path, target="y", client="id", test="test.parquet")
    with pytest.raises(SpecError, match=r"test: has to be text that names a place inside a data root"):
        load(tmp_path, target="y", test="../test.parquet")


def test_a_column_is_named_once(tmp_path: Path) -> None:
    write(tmp_path / "mine.parquet", {"age": [1.0, 3.0], "y": [1, 5]})
    with pytest.raises(
        SpecError, match=r"features: is named more than once \(got 'age'\); name each column once"
    ):
        load(tmp_path, target="y", features=["age", "age"])


def test_numbers_with_a_word_for_a_missing_one_are_no_categories(tmp_path: Path) -> None:
    ages, classes = [str(age) for age in range(20, 60)], [0, 1] * 20
    write(tmp_path / "mine.csv", {"age": [*ages[:-1], "?"], "y": classes})
    with pytest.raises(
        SpecError, match=r"column 'age' of mine.csv has numbers and the text '\?'.*leave such a cell"
    ):
        load(tmp_path, "mine.csv", target="y")
    for commas in ([f"{age},5" for age in range(20, 60)], [f"{age},000" for age in range(20, 60)]):
        write(tmp_path / "mine.parquet", {"age": commas, "y": classes})
        with pytest.raises(SpecError, match=r"numbers with commas, such as '20,(5|000)'.*1234\.5"):
            load(tmp_path, target="y")
    for categories in (
        [f"{n}A" if n % 9 == 0 else str(n) for n in range(40)],
        [f"00{n}" for n in range(39)] + ["?"],
    ):
        write(tmp_path / "mine.parquet", {"place": categories, "y": classes})
        assert load(tmp_path, target="y", test_share=0.0).input_shape == (40,)
    # Few numbers may be codes: these are categories.
    write(tmp_path / "mine.csv", {"children": [*"0123" * 9, *"012", "3+"], "y": classes})
    assert load(tmp_path, "mine.csv", target="y").input_shape == (5,)


def test_large_numbers_keep_their_differences(tmp_path: Path) -> None:
    """In float32 these times of a day would all be the same number."""
    times = 1_700_000_000 + np.arange(4)
    write(tmp_path / "mine.parquet", {"time": times, "same": [3] * 4, "y": [True, False] * 2})
    data = load(tmp_path, target="y", test_share=0.0)
    assert data.train.x[:, 0] == pytest.approx((times - times.mean()) / times.std())
    assert (data.train.x[:, 1] == 0).all()
    assert data.classes == ("false", "true")


def test_a_constant_that_binary_cannot_hold_stays_small(tmp_path: Path) -> None:
    """The deviation of 1,000 times 0.1 is 1.4e-17, and no divisor."""
    write(tmp_path / "mine.parquet", {"a": [0.1] * 1000, "y": [0, 1] * 500})
    write(tmp_path / "test.parquet", {"a": [0.2, 0.2], "y": [0, 1]})
    data = load(tmp_path, target="y", test="test.parquet")
    assert data.test.x == pytest.approx(0.1)
    assert TargetScale.measure(np.full(1000, 0.1, np.float32)).std == (1.0,)


def test_targets_that_float32_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    times = 1.7e9 + 10 * np.random.default_rng(0).normal(size=500)
    write(tmp_path / "mine.parquet", {"a": times, "y": times})
    np.savez(tmp_path / "mine.npz", x=times, y=times)
    for name, given in (("table", {"path": "mine.parquet", "target": "y"}), ("npz", {"path": "mine.npz"})):
        with pytest.raises(DataError, match=r"y.*: float32 rounds values such as 17.*subtract a constant"):
            load_dataset(name, roots=[tmp_path], task="regression", **given)
    write(tmp_path / "mine.parquet", {"a": times, "y": times - 1.7e9})
    assert load(tmp_path, target="y").targets.std[0] == pytest.approx(10, rel=0.1)


def test_a_test_target_with_fractions_is_no_class(tmp_path: Path) -> None:
    write(tmp_path / "mine.parquet", {"a": TEN, "y": [n % 3 for n in TEN]})
    write(tmp_path / "test.parquet", {"a": [1.0, 2.0], "y": [0.5, 1.5]})
    with pytest.raises(DataError, match=r"'y' holds numbers with a fraction, but whole .*task: regression"):
        load(tmp_path, target="y", test="test.parquet")
    assert load(tmp_path, target="y", test="test.parquet", task="regression").test.y.tolist() == [0.5, 1.5]
    write(tmp_path / "test.parquet", {"a": [1.0, 2.0], "y": [0.0, 2.0]})
    assert load(tmp_path, target="y", test="test.parquet").test.y.tolist() == [0, 2]


def test_an_index_that_pandas_wrote_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(",a,y\n0,1,x\n1,2,z\n")
    assert [column.name for column in load(tmp_path, "mine.csv", "y").columns] == ["a"]
    write(
        tmp_path / "mine.parquet",
        {"a": [1, 2], "y": [0, 1], "__index_level_0__": [5, 6], "Unnamed: 0": [7, 8]},
    )
    assert [column.name for column in load(tmp_path, target="y").columns] == ["a"]


HOLES: dict[str, Any] = {
    "a": [1.0, 2.0, None, float("nan")],
    "b": ["x", None, "x", "y"],
    "y": [0, 1, 1, 0],
}


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet"])
def test_missing_values_are_refused_dropped_or_filled(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, HOLES)
    with pytest.raises(DataError, match=r"column 'a' has no value in 2 of 4 rows, and 1 more") as caught:
        load(tmp_path, name, "y")
    assert "missing: drop leaves 3 rows out" in caught.value.hint
    assert "missing: mean" in caught.value.hint
    given: dict[str, Any] = {"target": "y", "test_share": 0.0, "normalise": "none"}
    assert load(tmp_path, name, missing="drop", **given).train.x.tolist() == [[1, 1]]
    filled = load(tmp_path, name, missing="mean", **given)
    assert filled.train.x.tolist() == [[1, 1, 0], [2, 0, 0], [1.5, 1, 0], [1.5, 0, 1]]
    assert load(tmp_path, name, "y", features=["b"], missing="drop").num_classes == 2


def test_a_missing_target_or_client_is_never_filled(tmp_path: Path) -> None:
    write(tmp_path / "mine.parquet", {"a": [1, 2, 3], "who": ["p", None, "q"], "y": [0, 1, None]})
    for given in ({"client": "who"}, {}):
        with pytest.raises(DataError, match=r"has no value in 1 of 3 rows") as caught:
            load(tmp_path, target="y", missing="mean", features=["a"], **given)
        assert "mean" not in caught.value.hint
    assert load(tmp_path, target="y", client="who", missing="drop", test_share=0.0).train.x.shape == (1, 1)


TEN = list(range(10))
MANY = list(range(MOST_CLASSES + 1))


@pytest.mark.parametrize(
    ("prices", "given"), [([n / 2 for n in TEN], {}), (TEN, {"task": "regression"})], ids=["auto", "named"]
)
@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet"])
def test_a_target_of_numbers_is_a_regression(
    tmp_path: Path, name: str, prices: list[float], given: dict[str, Any]
) -> None:
    write(tmp_path / name, {"a": TEN, "price": prices})
    data = load(tmp_path, name, "price", **given)
    train, test = cut_test_positions(10, 0.2)
    wanted = np.array(prices, np.float32)
    assert (data.task, data.num_classes, data.classes) == ("regression", 1, ("price",))
    np.testing.assert_array_equal(data.train.y, wanted[train])
    np.testing.assert_array_equal(data.test.y, wanted[test])
    assert data.targets.mean[0] == pytest.approx(wanted[train].mean())
    assert data.targets.std[0] == pytest.approx(wanted[train].std())


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet"])
def test_classes_and_clients_of_whole_numbers_that_pandas_wrote_as_fractions(
    tmp_path: Path, name: str
) -> None:
    """One missing value makes 0 and 1 of pandas 0.0 and 1.0."""
    y, who = [0.0, 1.0, None, 1.0, 2.0], [7.0, 7.0, 7.0, 8.0, float("nan")]
    write(tmp_path / name, {"a": [1, 2, 3, 4, 5], "y": y, "who": who})
    given: dict[str, Any] = {"target": "y", "missing": "drop", "test_share": 0.0, "features": ["a"]}
    data = load(tmp_path, name, task="classes", client="who", **given)
    assert (data.task, data.classes, data.train.y.tolist()) == ("classes", ("0", "1"), [0, 1, 1])
    assert data.train.group_names == ("7", "8")
    with pytest.raises(DataError, match=r"column 'y' has no value in 1 of 5 rows"):
        load(tmp_path, name, task="classes", **{**given, "missing": "refuse"})
    assert load(tmp_path, name, **given).task == "regression"


def test_classes_with_a_fraction_get_a_way_out(tmp_path: Path) -> None:
    write(tmp_path / "mine.parquet", {"a": TEN, "y": [float(n) for n in TEN]})
    write(tmp_path / "test.parquet", {"a": TEN, "y": [n / 2 for n in TEN]})
    with pytest.raises(SpecError, match=r"task: does not suit .* of test\.parquet.*save the classes"):
        load(tmp_path, target="y", task="classes", test="test.parquet")


def test_a_csv_in_another_encoding_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes("city,y\nKöln,1\nBonn,0\n".encode("latin-1"))
    with pytest.raises(SpecError, match=r"mine\.csv holds text that is not UTF-8.*save the file as UTF-8"):
        load(tmp_path, "mine.csv", "y")
    write(tmp_path / "mine.parquet", {"a": [b"\xff", b"b"], "y": [0, 1]})
    with pytest.raises(SpecError, match=r"features: .* holds binary"):
        load(tmp_path, target="y")


@pytest.mark.parametrize(
    ("columns", "given", "words"),
    [
        ({"a": TEN, "y": TEN}, {"target": "z"}, r"target: mine\.parquet has no such column.*one of: a, y"),
        ({"a": TEN, "label": TEN}, {"target": "labels"}, r"did you mean 'label'"),
        ({"a": TEN, "y": TEN}, {"client": "who"}, r"client: mine\.parquet has no such column"),
        ({"a": TEN, "y": TEN}, {"features": ["a", "b"]}, r"features: mine\.parquet has no such column"),
        ({"a": TEN, "y": TEN}, {"features": ["y"]}, r"features: is the target already"),
        ({"y": TEN}, {}, r"features: mine\.parquet has no column left"),
        ({"a": TEN, "y": [n / 2 for n in TEN]}, {"task": "classes"}, r"task: does not suit .* a fraction"),
        ({"a": TEN, "y": list("abcdefghij")}, {"task": "regression"}, r"task: does not suit .* holds texts"),
        ({"a": MANY, "y": MANY}, {}, r"target: has 1,001 different values.*task: regression"),
        ({"a": TEN, "y": TEN}, {"test_share": 1.0}, r"test_share: leaves none of 10 examples"),
        ({"a": TEN, "y": TEN, "who": [n / 2 for n in TEN]}, {"client": "who"}, r"client: .* a fraction"),
        ({"a": [[n] for n in TEN], "y": TEN}, {}, r"features: this column .* holds list.*got 'a'"),
        ({"a": pa.nulls(10), "y": TEN}, {}, r"features: this column .* holds no values"),
        ({"a": list(map(str, MANY)), "y": [0, *MANY[:-1]]}, {}, r"features: .* different texts"),
    ],
)
def test_columns_that_cannot_be_used_are_refused(
    tmp_path: Path, columns: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    write(tmp_path / "mine.parquet", columns)
    with pytest.raises(SpecError, match=words):
        load(tmp_path, **{"target": "y", **given})
    assert len(MANY) > MOST_CATEGORIES


def test_values_and_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.parquet", {"a": [1.0, float("inf")], "y": [0, 1]})
    with pytest.raises(DataError, match=r"column 'a' holds inf at position \(1,\)"):
        load(tmp_path, target="y")
    write(file, {"a": pa.array([0, 2**64 - 1], pa.uint64()), "y": [0, 1]})
    with pytest.raises(DataError, match=r"column 'a' cannot be read"):
        load(tmp_path, target="y")
    for damaged in broken(file.read_bytes())[:5]:  # a Parquet file has no checksum of its values
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"mine\.parquet: is not a complete table"):
            load(tmp_path, target="y")
    (tmp_path / "mine.csv").write_text("a,a\n1,2\n")
    with pytest.raises(DataError, match=r"several columns named 'a'"):
        load(tmp_path, "mine.csv", "y")
    (tmp_path / "mine.csv").write_text("a,y\n")
    with pytest.raises(DataError, match=r"has no rows"):
        load(tmp_path, "mine.csv", "y")
    (tmp_path / "mine.csv").write_text("a,y\n1,2\n3\n")
    with pytest.raises(DataError, match=r"mine\.csv: is not a complete table"):
        load(tmp_path, "mine.csv", "y")
    (tmp_path / "mine.csv").write_text("a,y\n1,yes\n2,no\n3,yes \n")
    with pytest.raises(
        SpecError, match=r"the classes 'yes' and 'yes ', which differ by spaces or case alone"
    ):
        load(tmp_path, "mine.csv", "y")
    (tmp_path / "mine.csv").write_text("a,y,who\n1,yes,ann\n2,no,ann \n")
    with pytest.raises(DataError, match=r"the clients 'ann' and 'ann ' differ by spaces alone"):
        load(tmp_path, "mine.csv", "y", client="who")
    (tmp_path / "mine.csv").write_text("a;y\n1,5;2\n")
    with pytest.raises(DataError, match=r"mine\.csv: its columns are separated by semicolons"):
        load(tmp_path, "mine.csv", "y")
    with pytest.raises(DataNotFound, match=r"found none of other\.csv"):
        load(tmp_path, "other.csv", "y")
    (tmp_path / "mine.txt").write_text("a,y\n1,2\n")
    with pytest.raises(SpecError, match=r"path: is not a table.*\.parquet"):
        load(tmp_path, "mine.txt", "y")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mine.csv", WHOLE)
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(DataNotFound, match=r"\[table\]"):
        load(tmp_path, "mine.csv")
