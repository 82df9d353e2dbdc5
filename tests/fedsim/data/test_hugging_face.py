"""Data sets in the Hugging Face format, as `save_to_disk` writes them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from fedsim.data import load_dataset
from fedsim.data.sources.folders import cut_test_positions
from fedsim.errors import DataError, SpecError


def hub(root: Path, **given):
    return load_dataset("hugging_face", roots=[root], path="mine", **given)


def test_hugging_face_images_with_named_classes(tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    images = [np.full((8, 8, 3), i, np.uint8) for i in range(6)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    table = {"image": images, "label": [0, 1] * 3}
    part = datasets.Dataset.from_dict(table, features=features)
    datasets.DatasetDict({"train": part, "test": part.select(range(2))}).save_to_disk(str(tmp_path / "mine"))
    data = hub(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.train.x[:, 0, 0, 0].tolist() == list(range(6))
    assert len(data.test) == 2
    assert hub(tmp_path, size=16, channels=1).input_shape == (1, 16, 16)
    with pytest.raises(SpecError, match="train"):
        hub(tmp_path, test="trainn")
    with pytest.raises(SpecError, match="did you mean 'label'"):
        hub(tmp_path, labels="labels")


@pytest.mark.parametrize("place", ["secret.png", "root/../secret.png", "http://127.0.0.1:9/secret.png"])
def test_a_set_names_no_images_outside_the_data_roots(tmp_path: Path, place: str):
    """A data set of the hub may have a path or an address in the place of an image."""
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    root = tmp_path / "root"
    root.mkdir()
    for file in (tmp_path / "secret.png", root / "own.png"):
        PIL.Image.new("L", (8, 8)).save(file)
    given = place if ":" in place else str(tmp_path / place)
    stored = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    features = datasets.Features({"image": stored, "label": datasets.Value("int64")})
    for name, file in (("bad", given), ("good", str(root / "own.png"))):
        table = {"image": [{"bytes": None, "path": file}] * 4, "label": [0, 1] * 2}
        datasets.Dataset.from_dict(table, features=features).save_to_disk(str(root / name))
        # As plain columns, because the library would put the files into a column of images.
        info = root / name / "dataset_info.json"
        described = json.loads(info.read_text())
        described["features"]["image"] = {"_type": "Image"}
        info.write_text(json.dumps(described))
    assert load_dataset("hugging_face", roots=[root], path="good").input_shape == (1, 8, 8)
    with pytest.raises(DataError, match=r"image 0 is .*secret\.png', a place outside the data roots"):
        load_dataset("hugging_face", roots=[root], path="bad")


@pytest.mark.parametrize("argument", ["inputs", "labels", "groups"])
def test_a_set_names_no_files_in_other_columns(tmp_path: Path, argument: str):
    """The library decodes images also in lists, and opens any path in them."""
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    root = tmp_path / "root"
    PIL.Image.new("L", (8, 8)).save(tmp_path / "secret.png")
    stored = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    row = {"bytes": None, "path": str(tmp_path / "secret.png")}
    features = {"row": datasets.List(datasets.Value("float32")), "label": datasets.Value("int64")}
    table = {"row": [[1.0, 2.0]] * 4, "label": [0, 1] * 2, "bad": [[row]] * 4}
    features = datasets.Features(features | {"bad": datasets.List(stored)})
    datasets.Dataset.from_dict(table, features=features).save_to_disk(str(root / "mine"))
    info = root / "mine" / "dataset_info.json"
    described = json.loads(info.read_text())
    described["features"]["bad"] = {"_type": "List", "feature": {"_type": "Image"}}
    info.write_text(json.dumps(described))
    chosen = {"inputs": "row", "labels": "label", argument: "bad"}
    with pytest.raises(SpecError, match=rf"{argument}.*which fedsim does not read"):
        hub(root, **chosen)


@pytest.mark.parametrize(
    "place", ["secret.csv", "http://127.0.0.1:9/secret.csv", "hf://datasets/owner/2@main/a"]
)
def test_a_set_of_the_hub_reads_its_own_files_only(tmp_path: Path, place: str):
    """The card of a data set may name any file of this machine, and any address: the library refuses them."""
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    (tmp_path / "secret.csv").write_text("row,label\n1,secret\n")
    file = place if ":" in place else str(tmp_path / place)
    builder = importlib.import_module("datasets.packaged_modules.csv.csv").Csv
    files = datasets.data_files.DataFilesDict(train=datasets.data_files.DataFilesList([file], [("", "")]))
    with pytest.raises(ValueError, match="Data files don't belong to owner/set"):
        builder(cache_dir=str(tmp_path), repo_id="owner/set", hash="0", data_files=files)


def test_hugging_face_numbers_and_groups_in_a_single_part(tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    table = {"row": [[1.0, 2.0]] * 8, "label": [0, 2] * 4, "who": ["b", "a"] * 4}
    datasets.Dataset.from_dict(table).save_to_disk(str(tmp_path / "mine"))
    with pytest.raises(SpecError, match=r"augment.*is for images of uint8"):
        hub(tmp_path, inputs="row", augment=["flip"])
    data = hub(tmp_path, inputs="row", groups="who", test_share=0.25)
    assert data.num_classes == 3
    assert (len(data.train), len(data.test)) == (6, 2)
    assert data.train.groups is not None
    assert np.array_equal(data.train.groups, (data.train.y == 0).astype(int))


def test_hugging_face_groups_are_numbered_alike_in_both_parts(tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    table = {"row": [[1.0], [2.0], [3.0]], "label": [0, 1, 0], "who": ["a", "b", "c"]}
    part = datasets.Dataset.from_dict(table)
    both = {"train": part, "test": part.select([1, 2])}
    datasets.DatasetDict(both).save_to_disk(str(tmp_path / "mine"))
    data = hub(tmp_path, inputs="row", groups="who")
    assert data.train.groups is not None
    assert data.test.groups is not None
    assert (data.train.groups.tolist(), data.test.groups.tolist()) == ([0, 1, 2], [1, 2])


def test_hugging_face_texts(tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    table = {"text": ["the cat sat", "the dog ran"] * 10, "label": [0, 1] * 10}
    datasets.Dataset.from_dict(table).save_to_disk(str(tmp_path / "mine"))
    data = hub(tmp_path, inputs="text", length=8, vocabulary=100)
    assert data.input_shape == (8,)
    assert data.train.x.dtype == np.int32
    assert 0 < data.vocabulary <= 100


def test_a_tokenizer_is_not_trained_on_the_texts_that_are_cut_off(tmp_path: Path):
    """[PAD], [UNK] and [CLS] are 0, 1 and 2; the test texts have a word that no training text has."""
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    tested = cut_test_positions(20, 0.25)[1]
    table = {"text": ["the zzz" if row in tested else "the cat" for row in range(20)], "label": [0, 1] * 10}
    datasets.Dataset.from_dict(table).save_to_disk(str(tmp_path / "mine"))
    given = {"inputs": "text", "length": 8, "vocabulary": 100}
    data = hub(tmp_path, test_share=0.25, **given)
    assert (data.train.x != 1).all()
    assert (np.bincount(data.test.x.ravel())[1], len(data.test)) == (3 * 5, 5)
    assert len({tuple(row) for row in data.train.x.tolist()}) == 1
    # Another share leaves other texts to train on, so the cache has nothing for it.
    assert (hub(tmp_path, test_share=0.0, **given).train.x != 1).all()


def test_a_folder_that_save_to_disk_did_not_write_is_named(tmp_path: Path):
    pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="mine: was not written by save_to_disk"):
        hub(tmp_path)


def test_texts_that_are_missing_are_counted(tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    table = {"text": ["a b", None, "c"], "kind": [0, 1, 0]}
    datasets.Dataset.from_dict(table).save_to_disk(str(tmp_path / "mine"))
    with pytest.raises(DataError, match="no text in 1 examples, the first is number 1"):
        hub(tmp_path, inputs="text", labels="kind")


@pytest.mark.parametrize("labels", [[0.2, 1.7], [[0, 1], [1, 0]], [[0], [0, 1]]])
def test_hugging_face_labels_that_are_no_class_numbers_are_refused(tmp_path: Path, labels: list):
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    datasets.Dataset.from_dict({"row": [[1.0]] * 2, "kind": labels}).save_to_disk(str(tmp_path / "mine"))
    with pytest.raises(DataError, match=r"mine: column 'kind' .*class_encode_column\('kind'\)"):
        hub(tmp_path, inputs="row", labels="kind")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [[1.0, 2.0], [3.0, float("nan")]],
            r"example 1 of column 'row' holds nan at position \(1,\) \(expected finite",
        ),
        ([1.0, float("inf")], r"example 1 of column 'row' holds inf at position \(0,\)"),
        ([[1e300, 1.0], [1.0, 1.0]], r"example 0 of column 'row' holds 1e\+300 at position \(0,\)"),
        ([[1, None], [1, 2]], "example 0 of column 'row' holds nan"),
        ([["a"], ["b"]], "example 0 of column 'row' does not hold numbers"),
        ([{"a": 1}, {"a": 2}], "example 0 of column 'row' does not hold numbers"),
        ([[[1.0], [1.0, 2.0]]] * 2, "example 0 of column 'row' does not hold numbers"),
    ],
)
def test_hugging_face_inputs_that_are_no_numbers_are_refused(tmp_path: Path, rows: list, words: str):
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
    datasets.Dataset.from_dict({"row": rows, "label": [0, 1]}).save_to_disk(str(tmp_path / "mine"))
    for _ in range(2):  # nor are they kept
        with pytest.raises(DataError, match=f"mine: {words}"):
            hub(tmp_path, inputs="row")


def test_hugging_face_parts_that_are_not_alike_are_refused(tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")

    def part(rows: list, names: tuple[str, ...] = ("cat", "dog")):
        label = datasets.Dataset.from_dict({"row": rows, "label": [0, 1]})
        return label.cast_column("label", datasets.ClassLabel(names=list(names)))

    for train, test, words in (
        (part([[1.0, 2.0]] * 2), part([[1.0]] * 2), "shape"),
        (part([[1]] * 2), part([[0.5]] * 2), "holds 'numbers'"),
        (part([[1.0]] * 2), part([[1.0]] * 2, ("dog", "cat")), "classes of column 'label'"),
    ):
        folder = tmp_path / words[:5]
        datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(folder / "mine"))
        with pytest.raises(
            DataError, match=rf"mine: .*{words}.* in the training part, but .* in the test part"
        ):
            hub(folder, inputs="row")
