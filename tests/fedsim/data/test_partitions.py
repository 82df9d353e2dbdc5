"""Properties that hold for every partition, whatever the labels; then each kind's own."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.data import Partition, make_partition
from fedsim.data.partition import deal, from_owners
from fedsim.data.partitions.repair import fill_up
from fedsim.errors import SpecError

CLASSES = 5


@st.composite
def federations(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Labels, a number of clients that they can serve, and a seed."""
    labels = np.array(draw(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=300)))
    return labels, draw(st.integers(1, min(len(labels), 40))), draw(st.integers(0, 5))


def make(kind: str, federation: tuple[np.ndarray, int, int], **given) -> Partition:
    labels, clients, seed = federation
    return make_partition(kind, labels=labels, num_clients=clients, num_classes=CLASSES, seed=seed, **given)


def covers_once(partition: Partition, total: int) -> bool:
    return np.array_equal(np.sort(partition.indices), np.arange(total))


@given(federations())
def test_iid_covers_once_and_evenly(federation):
    partition = make("iid", federation)
    assert covers_once(partition, len(federation[0]))
    assert partition.sizes().max() - partition.sizes().min() <= 1


@given(federations(), st.sampled_from([0.001, 0.05, 0.5, 100.0]))
def test_dirichlet_covers_once_and_keeps_the_minimum(federation, beta: float):
    labels, clients, _ = federation
    minimum = len(labels) // clients
    partition = make("dirichlet", federation, beta=beta, min_size=minimum)
    assert covers_once(partition, len(labels))
    assert partition.sizes().min() >= minimum


@given(federations(), st.sampled_from(["iid", "dirichlet"]))
def test_the_same_seed_gives_the_same_partition(federation, kind: str):
    first, second = make(kind, federation), make(kind, federation)
    assert np.array_equal(first.indices, second.indices)
    assert np.array_equal(first.offsets, second.offsets)


@given(federations(), st.sampled_from(["iid", "dirichlet"]))
def test_label_counts_of_all_clients_are_those_of_the_data(federation, kind: str):
    labels, clients, _ = federation
    partition = make(kind, federation)
    counts = sum(partition.label_counts(i, labels, CLASSES) for i in range(clients))
    assert np.array_equal(counts, np.bincount(labels, minlength=CLASSES))
    assert sum(partition.size(i) for i in range(clients)) == len(labels)


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=12), st.data())
def test_filling_up_keeps_totals_and_reaches_the_minimum(rows, data):
    counts = np.array(rows)
    minimum = data.draw(st.integers(0, int(counts.sum()) // len(counts)))
    filled, notes = fill_up(counts, minimum)
    assert np.array_equal(filled.sum(axis=0), counts.sum(axis=0))
    assert filled.min() >= 0
    assert filled.sum(axis=1).min() >= minimum
    assert bool(notes) == bool((counts.sum(axis=1) < minimum).any())


def test_filling_up_takes_a_class_the_client_holds_from_its_largest_holder():
    counts = np.array([[1, 0], [8, 2], [5, 9]])
    filled, notes = fill_up(counts, 3)
    # Client 2 has 14 examples, client 1 has 10: the two come from client 2, and of class 0.
    assert filled.tolist() == [[3, 0], [8, 2], [3, 9]]
    assert notes == ("1 clients filled up to 3 examples by moving 2 from the largest clients",)


@given(federations())
@settings(max_examples=30)
def test_dealing_gives_exactly_the_counts(federation):
    labels, clients, seed = federation
    generator = np.random.default_rng(seed)
    available = np.bincount(labels, minlength=CLASSES)
    counts = np.stack(
        [generator.multinomial(n, np.full(clients, 1 / clients)) for n in available // 2], axis=1
    )
    partition = from_owners(deal(labels, counts, generator), clients)
    for client in range(clients):
        assert np.array_equal(partition.label_counts(client, labels, CLASSES), counts[client])


def test_views_are_read_only_and_ascending():
    partition = make("dirichlet", (np.arange(100) % CLASSES, 4, 0))
    for client in range(4):
        held = partition.client(client)
        assert (np.diff(held) > 0).all()
        with pytest.raises(ValueError, match="read-only"):
            held[0] = 1


def test_beta_decides_how_skewed_the_clients_are():
    labels = np.arange(10_000) % 10

    def largest_share(beta: float) -> float:
        partition = make_partition(
            "dirichlet", labels=labels, num_clients=20, num_classes=10, seed=0, beta=beta, min_size=10
        )
        counts = np.stack([partition.label_counts(i, labels, 10) for i in range(20)])
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    shares = [largest_share(beta) for beta in (0.05, 0.5, 5.0, 500.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.6
    assert shares[-1] < 0.15


def test_a_hundred_clients_at_a_beta_that_never_ends_by_itself():
    labels = np.arange(60_000) % 10
    partition = make_partition(
        "dirichlet", labels=labels, num_clients=100, num_classes=10, seed=0, beta=0.05, min_size=10
    )
    assert covers_once(partition, 60_000)
    assert partition.sizes().min() == 10
    assert "filled up to 10 examples" in partition.notes[0]


@pytest.mark.parametrize(
    ("kind", "clients", "given", "path", "words"),
    [
        ("iid", 11, {}, "num_clients", "only 10 training examples for 11 clients"),
        ("iid", 0, {}, "num_clients", "at least 1"),
        (
            "dirichlet",
            5,
            {"min_size": 3},
            "min_size",
            "5 clients of at least 3 examples need 15, there are 10",
        ),
        ("dirichlet", 5, {"beta": 0}, "beta", "above 0"),
        ("dirichlett", 5, {}, "kind", "no such partition"),
        ("sampled", 5, {"size": 11}, "size", "only 10 training examples"),
    ],
)
def test_what_the_data_cannot_serve_is_refused(kind: str, clients: int, given: dict, path: str, words: str):
    with pytest.raises(SpecError) as caught:
        make_partition(kind, labels=np.arange(10) % 2, num_clients=clients, num_classes=2, seed=0, **given)
    (fault,) = caught.value.errors
    assert fault.path == path
    assert words in fault.message


def test_a_million_sampled_clients_cost_nothing_until_asked():
    labels = np.arange(5_000) % 10
    partition = make_partition(
        "sampled", labels=labels, num_clients=1_000_000, num_classes=10, seed=1, size=50
    )
    assert partition.num_clients == 1_000_000
    assert partition.size(999_999) == 50
    held = partition.client(999_999)
    assert len(np.unique(held)) == 50
    assert np.array_equal(held, partition.client(999_999))
    assert not np.array_equal(held, partition.client(999_998))


def test_sampled_clients_may_prefer_classes():
    labels = np.arange(5_000) % 10
    partition = make_partition(
        "sampled", labels=labels, num_clients=50, num_classes=10, seed=1, size=60, beta=0.05
    )
    counts = np.stack([partition.label_counts(i, labels, 10) for i in range(50)])
    assert (counts.sum(axis=1) == 60).all()
    assert (counts.max(axis=1) / 60).mean() > 0.6


def test_examples_of_several_labels_are_shared_out_by_their_first():
    labels = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]] * 20, np.float32)
    partition = make_partition("dirichlet", labels=labels, num_clients=3, num_classes=3, seed=0)
    assert covers_once(partition, 60)
    assert sum(partition.label_counts(i, labels, 3) for i in range(3)).tolist() == [20, 20, 20]


def few_classes(federation: tuple[np.ndarray, int, int], classes: int) -> tuple[Partition, np.ndarray] | None:
    labels, clients, _ = federation
    present = len(np.unique(labels))
    if classes > present or classes * clients < present:
        return None
    partition = make("pathological", federation, classes=classes)
    return partition, np.stack([partition.label_counts(i, labels, CLASSES) for i in range(clients)])


@given(federations(), st.integers(1, CLASSES))
def test_pathological_covers_once_and_leaves_nobody_empty(federation, classes: int):
    made = few_classes(federation, classes)
    if made is not None:
        assert covers_once(made[0], len(federation[0]))
        assert made[0].sizes().min() >= 1


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
        counts = np.stack([partition.label_counts(i, labels, 10) for i in range(0, 20, 2)])
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
    classes = [int((partition.label_counts(i, labels, 10) > 0).sum()) for i in range(100)]
    assert max(classes) <= 2
    assert np.mean(classes) > 1.5


def test_label_skew_of_a_fifth_is_two_classes_of_ten():
    labels = np.arange(6_000) % 10
    partition = make_partition("label_skew", labels=labels, num_clients=100, num_classes=10, seed=0)
    assert {int((partition.label_counts(i, labels, 10) > 0).sum()) for i in range(100)} == {2}


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
    largest = partition.label_counts(int(sizes.argmax()), labels, 10)
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
    counts = np.stack([partition.label_counts(i, labels, 3) for i in range(10)])
    assert np.abs(counts - [600, 300, 100]).max() < 60


@given(federations(), st.integers(1, 8))
def test_natural_never_splits_a_group(federation, groups_in_all: int):
    labels, clients, seed = federation
    groups = np.random.default_rng(seed).integers(groups_in_all, size=len(labels)) * 7
    if len(np.unique(groups)) >= clients:
        partition = make("natural", federation, groups=groups)
        assert covers_once(partition, len(labels))
        held = [set(groups[partition.client(i)]) for i in range(clients)]
        assert sum(map(len, held)) == len(set().union(*held))


def test_natural_with_one_client_per_group_keeps_their_order():
    groups = np.array([30, 10, 20, 10])
    partition = make_partition(
        "natural", labels=np.zeros(4, int), num_clients=3, num_classes=1, seed=0, groups=groups
    )
    assert [partition.client(i).tolist() for i in range(3)] == [[1, 3], [2], [0]]


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


def test_dirichlet_of_half_the_data_leaves_the_other_half_to_nobody():
    labels = np.arange(1_000) % 10
    partition = make_partition("dirichlet", labels=labels, num_clients=5, num_classes=10, seed=0, share=0.5)
    assert np.bincount(labels[partition.indices]).tolist() == [50] * 10
    assert len(np.unique(partition.indices)) == 500


@pytest.mark.parametrize(
    ("kind", "given", "path", "words"),
    [
        ("pathological", {"classes": 3}, "classes", "only 2 classes"),
        ("shards", {"shards_per_client": 3}, "shards_per_client", "15 shards of 10 examples"),
        ("natural", {}, "kind", "no natural clients"),
        ("natural", {"groups": np.arange(10) % 4}, "num_clients", "need 5, the data set has 4"),
        ("dirichlet", {"share": 0.2}, "share", "fewer examples than the 5 clients"),
    ],
)
def test_what_the_classes_and_groups_cannot_serve_is_refused(kind: str, given: dict, path: str, words: str):
    with pytest.raises(SpecError) as caught:
        make_partition(kind, labels=np.arange(10) % 2, num_clients=5, num_classes=2, seed=0, **given)
    (fault,) = caught.value.errors
    assert fault.path == path
    assert words in fault.message


@pytest.mark.parametrize(
    ("clients", "examples", "seconds", "given"),
    [
        (100, 60_000, 1.0, {"beta": 0.05, "min_size": 10}),
        (100_000, 1_000_000, 10.0, {"beta": 0.5}),
        (100_000, 1_000_000, 10.0, {"beta": 0.05, "min_size": 10}),
    ],
)
def test_dirichlet_is_fast_enough(clients: int, examples: int, seconds: float, given: dict):
    labels = np.arange(examples) % 10
    start = time.process_time()
    partition = make_partition(
        "dirichlet", labels=labels, num_clients=clients, num_classes=10, seed=0, **given
    )
    assert time.process_time() - start < seconds
    assert len(partition.indices) == examples
