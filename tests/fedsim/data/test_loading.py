"""The registry, and the data sets that need no files of the user's."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from fedsim.base.parameters import list_parameters
from fedsim.data import DATASETS, list_locations, load_dataset
from fedsim.data.places import DataRoots
from fedsim.data.sources.idx import read_idx
from fedsim.data.sources.mnist import fashion_mnist
from fedsim.errors import DataError, DataNotFound, SpecError
from tests.fedsim.data.samples import write_idx

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def test_digits():
    digits = load_dataset("digits", roots=[])
    assert (len(digits.train), len(digits.test)) == (1438, 359)
    assert digits.train.x.shape[1:] == digits.input_shape == (1, 8, 8)
    assert digits.train.x.dtype == np.uint8
    # The counts scikit-learn states for the ten digits.
    both = np.concatenate([digits.train.y, digits.test.y])
    assert np.bincount(both).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    again = load_dataset("digits", roots=[])
    assert np.array_equal(again.train.x, digits.train.x)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_whole():
    data = load_dataset("fashion_mnist", roots=[])
    assert data.train.x.shape == (60_000, 1, 28, 28)
    assert data.test.x.shape == (10_000, 1, 28, 28)
    assert np.bincount(data.train.y).tolist() == [6000] * 10
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    scaled = data.train.x / np.float32(255)
    assert float(scaled.mean(dtype=np.float64)) == pytest.approx(data.normalise.mean[0], abs=1e-4)
    assert float(scaled.std(dtype=np.float64)) == pytest.approx(data.normalise.std[0], abs=1e-4)


def write_fashion(root: Path, ending: str = "", labels: int = 10) -> Path:
    folder = root / "FashionMNIST" / "raw"
    for prefix, n in (("train", 20), ("t10k", 10)):
        write_idx(folder / f"{prefix}-images-idx3-ubyte{ending}", np.arange(n * 784).reshape(n, 28, 28) % 251)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{ending}", np.arange(n) % labels)
    return folder


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_fashion_mnist_in_torchvisions_layout(tmp_path: Path, ending: str):
    folder = write_fashion(tmp_path, ending)
    data = load_dataset("fashion_mnist", roots=[tmp_path / "nothing", tmp_path], limit=5)
    assert len(data.train) == 5
    assert data.train.y.tolist() == [0, 1, 2, 3, 4]
    assert data.train.x[1, 0, 0, :3].tolist() == [784 % 251, 785 % 251, 786 % 251]
    assert data.source == str(folder)


def test_a_missing_data_set_says_how_to_get_it(tmp_path: Path):
    with pytest.raises(DataNotFound, match=r"found none of FashionMNIST/raw.*dataset-fashion-mnist"):
        fashion_mnist(DataRoots((tmp_path,), system=tmp_path))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_truncated_file_is_named(tmp_path: Path, ending: str):
    folder = write_fashion(tmp_path, ending)
    file = folder / f"train-images-idx3-ubyte{ending}"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.*(truncated|cannot be read)"):
        load_dataset("fashion_mnist", roots=[tmp_path])


def test_a_mislabelled_file_is_named_with_the_place(tmp_path: Path):
    write_fashion(tmp_path, labels=12)
    with pytest.raises(DataError, match="train-labels-idx1-ubyte: label 10 at position 10, expected 0 to 9"):
        load_dataset("fashion_mnist", roots=[tmp_path])


def test_labels_of_another_number_are_refused(tmp_path: Path):
    folder = write_fashion(tmp_path)
    write_idx(folder / "t10k-labels-idx1-ubyte", np.zeros(9))
    with pytest.raises(DataError, match="9 labels for the 10 images"):
        load_dataset("fashion_mnist", roots=[tmp_path])


def test_a_half_copied_folder_is_named(tmp_path: Path):
    (write_fashion(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="has no t10k-labels-idx1-ubyte"):
        load_dataset("fashion_mnist", roots=[tmp_path])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\x08", "truncated"),
        (b"\x89PNG" + b"\0" * 12, "not an IDX file"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "not an IDX file of bytes"),
        (b"\0\0\x08\x01\0\0\0\x02\x01\x02\x03", "too long"),
    ],
)
def test_what_is_no_idx_file_is_refused(tmp_path: Path, content: bytes, message: str):
    file = tmp_path / "labels"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(file, 1)


def test_synthetic_sizes_and_seeds():
    data = load_dataset("synthetic", roots=[], examples=50, test_examples=7, classes=4, dims=6, seed=3)
    assert data.train.x.shape == (50, 6)
    assert data.test.x.shape == (7, 6)
    assert data.train.x.dtype == np.float32
    same = load_dataset("synthetic", roots=[], examples=50, test_examples=7, classes=4, dims=6, seed=3)
    other = load_dataset("synthetic", roots=[], examples=50, test_examples=7, classes=4, dims=6, seed=4)
    assert np.array_equal(data.train.x, same.train.x)
    assert not np.array_equal(data.train.x, other.train.x)


@pytest.mark.parametrize("difficulty", [0.01, 0.1, 0.3])
def test_synthetic_difficulty_is_the_chance_of_confusing_two_classes(difficulty: float):
    """With two classes the best rule errs exactly when an example is nearer to the other centre."""
    data = load_dataset("synthetic", roots=[], examples=40_000, classes=2, dims=5, difficulty=difficulty)
    x, y = data.train.x, data.train.y
    centres = np.stack([x[y == c].mean(axis=0) for c in range(2)])
    nearest = ((x[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest != y).mean() == pytest.approx(difficulty, abs=0.01)
    assert np.linalg.norm(centres[0] - centres[1]) == pytest.approx(-2 * norm.ppf(difficulty), abs=0.05)


@pytest.mark.parametrize(
    ("name", "given", "path"),
    [
        ("digit", {}, "name"),
        ("synthetic", {"difficulty": 0.5}, "difficulty"),
        ("synthetic", {"exmples": 5}, "exmples"),
        ("digits", {"limit": 0}, "limit"),
    ],
)
def test_wrong_requests_are_refused_by_path(name: str, given: dict, path: str):
    with pytest.raises(SpecError) as caught:
        load_dataset(name, roots=[], **given)
    assert [f.path for f in caught.value.errors] == [path]


@pytest.mark.parametrize("entry", DATASETS.values())
def test_every_data_set_says_where_it_looks_and_how_to_get_it(entry):
    assert entry.locations
    assert entry.how_to_get


@pytest.mark.parametrize("name", list(DATASETS))
def test_every_place_that_a_loader_looks_in_is_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []

    def find(places: DataRoots, candidates: Iterable[str]) -> None:
        looked.extend(root / candidate for root in places.roots for candidate in candidates)

    def installed(places: DataRoots, package: str) -> None:
        looked.append(places.system / package)

    monkeypatch.setattr(DataRoots, "find_path", find)
    monkeypatch.setattr(DataRoots, "find_installed", installed)
    all_given = {"path": "all/mine/data", "target": "y"}
    given = {p.name: all_given[p.name] for p in list_parameters(DATASETS[name].load) if p.name in all_given}
    drawn = DATASETS[name].check_parameters is not None or name in ("digits", "diabetes")
    if not drawn:
        with pytest.raises(DataNotFound):
            DATASETS[name].load(DataRoots((tmp_path,)), **given)
        assert looked
    assert set(list_locations(name, (tmp_path,), given)) == set(looked)


def test_a_path_out_of_the_data_roots_is_nowhere(tmp_path: Path) -> None:
    assert list_locations("npz", (tmp_path,), {"path": "mine.npz"}) == [tmp_path / "mine.npz"]
    for path in ("/etc", "../other", 3, None):
        assert list_locations("npz", (tmp_path,), {"path": path}) == []
    assert list_locations("nobody", (tmp_path,), {"path": "mine.npz"}) == []
