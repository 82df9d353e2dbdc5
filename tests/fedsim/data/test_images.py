"""The image loaders, on small files of their real formats."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image
from scipy.io import savemat

from fedsim.data import DATASETS, load_dataset
from fedsim.data.augment import Augment
from fedsim.data.places import DataRoots
from fedsim.data.sources.images import channel_moments
from fedsim.errors import DataError, DataNotFound
from tests.fedsim.data.samples import TEN, broken, write_batch, write_folders, write_idx

# --- EMNIST and MNIST


def write_emnist(root: Path, split: str, labels: np.ndarray) -> np.ndarray:
    images = np.arange(len(labels) * 784).reshape(-1, 28, 28) % 253
    for part in ("train", "test"):
        write_idx(root / "EMNIST" / "raw" / f"emnist-{split}-{part}-images-idx3-ubyte.gz", images)
        write_idx(root / "EMNIST" / "raw" / f"emnist-{split}-{part}-labels-idx1-ubyte.gz", labels)
    return images


def test_emnist_letters_are_upright_and_count_from_zero(tmp_path: Path):
    images = write_emnist(tmp_path, "letters", np.array([1, 26, 3]))
    data = load_dataset("emnist", roots=[tmp_path])
    assert data.train.y.tolist() == [0, 25, 2]
    assert data.num_classes == 26
    assert data.classes[25] == "z"
    assert np.array_equal(data.train.x[1, 0], images[1].T)


def test_emnist_byclass_has_62_classes(tmp_path: Path):
    write_emnist(tmp_path, "byclass", np.array([0, 10, 36, 61]))
    data = load_dataset("emnist", roots=[tmp_path], split="byclass")
    assert data.num_classes == 62
    assert [data.classes[label] for label in data.train.y] == ["0", "A", "a", "z"]


def test_the_unused_class_of_letters_is_refused(tmp_path: Path):
    write_emnist(tmp_path, "letters", np.array([1, 0, 3]))
    with pytest.raises(DataError, match="label 0 at position 1, expected 1 to 26"):
        load_dataset("emnist", roots=[tmp_path])


def test_mnist(tmp_path: Path):
    for prefix, n in (("train", 6), ("t10k", 4)):
        write_idx(tmp_path / "MNIST" / "raw" / f"{prefix}-images-idx3-ubyte", np.ones((n, 28, 28)))
        write_idx(tmp_path / "MNIST" / "raw" / f"{prefix}-labels-idx1-ubyte", np.arange(n))
    data = load_dataset("mnist", roots=[tmp_path], normalise="half")
    assert (len(data.train), len(data.test), data.num_classes) == (6, 4, 10)
    assert data.normalise.mean == (0.5,)


# --- CIFAR


@pytest.mark.parametrize("numpy_1", [False, True])
def test_cifar10_batches(tmp_path: Path, numpy_1: bool):
    folder = tmp_path / "cifar-10-batches-py"
    for n in range(1, 6):
        images = write_batch(folder / f"data_batch_{n}", [n, 9, 0], numpy_1=numpy_1)
    write_batch(folder / "test_batch", [1, 2], numpy_1=numpy_1)
    data = load_dataset("cifar10", roots=[tmp_path], augment=["reflect_crop", "flip"])
    assert data.train.y.tolist() == [1, 9, 0, 2, 9, 0, 3, 9, 0, 4, 9, 0, 5, 9, 0]
    assert np.array_equal(data.train.x[-3:], images)
    assert (len(data.test), data.input_shape, data.classes) == (2, (3, 32, 32), TEN)
    assert data.augment == Augment(("reflect_crop", "flip"))


def test_cifar10_as_image_folders(tmp_path: Path):
    write_folders(tmp_path / "cifar10", TEN, size=32)
    data = load_dataset("cifar10", roots=[tmp_path])
    assert data.train.y.tolist() == list(range(10)) * 3
    assert data.train.x[:, 0, 0, 0].tolist() == data.train.y.tolist()
    assert data.source.endswith("cifar10")


def test_cifar100_fine_and_coarse(tmp_path: Path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    names = {
        b"fine_label_names": [b"f%d" % i for i in range(100)],
        b"coarse_label_names": [b"c%d" % i for i in range(20)],
    }
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    for part in ("train", "test"):
        write_batch(folder / part, [99, 5], b"fine_labels")
    data = load_dataset("cifar100", roots=[tmp_path])
    assert [data.classes[label] for label in data.train.y] == ["f99", "f5"]
    for part in ("train", "test"):
        write_batch(folder / part, [19, 5], b"coarse_labels")
    data = load_dataset("cifar100", roots=[tmp_path], labels="coarse")
    assert data.num_classes == 20


def damage_label(folder: Path) -> None:
    write_batch(folder / "data_batch_3", [0, 11])


def damage_length(folder: Path) -> None:
    content = {b"data": np.zeros((3, 3072), np.uint8), b"labels": [0, 1]}
    (folder / "data_batch_3").write_bytes(pickle.dumps(content, protocol=2))


def damage_truncate(folder: Path) -> None:
    file = folder / "data_batch_3"
    file.write_bytes(file.read_bytes()[:2000])


def damage_remove(folder: Path) -> None:
    (folder / "data_batch_3").unlink()


def damage_code(folder: Path) -> None:
    (folder / "data_batch_3").write_bytes(b"cos\nsystem\n(S'true'\ntR.")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_label, "label 11 at position 1, expected 0 to 9"),
        (damage_length, "2 labels for 3 images"),
        (damage_truncate, "cannot be read"),
        (damage_remove, "cannot be read"),
        (damage_code, r"refers to os\.system"),
    ],
)
def test_a_damaged_cifar_batch_is_named(tmp_path: Path, damage, words: str):
    folder = tmp_path / "cifar-10-batches-py"
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        write_batch(folder / name, [0, 1])
    damage(folder)
    with pytest.raises(DataError, match=rf"data_batch_3.*{words}"):
        load_dataset("cifar10", roots=[tmp_path])


# --- SVHN


def test_svhn_label_ten_is_the_digit_zero(tmp_path: Path):
    (tmp_path / "svhn").mkdir()
    x = (np.arange(32 * 32 * 3 * 3) % 256).astype(np.uint8).reshape(32, 32, 3, 3)
    for part in ("train", "test"):
        savemat(tmp_path / "svhn" / f"{part}_32x32.mat", {"X": x, "y": np.array([[10], [1], [9]], np.uint8)})
    data = load_dataset("svhn", roots=[tmp_path])
    assert data.train.y.tolist() == [0, 1, 9]
    assert np.array_equal(data.train.x[1], x[:, :, :, 1].transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1]])}, "1 labels for 2 images"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]])}, "label 11 at position 1"),
        ({"X": np.zeros((32, 32, 2), np.uint8), "y": np.array([[1], [1]])}, "expected uint8"),
        ({"y": np.array([[1]])}, "not one of SVHN's"),
    ],
)
def test_a_damaged_svhn_file_is_named(tmp_path: Path, content: dict, words: str):
    (tmp_path / "svhn").mkdir()
    savemat(tmp_path / "svhn" / "train_32x32.mat", content)
    with pytest.raises(DataError, match=rf"train_32x32\.mat.*{words}"):
        load_dataset("svhn", roots=[tmp_path])


def test_an_unreadable_svhn_file_is_named(tmp_path: Path):
    """As published, it is compressed, and its `X` is where most damage is done."""
    (tmp_path / "svhn").mkdir()
    file = tmp_path / "svhn" / "train_32x32.mat"
    x = np.random.default_rng(0).integers(256, size=(32, 32, 3, 2)).astype(np.uint8)
    savemat(file, {"X": x, "y": np.array([[1], [1]])}, do_compression=True)
    for damaged in broken(file.read_bytes()):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"train_32x32\.mat: is not one of SVHN's"):
            load_dataset("svhn", roots=[tmp_path])


# --- all of them


@pytest.mark.parametrize(
    "name",
    ["mnist", "emnist", "cifar10", "cifar100", "svhn", "cinic10", "tiny_imagenet", "celeba", "chexpert"],
)
def test_what_is_nowhere_says_how_to_get_it(tmp_path: Path, name: str):
    with pytest.raises(DataNotFound) as caught:
        load_dataset(name, roots=[tmp_path])
    assert name in caught.value.message
    assert str(tmp_path) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "name", ["mnist", "fashion_mnist", "emnist", "cifar10", "cifar100", "svhn", "celeba"]
)
def test_what_can_be_downloaded_says_so(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DataRoots, "find_installed", lambda self, name: None)
    with pytest.raises(DataNotFound, match=r"--set data\.download=true"):
        load_dataset(name, roots=[tmp_path])
    assert "--set data.download=true" in DATASETS[name].how_to_get


def test_moments_are_those_of_numpy():
    x = np.random.default_rng(0).integers(256, size=(5000, 3, 4, 4)).astype(np.uint8)
    mean, deviation = channel_moments(x)
    assert mean == pytest.approx((x / 255).mean(axis=(0, 2, 3)))
    assert deviation == pytest.approx((x / 255).std(axis=(0, 2, 3)))
    assert channel_moments(np.zeros((1, 1, 2, 2), np.uint8)) == ((0.0,), (1.0,))


def test_synthetic_images():
    data = load_dataset("synthetic_images", roots=[], examples=300, classes=3, size=16, channels=1)
    assert data.train.x.shape == (300, 1, 16, 16)
    centres = np.stack([data.train.x[data.train.y == c].mean(axis=0) for c in range(3)])
    nearest = ((data.test.x[:, None] - centres) ** 2).sum(axis=(2, 3, 4)).argmin(axis=1)
    assert (nearest == data.test.y).mean() > 0.9


def test_a_grey_jpeg_becomes_colour(tmp_path: Path):
    folder = tmp_path / "mine" / "train" / "only"
    folder.mkdir(parents=True)
    Image.new("L", (8, 8), 77).save(folder / "a.jpg")
    data = load_dataset("image_folder", roots=[tmp_path], path="mine", test=None, test_share=0.0)
    assert data.train.x.shape == (1, 3, 8, 8)


@pytest.mark.parametrize("name", ["image_folder", "hugging_face"])
def test_no_image_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """Pillow gives a file of PostScript to Ghostscript, which runs it, whatever the ending of the file is."""
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("it ran"))
    if name == "image_folder":
        for folder in ("train/a", "train/b", "test/a", "test/b"):
            (tmp_path / "mine" / folder).mkdir(parents=True)
            (tmp_path / "mine" / folder / "1.png").write_bytes(program)
    else:
        datasets = pytest.importorskip("datasets", reason="the extra 'text' is not installed")
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        table = {"image": [{"bytes": program, "path": "1.png"}] * 4, "label": [0, 1] * 2}
        datasets.Dataset.from_dict(table, features=features).save_to_disk(str(tmp_path / "mine"))
    with pytest.raises(DataError, match="is not a complete image"):
        load_dataset(name, roots=[tmp_path], path="mine")
