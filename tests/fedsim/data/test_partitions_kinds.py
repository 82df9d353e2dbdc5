"""Each kind's own: few classes, shards, skewed sizes, mixes drawn client by client, natural groups."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.data import Partition, PartitionCounts, find_faults_by_counts, make_partition
from fedsim.errors import SpecError
from tests.fedsim.data.labelled import CLASSES, covers_once, federations, make


def few_classes(
    federation: tuple[np.ndarray, int, int], classes: int, kind: str = "pathological"
) -> tuple[Partition, np.ndarray] | None:
    labels, clients, _ = federation
    present = len(np.unique(labels))
    if classes > present or classes * clients < present:
        return None
    given = {"classes": classes} if kind == "pathological" else {"share": classes / present}
    partition = make(kind, federation, **given)
    return partition, np.stack([partition.count_labels(i, labels, CLASSES) for i in range(clients)])


@pytest.mark.parametrize("kind", ["pathological", "label_skew"])
@given(federations(), st.integers(1, CLASSES))
def test_few_classes_cover_once_and_leave_nobody_empty(kind: str, federation, classes: int):
    made = few_classes(federation, classes, kind)
    if made is not None:
        assert covers_once(made[0], len(federation[0]))
        assert made[0].sizes().min() >= 1
        assert (made[1] > 0).sum(axis=1).max() <= classes


@given(st.integers(2, 30), st.integers(1, CLASSES), st.integers(0, 3))
def test_pathological_clients_hold_exactly_so_many_classes_evenly(clients: int, classes: int, seed: int):
    made = few_classes((np.arange(600) % CLASSES, clients, seed), classes)
    if made is not None:
        assert ((made[1] > 0).sum(axis=1) == classes).all()
        for column in made[1].T:
            assert column.max() - column[column > 0].min() <= 1


def test_a_clients_number_says_nothing_of_the_classes_it_holds():
    """Architectures are dealt by number: no kind of model may get one kind of class."""
    labels, even = np.arange(4_000) % 10, []
    for seed in range(40):
        given = {"labels": labels, "num_clients": 20, "num_classes": 10, "seed": seed}
        partition = make_partition("pathological", classes=2, **given)
        counts = np.stack([partition.count_labels(i, labels, 10) for i in range(0, 20, 2)])
        even.append(counts[:, ::2].sum() / counts.sum())
    assert abs(np.mean(even) - 0.5) < 0.05  # 0.75, if first classes went by number


@given(federations(), st.integers(1, 3))
def test_shards_cover_once_in_equal_pieces(federation, each: int):
    labels, clients, _ = federation
    if clients * each <= len(labels):
        partition = make("shards", federation, shards_per_client=each)
        assert covers_once(partition, len(labels))
        assert partition.sizes().max() - partition.sizes().min() <= each


def test_a_client_of_two_shards_holds_two_classes():
    labels = np.arange(6_000) % 10
    partition = make_partition("shards", labels=labels, num_clients=100, num_classes=10, seed=0)
    classes = [int((partition.count_labels(i, labels, 10) > 0).sum()) for i in range(100)]
    assert max(classes) <= 2
    assert np.mean(classes) > 1.5


def test_label_skew_of_a_fifth_is_two_classes_of_ten():
    labels = np.arange(6_000) % 10
    partition = make_partition("label_skew", labels=labels, num_clients=100, num_classes=10, seed=0)
    assert {int((partition.count_labels(i, labels, 10) > 0).sum()) for i in range(100)} == {2}


@given(federations(), st.sampled_from([0.05, 1.0, 50.0]))
def test_quantity_covers_once_and_keeps_the_minimum(federation, beta: float):
    labels, clients, _ = federation
    partition = make("quantity", federation, beta=beta, min_size=len(labels) // clients // 2)
    assert covers_once(partition, len(labels))
    assert partition.sizes().min() >= len(labels) // clients // 2


def test_quantity_skews_sizes_and_not_classes():
    labels = np.arange(60_000) % 10
    partition = make_partition("quantity", labels=labels, num_clients=20, num_classes=10, seed=0, beta=0.5)
    sizes = partition.sizes()
    assert sizes.max() > 5 * sizes.min()
    largest = partition.count_labels(int(sizes.argmax()), labels, 10)
    assert largest.max() < 1.2 * largest.min()


@given(federations(), st.sampled_from([0.01, 0.5, 100.0]))
def test_dirichlet_by_client_covers_once_in_equal_sizes(federation, beta: float):
    partition = make("dirichlet_clients", federation, beta=beta)
    assert covers_once(partition, len(federation[0]))
    assert partition.sizes().max() - partition.sizes().min() <= 1


def test_dirichlet_by_client_follows_the_datas_own_mix_for_a_large_beta():
    labels = np.repeat([0, 1, 2], [6_000, 3_000, 1_000])
    partition = make_partition(
        "dirichlet_clients", labels=labels, num_clients=10, num_classes=3, seed=0, beta=1e4
    )
    counts = np.stack([partition.count_labels(i, labels, 3) for i in range(10)])
    assert np.abs(counts - [600, 300, 100]).max() < 60


@given(federations(), st.integers(1, 8))
def test_natural_never_splits_a_group(federation, groups_in_all: int):
    labels, clients, seed = federation
    groups = np.random.default_rng(seed).integers(groups_in_all, size=len(labels)) * 7
    if len(np.unique(groups)) >= clients:
        partition = make("natural", federation, groups=groups)
        assert covers_once(partition, len(labels))
        held = [set(groups[partition.client_positions(i)]) for i in range(clients)]
        assert sum(map(len, held)) == len(set().union(*held))


def test_natural_with_one_client_per_group_keeps_their_order():
    groups = np.array([30, 10, 20, 10])
    partition = make_partition(
        "natural", labels=np.zeros(4, int), num_clients=3, num_classes=1, seed=0, groups=groups
    )
    assert [partition.client_positions(i).tolist() for i in range(3)] == [[1, 3], [2], [0]]


def test_natural_clients_of_ten_celebrities_leave_the_others_out():
    groups = np.repeat(np.arange(250), 4)
    partition = make_partition(
        "natural",
        labels=np.zeros(1_000, int),
        num_clients=5,
        num_classes=1,
        seed=0,
        groups=groups,
        groups_per_client=10,
    )
    assert partition.sizes().tolist() == [40] * 5


@pytest.mark.parametrize(
    ("kind", "given", "path", "words"),
    [
        ("pathological", {"classes": 3}, "classes", "only 2 classes"),
        ("shards", {"shards_per_client": 3}, "shards_per_client", "15 shards are more than the 10 examples"),
        ("natural", {}, "kind", "no natural clients"),
        ("natural", {"groups": np.arange(10) % 4}, "num_clients", "5 groups; the examples to divide have 4"),
        ("dirichlet", {"share": 0.2}, "share", "leaves 2 examples for 5 clients"),
        ("difficulty", {"base": {"kind": "natural"}}, "base.kind", "no natural clients"),
        ("parts", {"base": {"kind": "natural"}}, "base.kind", "no natural clients"),
        ("parts", {"base": {"kind": "difficulty"}}, "base.kind", "another partition kind"),
        ("parts", {"parts_per_client": 3}, "parts_per_client", "15 parts are more than the 10 examples"),
    ],
)
def test_what_the_classes_and_groups_cannot_serve_is_refused(kind: str, given: dict, path: str, words: str):
    with pytest.raises(SpecError) as caught:
        make_partition(
            kind,
            labels=np.arange(10) % 2,
            num_clients=5,
            num_classes=2,
            seed=0,
            losses=np.zeros(10),
            **given,
        )
    (fault,) = caught.value.errors
    assert fault.path == path
    assert words in fault.message


@pytest.mark.parametrize("base", [{"kind": "label_skew", "share": 0.4}, {"kind": "dirichlet", "beta": 0.3}])
def test_a_client_holds_one_part_of_several(base: dict):
    labels = np.random.default_rng(0).integers(5, size=400)
    given = {"labels": labels, "num_classes": 5, "seed": 3}
    kind, parameters = base["kind"], {name: value for name, value in base.items() if name != "kind"}
    found = make_partition("parts", num_clients=4, parts_per_client=3, base=base, **given)
    cut = make_partition(kind, num_clients=12, **parameters, **given)
    all_parts = [cut.client_positions(part).tolist() for part in range(12)]
    numbers = [all_parts.index(found.client_positions(client).tolist()) for client in range(4)]
    assert len(set(numbers)) == 4
    whole = make_partition("parts", num_clients=4, parts_per_client=1, base=base, **given)
    plain = make_partition(kind, num_clients=4, **parameters, **given)
    assert np.array_equal(whole.indices, plain.indices)
    assert np.array_equal(whole.offsets, plain.offsets)


TEN = PartitionCounts(examples=10, num_clients=5, classes=(2, 2), groups=0)


@pytest.mark.parametrize(
    ("kind", "given", "paths"),
    [
        ("pathological", {"classes": 3}, ["classes"]),
        ("pathological", {}, []),
        ("label_skew", {"share": 0.1}, []),
        ("shards", {"shards_per_client": 3}, ["shards_per_client"]),
        ("natural", {}, ["kind"]),
        ("dirichlet", {"min_size": 3}, ["min_size"]),
        ("dirichlet", {"min_size": 2}, []),
        ("dirichlet", {"min_size": 2, "share": 0.9}, ["min_size"]),
        ("dirichlet", {"share": 0.4}, ["share"]),
        ("quantity", {"min_size": 3}, ["min_size"]),
        ("sampled", {"size": 11}, ["size"]),
        ("difficulty", {"base": {"kind": "pathological", "classes": 3}}, ["base.classes"]),
        ("parts", {"parts_per_client": 3}, ["parts_per_client"]),
        ("parts", {"base": {"kind": "dirichlet", "min_size": 2}}, ["base.min_size"]),
        ("parts", {"base": {"kind": "dirichlet", "min_size": 1}}, []),
        ("iid", {}, []),
        # What is wrong whatever the data is, somebody else says.
        ("pathological", {"clases": 3}, []),
        ("nobody", {}, []),
    ],
)
def test_counts_alone_tell_what_cannot_be(kind: str, given: dict, paths: list[str]):
    assert [fault.path for fault in find_faults_by_counts(kind, given, TEN)] == paths


def test_counts_that_are_bounds_refuse_only_what_is_certain():
    """Of 3 to 8 classes 2 clients of one class leave some, at a share of 0.2 of 8 it may be enough."""
    known = TEN._replace(num_clients=2, classes=(3, 8), groups=6)
    assert not find_faults_by_counts("pathological", {"classes": 8}, known)
    assert [f.path for f in find_faults_by_counts("pathological", {"classes": 1}, known)] == ["classes"]
    assert [f.path for f in find_faults_by_counts("label_skew", {"share": 0.2}, known)] == ["share"]
    assert not find_faults_by_counts("label_skew", {"share": 0.2}, known._replace(classes=(2, 8)))
    assert not find_faults_by_counts("natural", {"groups_per_client": 3}, known)
    (fault,) = find_faults_by_counts("natural", {"groups_per_client": 4}, known)
    merged = "owners whose rows are all test examples count only with data.tests: merged"
    assert (fault.path, fault.hint) == ("groups_per_client", f"have at most 1 client; {merged}")
    (fault,) = find_faults_by_counts(
        "difficulty", {"base": {"kind": "natural"}}, known._replace(num_clients=7)
    )
    assert fault.path == "num_clients"
