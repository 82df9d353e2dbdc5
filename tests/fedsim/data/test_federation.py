"""The public set, the clients' tests, statistics, and partitions as files."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.data import CONVENTIONS, Dataset, Examples, Partition, make_federation
from fedsim.data.artifact import save_partition
from fedsim.data.federation import Federation, augment_public, take_validation
from fedsim.data.partition_file import load_partition
from fedsim.data.statistics import class_counts, distance_to_all, summarise_counts
from fedsim.errors import DataError, SpecError
from tests.fedsim.data.samples import broken

CLASSES = 5


def numbered(n: int, start: int, seed: int) -> Examples:
    """Examples that carry their own number, so that it can be seen where they went."""
    y = np.random.default_rng(seed).integers(CLASSES, size=n)
    return Examples(np.arange(start, start + n, dtype=np.float32)[:, None], y, y % 2)


def dataset(train: int = 400, test: int = 150) -> Dataset:
    return Dataset("d", numbered(train, 0, 0), numbered(test, 1_000, 1), CLASSES, (1,), tuple("abcde"))


def test_everybody_is_tested_on_everything_by_default():
    federation = make_federation(dataset(), "iid", num_clients=4, seed=0)
    assert federation.tests is None
    assert federation.public is None
    assert federation.train.num_clients == 4


@given(st.floats(0.01, 0.9), st.integers(0, 3))
def test_the_public_set_belongs_to_nobody(share: float, seed: int):
    federation = make_federation(dataset(), "iid", num_clients=4, seed=seed, public=share)
    assert federation.public is not None
    left = federation.dataset
    parts = [federation.public.x, left.train.x, left.test.x]
    assert np.array_equal(np.sort(np.concatenate(parts)[:, 0]), np.r_[0:400, 1_000:1_150])
    assert len(federation.public) == round(400 * share) + round(150 * share)
    assert len(federation.train.indices) == len(left.train)


def test_copies_of_public_images_are_augmented_and_keep_their_labels():
    x = np.random.default_rng(0).integers(256, size=(7, 3, 8, 8), dtype=np.uint8)
    public = Examples(x, np.arange(7))
    assert augment_public(public, ("flip",), 0, seed=1) is public
    more = augment_public(public, ("flip",), 3, seed=1)
    assert more.y.tolist() == 4 * list(range(7))
    assert np.array_equal(more.x[:7], x)
    flipped = [np.array_equal(copy, x[at % 7][..., ::-1]) for at, copy in enumerate(more.x[7:])]
    same = [np.array_equal(copy, x[at % 7]) for at, copy in enumerate(more.x[7:])]
    assert np.array_equal(flipped, ~np.array(same))
    assert 3 < sum(flipped) < 18
    assert np.array_equal(more.x, augment_public(public, ("flip",), 3, seed=1).x)
    assert not np.array_equal(more.x, augment_public(public, ("flip",), 3, seed=2).x)
    with pytest.raises(DataError, match="no images to augment"):
        augment_public(numbered(5, 0, 0), ("flip",), 1, seed=1)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "pathological"])
def test_labels_gives_each_holder_an_nth_of_the_class(kind: str):
    federation = make_federation(dataset(), kind, num_clients=6, seed=0, tests="labels")
    assert federation.tests is not None
    held = class_counts(federation.train, federation.dataset.train.y, CLASSES)
    tested = class_counts(federation.tests, federation.dataset.test.y, CLASSES)
    each = np.bincount(federation.dataset.test.y, minlength=CLASSES) // 6
    assert np.array_equal(tested, np.where(held > 0, each, 0))
    assert len(np.unique(federation.tests.indices)) == len(federation.tests.indices)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])
def test_matched_shares_out_the_whole_test_set_in_the_clients_own_mix(kind: str):
    federation = make_federation(dataset(), kind, num_clients=6, seed=0, tests="matched")
    assert federation.tests is not None
    assert np.array_equal(np.sort(federation.tests.indices), np.arange(150))
    held = class_counts(federation.train, federation.dataset.train.y, CLASSES)
    tested = class_counts(federation.tests, federation.dataset.test.y, CLASSES)
    assert np.abs(tested - held / held.sum(axis=0) * tested.sum(axis=0)).max() <= 1


def test_classes_gives_every_test_example_of_the_classes_held():
    federation = make_federation(dataset(), "pathological", num_clients=6, seed=0, tests="classes")
    assert federation.tests is not None
    labels = federation.dataset.test.y
    for client in range(6):
        mine = np.unique(federation.dataset.train.y[federation.train.client_positions(client)])
        assert np.array_equal(
            federation.tests.client_positions(client), np.flatnonzero(np.isin(labels, mine))
        )


@given(st.integers(1, 20), st.sampled_from(["iid", "dirichlet", "quantity"]), st.integers(0, 3))
def test_merged_cuts_a_quarter_of_each_clients_examples(clients: int, kind: str, seed: int):
    federation = make_federation(dataset(), kind, num_clients=clients, seed=seed, tests="merged")
    assert federation.tests is not None
    whole = federation.dataset
    for client in range(clients):
        train, test = federation.train.size(client), federation.tests.size(client)
        assert test == (train + test) // 4
    used = np.concatenate([whole.train.x[federation.train.indices], whole.test.x[federation.tests.indices]])
    assert np.array_equal(np.sort(used[:, 0]), np.r_[0:400, 1_000:1_150])


def test_merged_cuts_a_share_that_floats_do_not_have():
    """0.29 * 100 is a little less than 29."""
    federation = make_federation(
        dataset(80, 20), "iid", num_clients=1, seed=0, tests="merged", test_share=0.29
    )
    assert federation.tests is not None
    assert federation.tests.size(0) == 29


def test_merged_gives_a_client_train_and_test_examples_of_the_same_classes():
    federation = make_federation(dataset(), "pathological", num_clients=10, seed=0, tests="merged", classes=1)
    assert federation.tests is not None
    for client in range(10):
        (mine,) = np.unique(federation.dataset.train.y[federation.train.client_positions(client)])
        assert (federation.dataset.test.y[federation.tests.client_positions(client)] == mine).all()


def test_validation_shares_out_the_validation_set_after_another_convention():
    left, validation = take_validation(dataset(), 0.25, seed=0)
    assert validation is not None

    def share(tests: str) -> tuple[Federation, Partition | None]:
        made = make_federation(
            left,
            "dirichlet",
            num_clients=6,
            seed=0,
            beta=0.5,
            tests=tests,
            more_tests=["validation"],
            validation=validation,
        )
        return made, made.more_tests["validation"]

    assert share("global")[1] is None
    made, parts = share("classes")
    assert parts is not None
    held = class_counts(made.train, made.dataset.train.y, CLASSES)
    every = np.bincount(validation.y, minlength=CLASSES)
    assert np.array_equal(class_counts(parts, validation.y, CLASSES), np.where(held > 0, every, 0))
    for tests in ("labels", "matched", "merged"):
        made, parts = share(tests)
        assert parts is not None
        assert sorted(parts.indices.tolist()) == list(range(len(validation)))
        held = class_counts(made.train, made.dataset.train.y, CLASSES)
        fair = held / held.sum(0) * every
        assert np.abs(class_counts(parts, validation.y, CLASSES) - fair).max() < 1


@pytest.mark.parametrize("tests", [each for each in CONVENTIONS if each != "validation"])
def test_the_same_seed_gives_the_same_federation(tests: str):
    made = [
        make_federation(dataset(), "dirichlet", num_clients=5, seed=3, public=0.1, tests=tests)
        for _ in range(2)
    ]
    assert np.array_equal(made[0].train.indices, made[1].train.indices)
    if tests != "global":
        assert made[0].tests is not None
        assert made[1].tests is not None
        assert np.array_equal(made[0].tests.indices, made[1].tests.indices)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"public": 1.0}, "public"),
        ({"tests": "globall"}, "tests"),
        ({"tests": "validation"}, "tests"),
        ({"more_tests": ["validation"]}, "more_tests"),
        ({"num_clients": 90, "tests": "labels"}, "tests"),
        ({"kind": "sampled", "size": 5, "tests": "matched"}, "tests"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict, path: str):
    with pytest.raises(SpecError) as caught:
        make_federation(dataset(), **({"kind": "iid", "num_clients": 4, "seed": 0} | given))
    assert caught.value.errors[0].path == path


def test_class_counts_and_distances_by_hand():
    """Two clients of classes (0, 0, 1) and (1,): shares (2/3, 1/3) and (0, 1), together (1/2, 1/2).

    Half the sums of absolute differences: (1/6 + 1/6) / 2 = 1/6 and (1/2 + 1/2) / 2 = 1/2.
    """
    partition = Partition(np.array([0, 1, 2, 3]), np.array([0, 3, 4]))
    counts = class_counts(partition, np.array([0, 0, 1, 1]), 2)
    assert counts.tolist() == [[2, 1], [0, 1]]
    assert distance_to_all(counts) == pytest.approx([1 / 6, 1 / 2])
    assert class_counts(partition, np.array([0, 0, 1, 1]), 2, clients=[1]).tolist() == [[0, 1]]
    figures = summarise_counts(counts, partition.sizes())
    assert figures["sizes"]["max"] == 3
    assert figures["class_totals"] == [2, 2]
    assert figures["distance_to_all"]["mean"] == pytest.approx(1 / 3)


def test_a_partition_is_saved_with_its_statistics_and_read_back(tmp_path):
    federation = make_federation(dataset(), "dirichlet", num_clients=5, seed=3, beta=0.1, tests="matched")
    about = {"kind": "dirichlet", "beta": 0.1, "seed": 3}
    arrays_file, card_file = save_partition(tmp_path / "deep" / "part", federation, about)
    partition, card = load_partition(tmp_path / "deep" / "part")
    assert np.array_equal(partition.indices, federation.train.indices)
    assert np.array_equal(partition.offsets, federation.train.offsets)
    assert partition.notes == federation.train.notes
    assert card["about"] == about
    assert card["statistics"]["examples"] == 400
    with np.load(arrays_file) as arrays:
        assert arrays["counts"].sum(axis=1).tolist() == federation.train.sizes().tolist()
        assert "test_indices" in arrays
    assert json.loads(card_file.read_text()) == card
    assert sorted(p.name for p in card_file.parent.iterdir()) == ["part.json", "part.npz"]


def test_a_damaged_partition_is_refused(tmp_path):
    federation = make_federation(dataset(), "iid", num_clients=5, seed=3)
    save_partition(tmp_path / "one", federation, {})
    save_partition(tmp_path / "two", make_federation(dataset(), "iid", num_clients=5, seed=4), {})
    (tmp_path / "one.npz").write_bytes((tmp_path / "two.npz").read_bytes())
    with pytest.raises(DataError, match=r"one\.npz: is not the partition that one\.json describes"):
        load_partition(tmp_path / "one")
    for damaged in broken((tmp_path / "two.npz").read_bytes()):
        (tmp_path / "one.npz").write_bytes(damaged)
        with pytest.raises(DataError, match="not a saved partition"):
            load_partition(tmp_path / "one")
    with pytest.raises(DataError, match="not a saved partition"):
        load_partition(tmp_path / "three")


def test_a_sampled_partition_has_nothing_to_save(tmp_path):
    with pytest.raises(SpecError, match="nothing to save"):
        save_partition(tmp_path / "p", make_federation(dataset(), "sampled", num_clients=5, seed=3), {})
