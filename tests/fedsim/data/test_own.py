"""The user's own data: `.npz` files."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedsim.data import load_dataset, make_federation
from fedsim.errors import DataError, DataNotFound, SpecError
from tests.fedsim.data.samples import broken


def save(root: Path, **arrays: np.ndarray) -> None:
    np.savez(root / "mine.npz", **arrays)


def npz(root: Path, **given):
    return load_dataset("npz", roots=[root], path="mine.npz", **given)


@pytest.mark.parametrize("shape", [(6, 5, 5, 3), (6, 3, 5, 5), (6, 5, 5)])
def test_images_come_as_channels_first(tmp_path: Path, shape: tuple[int, ...]):
    x = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    save(tmp_path, x_train=x, y_train=np.arange(6) % 3, x_test=x[:2], y_test=np.array([[0], [2]]))
    data = npz(tmp_path)
    assert data.input_shape == ((1, 5, 5) if len(shape) == 3 else (3, 5, 5))
    assert data.num_classes == 3
    assert data.test.y.tolist() == [0, 2]
    assert data.train.x.dtype == np.uint8
    assert len(data.normalise.mean) == data.input_shape[0]
    if shape == (6, 5, 5, 3):
        assert np.array_equal(data.train.x[1, 2], x[1, :, :, 2])


def test_images_with_four_channels_are_refused(tmp_path: Path):
    """RGBA would be 32 channels of 32x4."""
    save(tmp_path, x=np.zeros((6, 32, 32, 4), np.uint8), y=np.arange(6) % 2)
    with pytest.raises(
        DataError, match=r"x has the shape \(6, 32, 32, 4\), .* 1 or 3 channels .*x\[\.\.\., :3\]"
    ):
        npz(tmp_path)


def test_masks_stay_under_their_images(tmp_path: Path):
    x, y = np.zeros((8, 3, 6, 6), np.uint8), np.zeros((8, 6, 6), np.int64)
    save(tmp_path, x=x, y=y)
    with pytest.raises(SpecError, match="not those of its mask"):
        npz(tmp_path, task="segmentation", augment=["color", "flip"])
    assert npz(tmp_path, task="segmentation", augment=["color"]).augment is not None


def test_inputs_of_next_tokens_are_tokens_and_one_number_is_one_feature(tmp_path: Path):
    tokens = np.arange(40).reshape(10, 4) % 7
    save(tmp_path, x=tokens, y=tokens)
    assert (data := npz(tmp_path, task="next_token")).vocabulary == 7
    assert data.train.x.dtype == np.int32
    save(tmp_path, x=np.arange(10.0), y=np.arange(10) % 2)
    assert npz(tmp_path).input_shape == (1,)


def test_one_set_is_cut_and_groups_and_names_are_kept(tmp_path: Path):
    groups = np.array(["b", "a", "b", "c", "a"] * 4)
    save(
        tmp_path,
        x=np.arange(20.0)[:, None],
        y=np.arange(20) % 2,
        groups=groups,
        classes=np.array(["no", "yes"]),
    )
    data = npz(tmp_path, test_share=0.25)
    assert (len(data.train), len(data.test)) == (15, 5)
    assert data.classes == ("no", "yes")
    assert data.train.groups is not None
    assert data.train.x.dtype == np.float32
    names = np.array(["a", "b", "c"])
    assert (names[data.train.groups] == groups[data.train.x[:, 0].astype(int)]).all()


def test_natural_clients_of_both_parts_merged_are_one_person_each(tmp_path: Path):
    """Users 5, 7 and 9 in train, 7 and 9 in test; an example's value is its user."""
    train, test = np.array([5, 7, 9] * 4), np.array([7, 9] * 4)
    save(
        tmp_path,
        x_train=train[:, None],
        y_train=train % 2,
        groups_train=train,
        x_test=test[:, None],
        y_test=test % 2,
        groups_test=test,
    )
    shared = make_federation(npz(tmp_path), "natural", num_clients=3, seed=0, tests="merged")
    assert shared.tests is not None
    for client, user in enumerate((5, 7, 9)):
        held = shared.dataset.train.x[shared.train.client_positions(client)]
        tested = shared.dataset.test.x[shared.tests.client_positions(client)]
        assert np.unique(np.concatenate([held, tested])).tolist() == [user]


def test_an_owner_of_test_rows_alone_is_a_client_only_with_merged_tests(tmp_path: Path):
    train, test = np.array([5, 5, 7, 7]), np.array([7, 9])
    parts = {"train": train, "test": test}
    save(tmp_path, **{f"{name}_{part}": who % 2 for part, who in parts.items() for name in ("x", "y")})
    arrays = dict(np.load(tmp_path / "mine.npz"))
    save(tmp_path, **arrays, groups_train=train, groups_test=test)
    data = npz(tmp_path)
    assert make_federation(data, "natural", num_clients=2, seed=0).train.names == ("5", "7")
    merged = make_federation(data, "natural", num_clients=3, seed=0, tests="merged", test_share=0.5)
    assert merged.train.names == ("5", "7", "9")
    with pytest.raises(SpecError, match="the examples to divide have 2") as caught:
        make_federation(data, "natural", num_clients=3, seed=0)
    assert "count only with data.tests: merged" in caught.value.errors[0].hint


def test_several_labels_and_tokens(tmp_path: Path):
    x, y = np.array([[5, 0], [9, 2]] * 5), np.array([[0, 1, 1], [1, 0, 0]] * 5)
    save(tmp_path, x=x, y=y)
    data = npz(tmp_path, tokens=True)
    assert data.task == "labels"
    assert data.num_classes == 3
    assert data.train.y.dtype == np.float32
    assert data.train.x.dtype == np.int32
    assert data.vocabulary == 10


@pytest.mark.parametrize("parts", [("",), ("_train", "_test")])
def test_one_hot_classes_are_no_labels(tmp_path: Path, parts: tuple[str, ...]):
    """They would train as independent labels, of which a model that always says no has most right."""
    one_hot = {name + part: np.eye(4)[[0, 1, 2, 3, 2]] for part in parts for name in ("x", "y")}
    save(tmp_path, **one_hot)
    with pytest.raises(DataError, match=rf"y{parts[0]} has exactly one 1 in every row") as caught:
        npz(tmp_path)
    assert caught.value.hint == f"save class numbers: y{parts[0]}.argmax(1)"
    assert npz(tmp_path, task="regression").task == "regression"
    several = {name: values.copy() for name, values in one_hot.items()}
    several[f"y{parts[0]}"][1] = 1
    save(tmp_path, **several)
    assert npz(tmp_path).task == "labels"


@pytest.mark.parametrize(
    ("y", "hint"),
    [
        (np.array(["cat", "dog", "cat"]), "number them: names, y = np.unique(y, return_inverse=True)"),
        (np.array([0.0, 1.0, 1.0]), "save class numbers as whole numbers: y = y.astype(int)"),
        (np.array([0.5, 1.0, 2.0]), "set task: regression"),
        (np.array([0.0, np.nan, 2.0]), "leave out the examples with missing or infinite labels"),
    ],
)
def test_labels_that_are_no_class_numbers_get_a_way_out(tmp_path: Path, y: np.ndarray, hint: str):
    save(tmp_path, x=np.zeros((3, 1)), y=y)
    with pytest.raises(DataError, match="neither class numbers") as caught:
        npz(tmp_path)
    assert hint in caught.value.hint


def test_labels_of_the_test_part_are_numbered_as_those_of_the_training_part(tmp_path: Path):
    y = np.array(["b", "c"])
    save(tmp_path, x_train=np.zeros((3, 1)), y_train=np.array([0, 1, 2]), x_test=np.zeros((2, 1)), y_test=y)
    with pytest.raises(DataError, match="neither class numbers") as caught:
        npz(tmp_path)
    assert "y_test = np.searchsorted(names, y_test)" in caught.value.hint


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((0, 1)), "y": np.zeros(0, int)}, "has no examples"),
        ({"x": np.float64(3), "y": np.zeros(1, int)}, "has no examples"),
        (
            {"x": np.zeros((3, 1)), "y": np.zeros(3, int), "groups": np.array([1, np.nan, 2])},
            "example 1 names no client: nan",
        ),
        (
            {"x_train": np.zeros((3, 1)), "y_train": np.zeros(3, int), "groups": np.zeros(3)},
            "groups does not belong to x_train .*groups_train",
        ),
        ({"x": np.zeros((3, 1))}, "has no array 'y' among x"),
        ({"x": np.zeros((3, 1)), "y": np.zeros(2, int)}, "differ in length"),
        ({"x": np.zeros((3, 1)), "y": np.array([0, -1, 1])}, "neither class numbers"),
        ({"x": np.zeros((3, 1)), "y": np.array([0.5, 1, 1])}, "neither class numbers"),
        ({"x": np.array(["a", "b"]), "y": np.zeros(2, int)}, "expected numbers"),
        ({"x": np.zeros(2, complex), "y": np.zeros(2, int)}, "x is of complex128, expected numbers"),
        ({"x": np.array([{}, {}], object), "y": np.zeros(2, int)}, "plain arrays"),
        ({"x_train": np.zeros((3, 1)), "y_train": np.zeros(3, int)}, "has no array 'x_test'"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(tmp_path: Path, arrays: dict, words: str):
    save(tmp_path, **arrays)
    with pytest.raises(DataError, match=rf"mine\.npz: .*{words}"):
        npz(tmp_path)


@pytest.mark.parametrize(
    ("value", "tokens", "words"),
    [
        (-1.0, True, "a token is a whole number"),
        (1.5, True, "a token is a whole number"),
        (2.0**31, True, "a token is a whole number"),
        (np.nan, True, "a token is a whole number"),
        (np.nan, False, "expected finite numbers"),
        (-np.inf, False, "expected finite numbers"),
        (1e39, False, "within float32"),
    ],
)
def test_inputs_that_nothing_can_be_trained_on_are_refused(
    tmp_path: Path, value: float, tokens: bool, words: str
):
    x = np.arange(12.0).reshape(4, 3)
    arrays = {"y_train": np.zeros(4, int), "y_test": np.zeros(4, int)}
    save(tmp_path, x_train=x, x_test=x, **arrays)
    assert npz(tmp_path, tokens=tokens).train.x.tolist() == x.tolist()
    wrong = x.copy()
    wrong[2, 1] = wrong[3, 0] = value
    save(tmp_path, x_train=x, x_test=wrong, **arrays)
    found = rf"mine\.npz: x_test holds {re.escape(str(value))} at position \(2, 1\)"
    with pytest.raises(DataError, match=rf"{found}.*{words}"):
        npz(tmp_path, tokens=tokens)


def test_tokens_below_zero_are_refused(tmp_path: Path):
    save(tmp_path, x=np.array([[3, 1], [4, -1]]), y=np.zeros(2, int))
    with pytest.raises(DataError, match=r"x holds -1 at position \(1, 1\)"):
        npz(tmp_path, tokens=True)


WHOLE = np.zeros((3, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("x", WHOLE, WHOLE / 255),
        ("x", WHOLE.reshape(3, 64), WHOLE.reshape(3, 64) / 255),
        ("x", WHOLE, np.zeros((3, 10, 10), np.uint8)),
        ("y", np.arange(3), np.eye(3, dtype=int)),
    ],
)
def test_parts_that_are_not_alike_are_refused(tmp_path: Path, name: str, train: np.ndarray, test: np.ndarray):
    arrays = {"x_train": WHOLE, "x_test": WHOLE, "y_train": np.arange(3), "y_test": np.arange(3, dtype="i4")}
    save(tmp_path, **arrays)
    assert npz(tmp_path).num_classes == 3
    save(tmp_path, **{**arrays, f"{name}_train": train, f"{name}_test": test})
    with pytest.raises(
        DataError, match=rf"mine\.npz: {name}_train is .* but {name}_test .*save both in the same way"
    ):
        npz(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("normalise", "half"), ("normalise", "none"), ("augment", ["flip"])]
)
def test_what_is_for_images_is_refused_of_anything_else(tmp_path: Path, name: str, value):
    whole = np.arange(6 * 3 * 8 * 8).reshape(6, 3, 8, 8) % 256
    rows = whole.reshape(6, -1)
    for x, tokens in ((whole / 255, False), (rows.astype(np.uint8), False), (rows, True)):
        save(tmp_path, x=x, y=np.arange(6) % 2)
        with pytest.raises(SpecError, match=rf"{name}.*is for images of uint8.*remove it"):
            npz(tmp_path, tokens=tokens, **{name: value})
        assert npz(tmp_path, tokens=tokens, normalise="channel", augment=[]).augment is None
    save(tmp_path, x=whole.astype(np.uint8), y=np.arange(6) % 2)
    npz(tmp_path, **{name: value})


def test_damaged_and_missing_files_are_named(tmp_path: Path):
    with pytest.raises(DataNotFound, match=r"found none of mine\.npz"):
        npz(tmp_path)
    file = tmp_path / "mine.npz"
    for kept in (np.savez, np.savez_compressed):
        kept(file, x=np.random.default_rng(0).integers(9, size=(50, 9)), y=np.zeros(50, int))
        for damaged in broken(file.read_bytes()):
            file.write_bytes(damaged)
            with pytest.raises(DataError, match=r"mine\.npz: is not a complete"):
                npz(tmp_path)
    with file.open("wb") as single:
        np.save(single, np.zeros(3))
    with pytest.raises(DataError, match=r"mine\.npz: is not a complete"):
        npz(tmp_path)
