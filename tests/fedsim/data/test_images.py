"""The image loaders, on small files of their real formats."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from fedsim.core import Batch
from fedsim.data import DATASETS, Partition, load_dataset
from fedsim.data.augment import Augment
from fedsim.data.places import Places
from fedsim.data.sources.chexpert import FINDINGS
from fedsim.data.sources.images import channel_moments
from fedsim.errors import DataError, DataNotFound, SpecError
from fedsim.local import cross_entropy
from tests.fedsim.data.samples import write_batch, write_folders, write_idx, write_image

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


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


def test_a_truncated_svhn_file_is_named(tmp_path: Path):
    (tmp_path / "svhn").mkdir()
    file = tmp_path / "svhn" / "train_32x32.mat"
    savemat(file, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [1]])})
    file.write_bytes(file.read_bytes()[:400])
    with pytest.raises(DataError, match=r"train_32x32\.mat"):
        load_dataset("svhn", roots=[tmp_path])


# --- image folders, CINIC-10


def test_image_folders_take_turns_between_classes(tmp_path: Path):
    write_folders(tmp_path / "mine", ("cat", "dog"))
    data = load_dataset("image_folder", roots=[tmp_path], path="mine", limit=4)
    assert data.classes == ("cat", "dog")
    assert data.train.y.tolist() == [0, 1, 0, 1]
    assert data.train.x[:, 1, 0, 0].tolist() == [0, 0, 1, 1]
    assert len(data.test) == 4


def test_image_folders_without_a_test_part_are_cut_the_same_way_every_time(tmp_path: Path):
    write_folders(tmp_path / "mine", ("cat", "dog"), train=10)
    given = {"path": "mine/train", "train": "", "test": None, "test_share": 0.25}
    first, second = (load_dataset("image_folder", roots=[tmp_path], **given) for _ in range(2))
    assert (len(first.train), len(first.test)) == (15, 5)
    assert np.array_equal(first.test.x, second.test.x)


def test_images_are_scaled_and_made_grey_when_asked(tmp_path: Path):
    write_folders(tmp_path / "mine", ("cat", "dog"))
    write_image(tmp_path / "mine" / "train" / "cat" / "900.png", size=20)
    with pytest.raises(DataError, match=r"900\.png: is 20x20, the others are 8x8"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")
    data = load_dataset("image_folder", roots=[tmp_path], path="mine", size=16, channels=1)
    assert data.input_shape == (1, 16, 16)
    assert len(data.normalise.mean) == 1


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_of_grey_images_of_16_bits_the_upper_eight_are_kept(tmp_path: Path, ending: str):
    folder = tmp_path / "mine" / "train" / "only"
    folder.mkdir(parents=True)
    x = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1024 + 300
    Image.fromarray(x).save(folder / f"a.{ending}")
    given = {"roots": [tmp_path], "path": "mine", "test": None, "test_share": 0.0}
    data = load_dataset("image_folder", channels=1, **given)
    assert np.array_equal(data.train.x[0, 0], x // 256)
    assert np.array_equal(load_dataset("image_folder", **given).train.x[0, 2], x // 256)


@pytest.mark.parametrize(
    ("high", "kind", "ok"),
    [(1.0, np.float32, False), (70_000, np.int32, False), (200, np.int32, True), (200, np.uint16, False)],
)
def test_images_of_other_values_than_8_or_16_bits_are_refused(tmp_path: Path, high: float, kind, ok: bool):
    folder = tmp_path / "mine" / "train" / "only"
    folder.mkdir(parents=True)
    x = np.linspace(0, high, 64).reshape(8, 8).astype(kind)
    Image.fromarray(x).save(folder / "a.tif")
    given = {"roots": [tmp_path], "path": "mine", "test": None, "test_share": 0.0}
    if ok:
        assert np.array_equal(load_dataset("image_folder", **given).train.x[0, 0], x)
    else:
        with pytest.raises(DataError, match=r"a\.tif: has .*save the images with 8 bits"):
            load_dataset("image_folder", **given)


def test_a_truncated_image_is_named(tmp_path: Path):
    write_folders(tmp_path / "mine", ("cat", "dog"))
    file = tmp_path / "mine" / "train" / "dog" / "001.png"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(DataError, match=r"dog/001\.png: is not a whole image"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")


def test_a_class_of_the_test_part_alone_is_named(tmp_path: Path):
    write_folders(tmp_path / "mine", ("cat", "dog"))
    write_image(tmp_path / "mine" / "test" / "cow" / "0.png")
    with pytest.raises(DataError, match="test/cow: is no class of the training part"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")


@pytest.mark.parametrize("path", ["../mine", "/etc", "a/../../b"])
def test_a_path_out_of_the_data_roots_is_refused(tmp_path: Path, path: str):
    with pytest.raises(SpecError, match="inside it"):
        load_dataset("image_folder", roots=[tmp_path], path=path)


def test_a_folder_that_is_not_there_says_where_it_looked(tmp_path: Path):
    with pytest.raises(DataNotFound, match=f"found none of mine in the data roots .{tmp_path}"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="mine/train: has no folder for each class"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")


def test_cinic10_with_and_without_its_validation_part(tmp_path: Path):
    write_folders(tmp_path / "CINIC-10", TEN, train=2, test=1, size=32)
    for name in TEN:
        write_image(tmp_path / "CINIC-10" / "valid" / name / "0.png", size=32)
    assert len(load_dataset("cinic10", roots=[tmp_path]).train) == 20
    assert len(load_dataset("cinic10", roots=[tmp_path], validation=True).train) == 30


def test_what_is_called_cinic_but_has_other_classes_is_refused(tmp_path: Path):
    write_folders(tmp_path / "CINIC-10", TEN[:9], size=32)
    with pytest.raises(DataError, match="not those of CINIC-10"):
        load_dataset("cinic10", roots=[tmp_path])


# --- Tiny-ImageNet


def write_tiny(root: Path) -> Path:
    folder = root / "tiny-imagenet-200"
    for label, name in enumerate(("n02", "n01")):
        for i in range(2):
            write_image(folder / "train" / name / "images" / f"{name}_{i}.JPEG", (0, 100 * label, 0), 64)
        write_image(folder / "val" / "images" / f"val_{label}.JPEG", (0, 100 * label, 0), 64)
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tcat\nn03\tdog\n")
    (folder / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t5\t5\nval_1.JPEG\tn01\t0\t0\t5\t5\n"
    )
    return folder


def test_tiny_imagenet(tmp_path: Path):
    write_tiny(tmp_path)
    data = load_dataset("tiny_imagenet", roots=[tmp_path])
    assert data.classes == ("cat", "goldfish")
    assert data.train.y.tolist() == [0, 1, 0, 1]
    assert data.test.y.tolist() == [0, 1]
    assert data.test.x[1, 1].mean() == pytest.approx(100, abs=2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("val_0.JPEG\tn07\n", "line 1 names the class 'n07'"),
        ("val_0.JPEG\tn02\nval_7.JPEG\tn02\n", r"line 2 names 'val_7\.JPEG'"),
    ],
)
def test_a_wrong_line_of_tiny_imagenets_list_is_named(tmp_path: Path, line: str, words: str):
    folder = write_tiny(tmp_path)
    (folder / "val" / "val_annotations.txt").write_text(line)
    with pytest.raises(DataError, match=rf"val_annotations\.txt: {words}"):
        load_dataset("tiny_imagenet", roots=[tmp_path])


def test_a_class_of_tiny_imagenet_without_images_is_named(tmp_path: Path):
    folder = write_tiny(tmp_path)
    (folder / "wnids.txt").write_text("n02\nn01\nn03\n")
    with pytest.raises(DataError, match="n03/images: has no images"):
        load_dataset("tiny_imagenet", roots=[tmp_path])


# --- CelebA


def write_celeba(root: Path, people: tuple[int, ...] = (7,) * 6 + (3,) * 6 + (9,) * 2) -> Path:
    folder = root / "celeba"
    names = [f"{i:06d}.jpg" for i in range(1, len(people) + 1)]
    for i, name in enumerate(names):
        write_image(folder / "img_align_celeba" / name, (i, i, i), 20)
    rows = [f"{name}  {'1' if i % 2 else '-1'} -1" for i, name in enumerate(names)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(len(names)), "Smiling Young", *rows]) + "\n")
    lines = [f"{name} {person}" for name, person in zip(names, people, strict=True)]
    (folder / "identity_CelebA.txt").write_text("\n".join(lines) + "\n")
    parts = [f"{name} {2 if person == 3 else 0}" for name, person in zip(names, people, strict=True)]
    (folder / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return folder


def test_celeba_tests_on_a_fifth_of_each_celebrity(tmp_path: Path):
    write_celeba(tmp_path)
    data = load_dataset("celeba", roots=[tmp_path], size=16)
    assert data.input_shape == (3, 16, 16)
    assert data.classes == ("not smiling", "smiling")
    assert data.train.groups is not None
    assert data.test.groups is not None
    # Celebrity 9 has only two images; the others have six, of which one is tested on.
    assert np.bincount(data.train.groups).tolist() == [0, 0, 0, 5, 0, 0, 0, 5]
    assert np.bincount(data.test.groups).tolist() == [0, 0, 0, 1, 0, 0, 0, 1]
    # The image's grey value is its number, odd numbers smile.
    assert np.array_equal(np.rint(data.train.x[:, 0].mean(axis=(1, 2))) % 2, data.train.y)


def test_celeba_official_split_and_fewer_celebrities(tmp_path: Path):
    write_celeba(tmp_path)
    data = load_dataset("celeba", roots=[tmp_path], size=16, split="official", min_images=2)
    assert (len(data.train), len(data.test)) == (8, 6)
    data = load_dataset("celeba", roots=[tmp_path], size=16, celebrities=1)
    assert len(np.unique(data.train.groups)) == 1


def test_celeba_damage_is_named(tmp_path: Path):
    folder = write_celeba(tmp_path)
    with pytest.raises(SpecError, match="CelebA has no such attribute"):
        load_dataset("celeba", roots=[tmp_path], attribute="smiling")
    (folder / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(DataError, match=r"000002\.jpg: is listed, but is not there"):
        load_dataset("celeba", roots=[tmp_path], min_images=2)
    lines = (folder / "list_attr_celeba.txt").read_text().splitlines()
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines[:-1]))
    with pytest.raises(DataError, match=r"list_attr_celeba\.txt: truncated, 13 images of 14"):
        load_dataset("celeba", roots=[tmp_path])
    lines[4] = "000003.jpg 0 1"
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match="line 5 is not a file name and 2 times 1 or -1"):
        load_dataset("celeba", roots=[tmp_path])
    (folder / "list_attr_celeba.txt").write_text("\n".join([*lines[:4], "000003.jpg -1 1", *lines[5:]]))
    (folder / "identity_CelebA.txt").write_text("000001.jpg 7\n")
    with pytest.raises(DataError, match=r"identity_CelebA\.txt: has no number for 000002\.jpg"):
        load_dataset("celeba", roots=[tmp_path])


# --- CheXpert


def write_chexpert(root: Path) -> Path:
    """Train: patient 1 (frontal, lateral) and 2; findings are `0.0` where nothing else is said."""
    folder = root / "CheXpert-v1.0-small"
    header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *FINDINGS]
    lines = {
        "train": [
            ("patient00001", "frontal", "1.0,,-1.0"),
            ("patient00001", "lateral", ""),
            ("patient00002", "frontal", ""),
        ],
        "valid": [("patient64541", "frontal", "")],
    }
    for part, studies in lines.items():
        text = [",".join(header)]
        for patient, view, findings in studies:
            path = f"CheXpert-v1.0-small/{part}/{patient}/study1/view1_{view}.jpg"
            write_image(root / path, size=30)
            values = [*findings.split(","), *["0.0"] * 14][:14]
            text.append(",".join([path, "Male", "68", view.capitalize(), "AP", *values]))
        (folder / f"{part}.csv").write_text("\n".join(text) + "\n")
    return folder


@pytest.mark.parametrize(("policy", "value"), [("zeros", 0.0), ("ones", 1.0)])
def test_chexpert_and_its_uncertain_labels(tmp_path: Path, policy: str, value: float):
    write_chexpert(tmp_path)
    data = load_dataset("chexpert", roots=[tmp_path], uncertain=policy, size=16)
    assert data.task == "labels"
    assert data.classes == FINDINGS
    assert data.input_shape == (1, 16, 16)
    assert data.train.y.dtype == np.float32
    assert data.train.y[0, :4].tolist() == [1.0, 0.0, value, 0.0]
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [1, 2]
    assert len(load_dataset("chexpert", roots=[tmp_path], views="all").train) == 3


def test_chexpert_leaves_uncertain_labels_unknown(tmp_path: Path):
    """One uncertain label of 14: the loss is the mean over the other 13, and no count has it."""
    write_chexpert(tmp_path)
    data = load_dataset("chexpert", roots=[tmp_path], uncertain="ignore", size=16)
    assert np.isnan(data.train.y[0]).nonzero()[0].tolist() == [2]
    assert not np.isnan(data.train.y[1:]).any()
    everything = Partition(np.arange(2), np.array([0, 2]))
    assert everything.label_counts(0, data.train.y, 14).tolist() == [1, *[0] * 13]
    labels = torch.from_numpy(data.train.y[:1].copy())
    logits = torch.zeros(1, 14).index_fill_(1, torch.tensor([2]), 50.0)
    assert float(cross_entropy(logits, Batch(x=logits, y=labels))) == pytest.approx(np.log(2))
    again = load_dataset("chexpert", roots=[tmp_path], uncertain="zeros", size=16)
    assert np.array_equal(data.train.x, again.train.x)


def replace_in(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (",Edema,", ",Oedema,", "has no column 'Edema'"),
        ("1.0,,-1.0", "1.0,,2.0", "line 2 has '2.0' for 'Cardiomegaly'"),
        ("patient00002/study1", "patient00002/study2", "line 4 names .*study2.*, which is not there"),
        ("patient00002/study1", "../../patient00002/study1", "which is not there"),
    ],
)
def test_a_damaged_chexpert_list_is_named(tmp_path: Path, old: str, new: str, words: str):
    replace_in(write_chexpert(tmp_path) / "train.csv", old, new)
    with pytest.raises(DataError, match=rf"train\.csv: {words}|train\.csv: .*{words}"):
        load_dataset("chexpert", roots=[tmp_path])


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
    monkeypatch.setattr(Places, "installed", lambda self, name: None)
    with pytest.raises(DataNotFound, match=r"--set data\.download=true"):
        load_dataset(name, roots=[tmp_path])
    assert "--set data.download=true" in DATASETS[name].get


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
