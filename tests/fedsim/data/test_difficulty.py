"""The difficulty partition, on losses that are made up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.data import Partition, deal_by_difficulty, make_partition
from fedsim.errors import SpecError
from tests.fedsim.federations import loss_spread

LABELS = np.random.default_rng(0).integers(4, size=800)
LOSSES = np.random.default_rng(1).exponential(size=800)


def base(seed: int = 0, clients: int = 7) -> Partition:
    return make_partition("dirichlet", labels=LABELS, num_clients=clients, num_classes=4, seed=seed, beta=0.3)


def counts(partition: Partition) -> np.ndarray:
    return np.stack([partition.count_labels(i, LABELS, 4) for i in range(partition.num_clients)])


@given(st.floats(0, 1), st.integers(0, 3), st.integers(1, 20))
def test_every_count_stays_exactly_what_it_was(f_ord: float, seed: int, clients: int):
    before = base(seed, clients)
    after = deal_by_difficulty(before, LABELS, LOSSES, f_ord, seed)
    assert np.array_equal(counts(after), counts(before))
    assert np.array_equal(np.sort(after.indices), np.arange(800))


def test_by_hand():
    """One class, losses 0..9 at positions 9..0, three clients of 2, 3 and 5 examples.

    f_ord = 1: the easiest two go to client 0, the next three to client 1, the rest to client 2.
    """
    owners = Partition(np.arange(10), np.array([0, 2, 5, 10]))
    after = deal_by_difficulty(owners, np.zeros(10, int), np.arange(10)[::-1], 1.0, 0)
    assert [after.client_positions(i).tolist() for i in range(3)] == [[8, 9], [5, 6, 7], [0, 1, 2, 3, 4]]


def test_half_in_order_takes_items_from_where_the_clients_before_end():
    """f_ord = 0.5 of 2, 4 and 4 is 1, 2 and 2 items, beginning at items 0, 2 and 6."""
    owners = Partition(np.arange(10), np.array([0, 2, 6, 10]))
    after = deal_by_difficulty(owners, np.zeros(10, int), np.arange(10), 0.5, 0)
    for client, items in enumerate([{0}, {2, 3}, {6, 7}]):
        assert items <= set(after.client_positions(client).tolist())


def test_order_makes_clients_consistent_and_low_numbers_easy():
    iid = make_partition("iid", labels=LABELS, num_clients=20, num_classes=4, seed=0)
    spreads, means = {}, {}
    for f_ord in (0.0, 0.5, 1.0):
        after = deal_by_difficulty(iid, LABELS, LOSSES, f_ord, 0)
        spreads[f_ord] = loss_spread(after, LOSSES).mean()
        means[f_ord] = np.array([LOSSES[after.client_positions(i)].mean() for i in range(20)])
    assert spreads[0.0] > spreads[0.5] > 3 * spreads[1.0]
    assert np.corrcoef(means[1.0], np.arange(20))[0, 1] > 0.8
    assert abs(np.corrcoef(means[0.0], np.arange(20))[0, 1]) < 0.5


def test_examples_that_the_base_left_out_stay_out():
    half = make_partition("dirichlet", labels=LABELS, num_clients=5, num_classes=4, seed=0, share=0.5)
    after = deal_by_difficulty(half, LABELS, LOSSES, 0.7, 0)
    assert np.array_equal(np.sort(after.indices), np.sort(half.indices))


@pytest.mark.parametrize(
    ("losses", "f_ord", "path"),
    [(LOSSES, 1.5, "f_ord"), (LOSSES[:-1], 0.5, "losses"), (np.full(800, np.nan), 0.5, "kind")],
)
def test_wrong_arguments_are_refused(losses: np.ndarray, f_ord: float, path: str):
    with pytest.raises(SpecError) as caught:
        deal_by_difficulty(base(), LABELS, losses, f_ord, 0)
    assert caught.value.errors[0].path == path


def test_an_expert_that_has_diverged_is_named_with_a_way_out() -> None:
    losses = LOSSES.astype(float)
    losses[:2] = np.nan, np.inf
    words = rf"kind.*has diverged: its loss is not finite for 2 of {len(losses):,} examples.*scale the inputs"
    with pytest.raises(SpecError, match=words):
        deal_by_difficulty(base(), LABELS, losses, 0.5, 0)
