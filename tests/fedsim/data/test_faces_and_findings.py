"""CelebA and CheXpert: small files of their formats, whole and damaged."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.core import Batch
from fedsim.data import Partition, load_dataset
from fedsim.data.sources.chexpert import FINDINGS
from fedsim.errors import DataError, SpecError
from fedsim.training.local_loop import cross_entropy
from tests.fedsim.data.samples import write_image

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
    with pytest.raises(DataError, match=r"000002\.jpg: is listed, but missing"):
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
    assert everything.count_labels(0, data.train.y, 14).tolist() == [1, *[0] * 13]
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
        ("patient00002/study1", "patient00002/study2", "line 4 names .*study2.*, which is missing"),
        ("patient00002/study1", "../../patient00002/study1", "which is missing"),
    ],
)
def test_a_damaged_chexpert_list_is_named(tmp_path: Path, old: str, new: str, words: str):
    replace_in(write_chexpert(tmp_path) / "train.csv", old, new)
    with pytest.raises(DataError, match=rf"train\.csv: {words}|train\.csv: .*{words}"):
        load_dataset("chexpert", roots=[tmp_path])
