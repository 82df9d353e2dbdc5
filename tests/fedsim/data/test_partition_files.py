"""The partition `file`: the files of `fedsim partition`, and lists of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.data import (
    Dataset,
    Examples,
    Federation,
    Partition,
    PartitionCounts,
    find_faults_by_counts,
    make_federation,
)
from fedsim.data.artifact import save_partition
from fedsim.data.federation import take_validation
from fedsim.data.places import DataRoots
from fedsim.errors import SpecError


def dataset(examples: int = 12) -> Dataset:
    part = Examples(np.zeros((examples, 2), np.float32), np.arange(examples) % 3)
    return Dataset("npz", part, part, 3, (2,), ("a", "b", "c"))


def deal(root: Path, clients: int, path: str) -> Partition:
    places = DataRoots((root,))
    return make_federation(dataset(), "file", num_clients=clients, seed=0, places=places, path=path).train


def lists_of(partition: Partition) -> list[list[int]]:
    return [partition.client_positions(client).tolist() for client in range(partition.num_clients)]


def test_a_saved_partition_is_the_same_again(tmp_path: Path) -> None:
    made = make_federation(dataset(), "dirichlet", num_clients=3, seed=3, beta=0.5, min_size=0)
    save_partition(tmp_path / "deep" / "partition", made, {"tests": {"kind": "global"}})
    again = deal(tmp_path, 3, "deep/partition.npz")
    assert np.array_equal(again.indices, made.train.indices)
    assert np.array_equal(again.offsets, made.train.offsets)
    assert again.notes == made.train.notes


def test_a_saved_partition_keeps_the_names_of_its_clients(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({"eve": [5, 0], "ann": [2]}))
    named = Federation(dataset(), deal(tmp_path, 2, "mine.json"))
    save_partition(tmp_path / "partition", named, {"tests": {"kind": "global"}})
    assert deal(tmp_path, 2, "partition.npz").names == ("ann", "eve")


@pytest.mark.parametrize(
    ("name", "text", "lists", "names"),
    [
        ("mine.json", json.dumps([[5, 0], [], [11]]), [[0, 5], [], [11]], ()),
        ("mine.json", json.dumps({"eve": [5, 0], "ann": [2]}), [[2], [0, 5]], ("ann", "eve")),
        ("mine.json", json.dumps({"10": [1], "9": [2]}), [[2], [1]], ("9", "10")),
        ("mine.csv", "example,client\n5,eve\n2,ann\n0,eve\n", [[2], [0, 5]], ("ann", "eve")),
        ("mine.csv", "\ufeffexample,client\n5,0\n2,1\n", [[5], [2]], ()),  # as Excel saves it
        ("mine.csv", "client,weight,example\n10,1,4\n9,1,3\n", [[3], [4]], ("9", "10")),
    ],
)
def test_lists_of_your_own_are_clients(
    tmp_path: Path, name: str, text: str, lists: list[list[int]], names: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(text)
    made = deal(tmp_path, len(lists), name)
    assert lists_of(made) == lists
    assert made.names == names
    left = 12 - sum(map(len, lists))
    assert made.notes == (f"{left} of 12 examples are in no list of {name}, and belong to no client",)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("mine.json", "[[0, 12]]", r"client '0' holds example 12, and there are 12"),
        ("mine.json", '{"ann": [0], "bob": [-1]}', r"client 'bob' holds example -1"),
        ("mine.json", f'{{"ann": [{10**30}]}}', r"client 'ann' holds example"),
        ("mine.json", '{"ann": [0, 3], "bob": [3]}', r"example 3 is there twice, .*'ann' and at .*'bob'"),
        ("mine.json", '{"ann": [3, 3]}', r"example 3 is there twice, .*'ann' and at client 'ann'"),
        ("mine.json", '{"ann": [1.0]}', r"mine\.json: client 'ann' holds the example 1\.0"),
        ("mine.json", '{"ann": [true]}', r"client 'ann' holds the example True"),
        ("mine.json", '{"ann": 3}', r"client 'ann' has 3, which is no list"),
        ("mine.json", "3", r"neither a list nor names"),
        ("mine.json", "{", r"mine\.json: is not a JSON file"),
        ("mine.json", '{"digest": "abc"}', r"describes a partition.*mine\.npz"),
        ("mine.csv", "example,owner\n1,a\n", r"has no column 'client'.*its columns: example, owner"),
        ("mine.csv", "", r"has no column 'example'.*its columns: none"),
        ("mine.csv", "example,client\n1.5,a\n", r"client 'a' holds the example '1\.5'"),
        ("mine.csv", "example,client\n,a\n", r"client 'a' holds the example ''"),
        ("mine.csv", "example,client\n3,\n", r"example 3 has no client"),
        ("mine.json", '{"ann": [0], "bob": [1], "ann": [2]}', r"client 'ann' has several lists"),
        ("mine.npz", "", r"not a saved partition"),
        ("mine.txt", "", r"is no partition file"),
        ("other.json", None, r"found none of other\.json in the data roots"),
    ],
)
def test_a_file_that_is_no_partition_of_the_data_is_refused(
    tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    """The check before the run and the run itself say the same."""
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=rf"path: .*{words}") as caught:
        deal(tmp_path, 1, name)
    counts = PartitionCounts(12, 1, (3, 3), 0, DataRoots((tmp_path,)))
    assert find_faults_by_counts("file", {"path": name}, counts) == caught.value.errors


def test_the_number_of_clients_is_the_files(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("[[0], [1]]")
    with pytest.raises(SpecError, match=r"num_clients: mine\.json has 2 clients .*make it 2"):
        deal(tmp_path, 3, "mine.json")


def test_a_partition_of_other_data_is_refused(tmp_path: Path) -> None:
    made = make_federation(dataset(15), "iid", num_clients=3, seed=0)
    save_partition(tmp_path / "partition", made, {})
    with pytest.raises(SpecError, match=r"was made for 15 training examples, and here are 12"):
        deal(tmp_path, 3, "partition.npz")
    merged = make_federation(dataset(6), "iid", num_clients=3, seed=0, tests="merged")
    save_partition(tmp_path / "partition", merged, {"tests": {"kind": "merged"}})
    with pytest.raises(SpecError, match=r"was made with data\.tests: merged"):
        deal(tmp_path, 3, "partition.npz")


def test_a_partition_of_another_seed_is_refused_if_a_validation_set_is_taken(tmp_path: Path) -> None:
    """The same positions would be other examples: a skewed partition would become a random one."""
    places = DataRoots((tmp_path,))
    for seed in (1, 2):
        kept, _ = take_validation(dataset(40), 0.25, seed)
        if seed == 1:
            save_partition(
                tmp_path / "p", make_federation(kept, "iid", num_clients=3, seed=seed), {"seed": seed}
            )
            make_federation(kept, "file", num_clients=3, seed=seed, places=places, path="p.npz")
    with pytest.raises(SpecError, match=r"path: was made from other training examples \(npz, seed 1\)"):
        make_federation(kept, "file", num_clients=3, seed=2, places=places, path="p.npz")


def test_clients_with_lists_can_have_tests_of_their_own(tmp_path: Path) -> None:
    """With merged tests the positions count the training data and then the test data."""
    (tmp_path / "mine.json").write_text(json.dumps([[0, 1, 2, 3], [20, 21, 22, 23]]))
    places = DataRoots((tmp_path,))
    given: dict[str, Any] = {"num_clients": 2, "seed": 0, "path": "mine.json", "places": places}
    made = make_federation(dataset(), "file", tests="merged", **given)
    assert made.train.sizes().tolist() == [3, 3]
    assert set(made.train.client_positions(1)) < {20, 21, 22, 23}
