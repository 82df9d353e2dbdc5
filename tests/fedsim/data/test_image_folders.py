"""Image folders, and the data sets that come as folders: CINIC-10, Tiny-ImageNet."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim.data import load_dataset
from fedsim.errors import DataError, DataNotFound, SpecError
from tests.fedsim.data.samples import TEN, write_folders, write_image

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


def test_transparent_pixels_are_white_and_photographs_upright(tmp_path: Path):
    folder = tmp_path / "mine" / "train" / "only"
    folder.mkdir(parents=True)
    icon, photograph = np.zeros((8, 8, 4), np.uint8), np.zeros((8, 8, 3), np.uint8)
    icon[:4, :, 3] = 255  # black above, transparent below
    photograph[:4] = 255
    turned = Image.Exif()
    turned[0x0112] = 3  # the camera was upside down
    Image.fromarray(icon).save(folder / "a.png")
    Image.fromarray(photograph).save(folder / "b.jfif", exif=turned, quality=100)
    data = load_dataset("image_folder", roots=[tmp_path], path="mine", test=None, test_share=0.0)
    assert (data.train.x[0, :, :4] == 0).all()
    assert (data.train.x[0, :, 4:] == 255).all()
    assert np.abs(data.train.x[1].astype(int) - data.train.x[0]).max() < 5


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
    with pytest.raises(DataError, match=r"dog/001\.png: is not a complete image"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")


def test_a_class_of_the_test_part_alone_is_named(tmp_path: Path):
    write_folders(tmp_path / "mine", ("cat", "dog"))
    write_image(tmp_path / "mine" / "test" / "cow" / "0.png")
    with pytest.raises(DataError, match="test/cow: is not a class of the training part"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_class_without_images_is_named(tmp_path: Path, part: str):
    write_folders(tmp_path / "mine", ("cat", "dog"))
    for file in (tmp_path / "mine" / part / "dog").iterdir():
        file.rename(file.with_suffix(".txt"))
    with pytest.raises(DataError, match=f"mine/{part}/dog: has no images .put images of this class there"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")


def test_a_class_of_the_training_part_alone_is_named(tmp_path: Path):
    write_folders(tmp_path / "mine", ("cat", "dog"))
    shutil.rmtree(tmp_path / "mine" / "test" / "cat")
    with pytest.raises(DataError, match="mine/test/cat: is missing, but it is a class of the training part"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")


@pytest.mark.parametrize("path", ["../mine", "/etc", "a/../../b"])
def test_a_path_out_of_the_data_roots_is_refused(tmp_path: Path, path: str):
    with pytest.raises(SpecError, match="inside a data root"):
        load_dataset("image_folder", roots=[tmp_path], path=path)


def test_a_folder_that_is_not_there_says_where_it_looked(tmp_path: Path):
    with pytest.raises(DataNotFound, match=f"found none of mine in the data roots .{tmp_path}"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match=r"mine/train: is missing.*set train: '' and test: null"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")
    (tmp_path / "mine" / "train").mkdir()
    with pytest.raises(DataError, match="mine/train: has no class folders"):
        load_dataset("image_folder", roots=[tmp_path], path="mine")


def test_cinic10_with_and_without_its_validation_part(tmp_path: Path):
    write_folders(tmp_path / "CINIC-10", TEN, train=2, test=1, size=32)
    for name in TEN:
        write_image(tmp_path / "CINIC-10" / "valid" / name / "0.png", size=32)
    assert len(load_dataset("cinic10", roots=[tmp_path]).train) == 20
    assert load_dataset("cinic10", roots=[tmp_path], augment=["crop", "flip"]).augment is not None
    assert len(load_dataset("cinic10", roots=[tmp_path], validation=True).train) == 30
    shutil.rmtree(tmp_path / "CINIC-10" / "valid" / "frog")
    with pytest.raises(DataError, match=r"valid: has the classes .*, not those of CINIC-10"):
        load_dataset("cinic10", roots=[tmp_path], validation=True)


@pytest.mark.parametrize(("name", "folder"), [("cifar10", "cifar10"), ("cinic10", "CINIC-10")])
def test_an_archive_that_is_half_unpacked_is_refused(tmp_path: Path, name: str, folder: str):
    write_folders(tmp_path / folder, TEN, size=32)
    shutil.rmtree(tmp_path / folder / "test" / "truck")
    with pytest.raises(DataError, match=r"test/truck: is missing"):
        load_dataset(name, roots=[tmp_path])
    shutil.rmtree(tmp_path / folder / "train" / "truck")
    with pytest.raises(DataError, match=r"has the classes .*, not those of CI"):
        load_dataset(name, roots=[tmp_path])


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
