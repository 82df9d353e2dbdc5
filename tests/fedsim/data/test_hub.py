"""Data sets of the Hugging Face hub: from a cache without network, or downloaded into one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.data import list_locations, load_dataset
from fedsim.data.sources.hugging_face import hub
from fedsim.errors import DataError, DataNotFound, SpecError
from tests.fedsim.data.hub_caches import NAME, HubBuilder, images, write_images

datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's own cache, which is empty; whoever asks the hub fails."""
    cache = tmp_path / "own"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: pytest.fail("asks the hub"))
    return cache


def load(root: Path, path: str = NAME, **given: Any):
    return load_dataset("hugging_face", roots=[root / "root"], path=path, **given)


@pytest.mark.parametrize("cache", ["root/huggingface", "own"])
def test_a_set_of_the_hub_is_found_by_its_name_without_network(tmp_path: Path, cache: str) -> None:
    """Its column of images is called `img`, and is the only one."""
    folder = write_images(tmp_path / cache)
    assert folder.parts[-4:-2] == ("uoft-cs___cifar10", "plain_text")
    data = load(tmp_path)
    assert data.train.x[:, 0, 0, 0].tolist() == list(range(6))
    assert (data.classes, data.input_shape, len(data.test)) == (("cat", "dog"), (3, 8, 8), 2)
    assert data.source == str(folder)
    os.remove(folder / "cifar10-train.arrow")
    with pytest.raises(DataError, match=r"is damaged .*remove it"):
        load(tmp_path)


def test_changes_in_every_cache_are_noticed(tmp_path: Path, own_cache: Path) -> None:
    root, folder = tmp_path / "root", "uoft-cs___cifar10"
    found = list_locations("hugging_face", (root,), {"path": NAME})
    assert set(found) == {root / NAME, root / "huggingface" / folder, own_cache / folder}


def test_a_folder_in_a_data_root_comes_first(tmp_path: Path) -> None:
    write_images(tmp_path / "root" / "huggingface")
    saved = datasets.Dataset.from_dict({"row": [[1.0], [2.0]], "label": [0, 1]})
    saved.save_to_disk(str(tmp_path / "root" / NAME))
    assert load(tmp_path, inputs="row").input_shape == (1,)


def test_one_of_several_configurations_has_to_be_named(tmp_path: Path) -> None:
    for config in ("small", "large"):
        write_images(tmp_path / "own", config=config)
    assert len(load(tmp_path, config="small").train) == 6
    with pytest.raises(SpecError, match=r"config: .* several configurations of uoft-cs.*large, small"):
        load(tmp_path)
    with pytest.raises(SpecError, match=r"config: .* no such configuration .*did you mean 'small'"):
        load(tmp_path, config="smal")


def test_without_a_cache_the_error_says_how_to_get_the_set(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"no uoft-cs/cifar10 in the caches .*data\.download=true"):
        load(tmp_path)
    for path in ("cifar10", "a/b/c", "hf://datasets/a", "*/*"):
        with pytest.raises(DataNotFound, match=r"found none of"):
            load(tmp_path, path, download=True)
    assert not any(map(hub.is_hub_name, ["../cifar10", "a/..", "/a", "a/b*", "a/b/", "~/a"]))


def test_a_download_fills_the_cache_of_the_first_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "load_dataset_builder", HubBuilder)
    assert len(load(tmp_path, download=True).train) == 6
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: pytest.fail("asks the hub"))
    assert len(load(tmp_path).train) == len(load(tmp_path, download=True).train) == 6


def test_a_download_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> None:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub")

    monkeypatch.setattr(datasets, "load_dataset_builder", download)
    with pytest.raises(DataNotFound, match=r"a/b: cannot be downloaded .*doesn't exist.*check its name"):
        load(tmp_path, "a/b", download=True)


def test_a_data_set_of_the_hub_names_no_file_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local folder with the same README stands for the data set: its builder is that of the package."""
    secret = tmp_path / "secret.txt"
    secret.write_text("of this machine")
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "README.md").write_text(
        f"---\nconfigs:\n- config_name: default\n  data_files: {secret}\n---\n"
    )
    build = datasets.load.load_dataset_builder
    monkeypatch.setattr(
        datasets, "load_dataset_builder", lambda *_, cache_dir: build(str(repository), cache_dir=cache_dir)
    )
    with pytest.raises(DataError, match=r"a/b: names the file .*secret.txt, which is not on the hub"):
        load(tmp_path, "a/b", download=True)
    assert not [file for file in (tmp_path / "root").rglob("*") if file.suffix == ".arrow"]
    assert not hub._is_on_hub("hf://datasets/a/b@main/../../secret.txt")


FEATURES: dict[str, Any] = {
    "grey": datasets.Image(),
    "text": datasets.Value("string"),
    "other": datasets.Value("string"),
    "number": datasets.Value("int64"),
    "kind": datasets.ClassLabel(names=["a", "b"]),
    "sort": datasets.ClassLabel(names=["a", "b"]),
}
COLUMNS: dict[str, list] = {
    "grey": images(5, colour=False),
    "text": ["the cat"] * 5,
    "other": ["x", "y", "x", "z", "x"],
    "number": [0, 1, 2, 1, 0],
    "kind": [0, 1, 0, 1, 0],
    "sort": [1, 1, 0, 1, 0],
}


def save(root: Path, *names: str) -> None:
    features = datasets.Features({name: FEATURES[name] for name in names})
    part = datasets.Dataset.from_dict({name: COLUMNS[name] for name in names}, features=features)
    datasets.DatasetDict({"train": part}).save_to_disk(str(root / "root" / "mine"))


@pytest.mark.parametrize(
    ("names", "given", "shape"),
    [
        (["grey", "text", "kind"], {}, (1, 8, 8)),
        (["text", "other", "kind"], {}, (128,)),
        (["other", "number", "kind"], {}, (128,)),
        (["grey", "kind", "sort"], {"labels": "sort"}, (1, 8, 8)),
        (["grey", "kind", "sort"], {"groups": "sort"}, (1, 8, 8)),
    ],
)
def test_columns_are_found_by_name_or_type(
    tmp_path: Path, names: list[str], given: dict[str, str], shape: tuple[int, ...]
) -> None:
    save(tmp_path, *names)
    data = load(tmp_path, "mine", test_share=0.0, vocabulary=100, **given)
    assert data.input_shape == shape
    assert data.train.y.tolist() == COLUMNS[given.get("labels", "kind")]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["grey", "kind", "sort"], r"labels: .*one of: grey, kind, sort"),
        (["grey", "number"], r"labels: .*one of: grey, number"),
        (["number", "kind"], r"inputs: .*one of: number, kind"),
    ],
)
def test_columns_that_the_types_leave_open_have_to_be_named(
    tmp_path: Path, names: list[str], words: str
) -> None:
    save(tmp_path, *names)
    with pytest.raises(SpecError, match=words):
        load(tmp_path, "mine")


def test_texts_are_classes_in_alphabetical_order(tmp_path: Path) -> None:
    save(tmp_path, "grey", "other")
    data = load(tmp_path, "mine", labels="other", test_share=0.0)
    assert data.classes == ("x", "y", "z")
    assert data.train.y.tolist() == [0, 1, 0, 2, 0]
    holes = datasets.Dataset.from_dict({"row": [[1.0]] * 2, "label": ["x", None]})
    holes.save_to_disk(str(tmp_path / "root" / "holes"))
    with pytest.raises(DataError, match=r"column 'label' holds missing labels"):
        load(tmp_path, "holes", inputs="row")


def test_grey_images_stay_grey_unless_one_has_colours(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})

    def write(train: list[np.ndarray], test: list[np.ndarray]) -> None:
        parts = {
            part: datasets.Dataset.from_dict({"image": given, "label": [0] * len(given)}, features=features)
            for part, given in (("train", train), ("test", test))
        }
        datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "root" / "mine"))

    write(images(3, colour=False), images(2, colour=False))
    grey = load(tmp_path, "mine")
    assert grey.input_shape == (1, 8, 8)
    assert grey.train.x[:, 0, 0, 0].tolist() == [0, 1, 2]
    colours = load(tmp_path, "mine", channels=3)
    assert np.array_equal(colours.train.x, np.repeat(grey.train.x, 3, axis=1))
    write(images(3, colour=False), images(2))
    mixed = load(tmp_path, "mine")
    assert np.array_equal(mixed.train.x, colours.train.x)
    assert mixed.test.x.shape == (2, 3, 8, 8)
