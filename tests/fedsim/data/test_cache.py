import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from fedsim.data.cache import load_or_make
from fedsim.data.places import DataRoots


class Decoder:
    """Counts how often it was needed; the array is the sizes of the files."""

    def __init__(self, files: list[Path]) -> None:
        self.files, self.calls = files, 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return {"x": np.array([file.stat().st_size for file in self.files])}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "set"
    folder.mkdir(parents=True)
    for i in range(3):
        (folder / f"{i}.bin").write_bytes(b"x" * (i + 1))
    return folder


def load(source: Path, recipe: str = "r", roots: tuple[Path, ...] = ()) -> tuple[list[int], int]:
    """What comes back, and how often it had to be decoded."""
    files = sorted(source.glob("*.bin"))
    decoder = Decoder(files)
    return load_or_make(DataRoots(roots), source, files, recipe, decoder)["x"].tolist(), decoder.calls


def test_the_second_start_decodes_nothing(source: Path):
    assert load(source) == ([1, 2, 3], 1)
    assert load(source) == ([1, 2, 3], 0)


def test_another_recipe_and_other_content_are_decoded(source: Path):
    load(source)
    assert load(source, "other") == ([1, 2, 3], 1)
    (source / "1.bin").write_bytes(b"y" * 9)
    assert load(source) == ([1, 9, 3], 1)


def test_files_that_were_only_touched_are_found_again(source: Path):
    load(source)
    os.utime(source / "1.bin", (1, 1))
    assert load(source) == ([1, 2, 3], 0)


def test_a_copy_of_the_folder_beside_its_cache_is_found(source: Path):
    load(source)
    shutil.move(source.parent, source.parent.with_name("elsewhere"))
    assert load(source.parent.with_name("elsewhere") / "set") == ([1, 2, 3], 0)


def test_another_folder_with_the_same_names_sizes_and_times_is_other_content(source: Path):
    other = source.with_name("other")
    other.mkdir()
    for file in source.glob("*.bin"):
        (other / file.name).write_bytes(b"y" * file.stat().st_size)
        for each in (file, other / file.name):
            os.utime(each, (1, 1))
    assert load(source)[1] == 1
    assert load(other)[1] == 1


def test_a_renamed_file_is_other_content(source: Path):
    load(source)
    (source / "2.bin").rename(source / "7.bin")
    assert load(source)[1] == 1


@pytest.mark.parametrize("damage", ["truncate", "empty", "remove", "header", "garble"])
def test_a_damaged_entry_is_made_again(source: Path, damage: str):
    load(source)
    (entry,) = (p for p in (source.parent / ".fedsim-cache").iterdir() if p.is_dir())
    if damage == "truncate":
        (entry / "x.npy").write_bytes((entry / "x.npy").read_bytes()[:-4])
    elif damage == "empty":
        (entry / "x.npy").write_bytes(b"")
    elif damage == "remove":
        (entry / "x.npy").unlink()
    elif damage == "header":  # of which NumPy's parser makes a TokenError
        whole = (entry / "x.npy").read_bytes()
        (entry / "x.npy").write_bytes(whole.replace(b"}", b" ", 1))
    else:
        (entry / "arrays.json").write_text("{")
    assert load(source) == ([1, 2, 3], 1)
    assert load(source) == ([1, 2, 3], 0)


def test_where_the_data_lies_on_read_only_ground_the_first_root_keeps_the_cache(source: Path, tmp_path: Path):
    # A file of that name stands for a folder that cannot be written: this works for root as well.
    (source.parent / ".fedsim-cache").write_text("")
    home = tmp_path / "home"
    home.mkdir()
    assert load(source, roots=(home,)) == ([1, 2, 3], 1)
    assert load(source, roots=(home,)) == ([1, 2, 3], 0)
    assert (home / ".fedsim-cache").is_dir()


def test_with_nowhere_to_write_it_works_without_a_cache(source: Path):
    (source.parent / ".fedsim-cache").write_text("")
    assert load(source) == ([1, 2, 3], 1)
    assert load(source) == ([1, 2, 3], 1)


def test_nothing_half_made_is_left_behind(source: Path):
    load(source)
    assert not [p for p in (source.parent / ".fedsim-cache").iterdir() if p.name.startswith("making-")]


def test_what_a_killed_process_left_is_removed_after_a_day(source: Path):
    folder = source.parent / ".fedsim-cache"
    for name, age in (("making-old", 2 * 86_400), ("making-new", 3_600)):
        (folder / name).mkdir(parents=True)
        (folder / name / "x.npy").write_bytes(b"half")
        for path in (folder / name / "x.npy", folder / name):
            os.utime(path, (time.time() - age,) * 2)
    load(source)
    assert [path.name for path in folder.glob("making-*")] == ["making-new"]
