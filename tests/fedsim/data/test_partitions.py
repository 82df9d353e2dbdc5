"""Properties that hold for every partition, whatever the labels; then even, Dirichlet and sampled ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.data import PARTITIONS, make_partition
from fedsim.data.partition import Partition, deal_examples, partition_from_owners
from fedsim.data.partitions.repair import fill_small_clients
from fedsim.errors import DataError, SpecError
from tests.fedsim.data.labelled import CLASSES, covers_once, federations, make, make_any


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


COMPUTED = [kind for kind in PARTITIONS.own if kind != "file"]
"""Every kind but `file`: see test_partition_files.py."""


@pytest.mark.parametrize("kind", COMPUTED)
@given(federations())
def test_the_same_seed_gives_the_same_partition(kind: str, federation):
    first, second = make_any(kind, federation), make_any(kind, federation)
    assert first.num_clients == second.num_clients == federation[1]
    for client in range(first.num_clients):
        assert np.array_equal(first.client_positions(client), second.client_positions(client))


@pytest.mark.parametrize("kind", [kind for kind in COMPUTED if not PARTITIONS[kind].shares_examples])
@given(federations())
def test_an_example_is_one_clients_at_most(kind: str, federation):
    held = make_any(kind, federation).indices
    assert len(np.unique(held)) == len(held)
    assert np.isin(held, np.arange(len(federation[0]))).all()


@given(federations(), st.sampled_from(["iid", "dirichlet"]))
def test_label_counts_of_all_clients_are_those_of_the_data(federation, kind: str):
    labels, clients, _ = federation
    partition = make(kind, federation)
    counts = sum(partition.count_labels(i, labels, CLASSES) for i in range(clients))
    assert np.array_equal(counts, np.bincount(labels, minlength=CLASSES))
    assert sum(partition.size(i) for i in range(clients)) == len(labels)


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=12), st.data())
def test_filling_up_keeps_totals_and_reaches_the_minimum(rows, data):
    counts = np.array(rows)
    minimum = data.draw(st.integers(0, int(counts.sum()) // len(counts)))
    filled, notes = fill_small_clients(counts, minimum)
    assert np.array_equal(filled.sum(axis=0), counts.sum(axis=0))
    assert filled.min() >= 0
    assert filled.sum(axis=1).min() >= minimum
    assert bool(notes) == bool((counts.sum(axis=1) < minimum).any())


def test_filling_up_takes_a_class_the_client_holds_from_its_largest_holder():
    counts = np.array([[1, 0], [8, 2], [5, 9]])
    filled, notes = fill_small_clients(counts, 3)
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
    partition = partition_from_owners(deal_examples(labels, counts, generator), clients)
    for client in range(clients):
        assert np.array_equal(partition.count_labels(client, labels, CLASSES), counts[client])


def test_views_are_read_only_and_ascending():
    partition = make("dirichlet", (np.arange(100) % CLASSES, 4, 0))
    for client in range(4):
        held = partition.client_positions(client)
        assert (np.diff(held) > 0).all()
        with pytest.raises(ValueError, match="read-only"):
            held[0] = 1


@pytest.mark.parametrize("offsets", [[], [1, 4], [0, 3], [0, 5, 4], [0, 9]])
def test_offsets_that_do_not_cut_the_indices_are_refused(offsets: list[int]):
    with pytest.raises(DataError, match=r"do not cut its 4 indices .*never fall, and end with 4"):
        Partition(np.arange(4), np.array(offsets))


def test_beta_decides_how_skewed_the_clients_are():
    labels = np.arange(10_000) % 10

    def largest_share(beta: float) -> float:
        partition = make_partition(
            "dirichlet", labels=labels, num_clients=20, num_classes=10, seed=0, beta=beta, min_size=10
        )
        counts = np.stack([partition.count_labels(i, labels, 10) for i in range(20)])
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
            "5 clients of at least 3 examples need 15; there are 10",
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
    held = partition.client_positions(999_999)
    assert len(np.unique(held)) == 50
    assert np.array_equal(held, partition.client_positions(999_999))
    assert not np.array_equal(held, partition.client_positions(999_998))


def test_sampled_clients_may_prefer_classes():
    labels = np.arange(5_000) % 10
    partition = make_partition(
        "sampled", labels=labels, num_clients=50, num_classes=10, seed=1, size=60, beta=0.05
    )
    counts = np.stack([partition.count_labels(i, labels, 10) for i in range(50)])
    assert (counts.sum(axis=1) == 60).all()
    assert (counts.max(axis=1) / 60).mean() > 0.6


def test_examples_of_several_labels_are_shared_out_by_their_first():
    labels = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]] * 20, np.float32)
    partition = make_partition("dirichlet", labels=labels, num_clients=3, num_classes=3, seed=0)
    assert covers_once(partition, 60)
    assert sum(partition.count_labels(i, labels, 3) for i in range(3)).tolist() == [20, 20, 20]


def test_dirichlet_of_half_the_data_leaves_the_other_half_to_nobody():
    labels = np.arange(1_000) % 10
    partition = make_partition("dirichlet", labels=labels, num_clients=5, num_classes=10, seed=0, share=0.5)
    assert np.bincount(labels[partition.indices]).tolist() == [50] * 10
    assert len(np.unique(partition.indices)) == 500


@pytest.mark.parametrize(
    ("clients", "examples", "given"),
    [
        (100, 60_000, {"beta": 0.05, "min_size": 10}),
        (100_000, 1_000_000, {"beta": 0.5}),
        (100_000, 1_000_000, {"beta": 0.05, "min_size": 10}),
    ],
)
def test_dirichlet_deals_many_examples_to_many_clients(clients: int, examples: int, given: dict):
    labels = np.arange(examples) % 10
    partition = make_partition(
        "dirichlet", labels=labels, num_clients=clients, num_classes=10, seed=0, **given
    )
    assert len(partition.indices) == examples
