"""What was found of a data set stands until its files are others."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from jobs.settings import Settings
from jobs.spec import file_state, parse_spec
from jobs.spec.dataset_facts import look_up_facts
from jobs.spec.file_state import compute_file_state
from tests.fedsim.data.samples import write_idx, write_image


def test_what_comes_goes_or_is_replaced_is_another_state(tmp_path: Path) -> None:
    folder, file = tmp_path / "mine", tmp_path / "mine" / "train" / "a.txt"
    states = [compute_file_state([folder])]
    for change in (
        lambda: file.parent.mkdir(parents=True),
        lambda: file.write_text("a"),
        lambda: file.write_text("ab"),
        lambda: os.utime(file, (1, 1)),
        lambda: (file.parent / "b.txt").symlink_to("nowhere"),
        lambda: (file.parent / "cats").mkdir(),
        file.unlink,
    ):
        change()
        states.append(compute_file_state([folder]))
        assert states[-1] == compute_file_state([folder])
    assert len(set(states)) == len(states)
    (folder / ".fedsim-cache").mkdir()
    before = compute_file_state([folder / "train", folder / "\0", folder / ("x" * 300)])
    (folder / ".fedsim-cache" / "x").touch()
    assert before == compute_file_state([folder / "train"])


def test_a_large_folder_is_looked_at_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in "ab":
        (tmp_path / part).mkdir()
        for number in range(8):
            (tmp_path / part / str(number)).touch()
        os.utime(tmp_path / part, (1, 1))
    monkeypatch.setattr(file_state, "MOST_ENTRIES", 6)
    before = compute_file_state([tmp_path])
    # The folders themselves come first, and tell of files that come.
    for part in "ab":
        (tmp_path / part / "more").touch()
        assert before != (before := compute_file_state([tmp_path]))


def test_a_folder_of_images_that_grows_is_read_again(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", data_roots=(tmp_path,))
    dataset = {"name": "image_folder", "path": "mine", "test": None, "test_share": 0.0}
    spec = parse_spec({"algorithm": "fedavg", "data": {"dataset": dataset}})
    for number in range(3):
        write_image(tmp_path / "mine" / "train" / "cat" / f"{number}.png")
        write_image(tmp_path / "mine" / "train" / "dog" / f"{number}.png")
        assert look_up_facts(spec, settings).examples == 2 * (number + 1)
    write_image(tmp_path / "mine" / "train" / "hen" / "0.png")
    facts = look_up_facts(spec, settings)
    assert facts.num_classes == 3
    assert facts.file_facts is not None
    assert facts.file_facts.classes == (3, 3, 1)


def test_files_of_a_published_set_that_were_replaced_are_read_again(tmp_path: Path) -> None:
    """As are those that a data root has which is looked in first."""
    roots = tmp_path / "first", tmp_path / "second"
    settings = Settings(home=tmp_path / "home", data_roots=roots)
    spec = parse_spec({"algorithm": "fedavg", "data": {"dataset": "mnist"}})
    for examples, folder in (
        (30, roots[1] / "mnist"),
        (20, roots[1] / "mnist"),
        (40, roots[0] / "MNIST" / "raw"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("train", "t10k"):
            write_idx(folder / f"{part}-images-idx3-ubyte", np.zeros((examples, 28, 28)))
            write_idx(folder / f"{part}-labels-idx1-ubyte", np.arange(examples) % 10)
        assert look_up_facts(spec, settings).examples == examples
