"""How work is cut: examples into batches, a cohort into blocks, blocks into spans and shares; their sums."""

from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsim.clients.sampling import draw_batches
from fedsim.core import Pacing
from fedsim.engine.blocks import (
    MOST_BLOCKS,
    Node,
    TreeSum,
    count_blocks,
    cut_evenly,
    cut_into_blocks,
    cut_into_spans,
)


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 20))
def test_an_epoch_shows_every_example_once(examples: int, steps: int, batch: int) -> None:
    drawn = list(draw_batches(np.random.default_rng(0), examples, steps, batch))
    assert len(drawn) == steps
    per_epoch = -(-examples // batch)
    for epoch in range(steps // per_epoch):
        rows = np.concatenate(drawn[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(rows) == list(range(examples))


@given(st.integers(1, 50), st.integers(1, 30), st.integers(1, 20), st.integers(0, 5))
def test_pacing_that_opens_everything_is_the_usual_loop(
    examples: int, steps: int, batch: int, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(examples)
    pacing = Pacing(order, np.full(steps, examples))
    usual = draw_batches(np.random.default_rng(seed), examples, steps, batch)
    paced = draw_batches(np.random.default_rng(seed), examples, steps, batch, pacing)
    for a, b in zip(usual, paced, strict=True):
        assert a.tolist() == b.tolist()


@given(st.integers(1, 50), st.integers(1, 30), st.integers(1, 20), st.data())
def test_pacing_opens_only_what_it_says(examples: int, steps: int, batch: int, data: Any) -> None:
    order = np.array(data.draw(st.permutations(range(examples))))
    limits = np.array(data.draw(st.lists(st.integers(1, examples), min_size=steps, max_size=steps)))
    for limit, rows in zip(
        limits,
        draw_batches(np.random.default_rng(0), examples, steps, batch, Pacing(order, limits)),
        strict=True,
    ):
        assert 1 <= len(rows) <= min(batch, limit)
        assert len(rows) == min(batch, limit) or limit == examples  # only an epoch's last batch is smaller
        assert len(set(rows.tolist())) == len(rows)
        assert set(rows.tolist()) <= set(order[:limit].tolist())


def test_pacing_without_an_order_opens_others_at_every_step() -> None:
    pacing = Pacing(None, np.full(400, 5))
    seen = np.bincount(
        np.concatenate(list(draw_batches(np.random.default_rng(0), 20, 400, 4, pacing))), minlength=20
    )
    # each example is expected 400 * 4 / 20 = 80 times, with a standard deviation of sqrt(400 * .2 * .8) = 8
    assert np.abs(seen - 80).max() < 4.5 * 8


@given(st.lists(st.integers(0, 400), min_size=1, max_size=300, unique=True), st.integers(1, 3))
def test_blocks_hold_every_client_once_and_one_architecture(cohort: list[int], models: int) -> None:
    blocks = cut_into_blocks(cohort, lambda client: client % 13 + 1, models)
    assert sorted(client for block in blocks for client in block) == sorted(cohort)
    for block in blocks:
        assert len({client % models for client in block}) == 1


@given(
    st.integers(0, 4000),
    st.lists(st.integers(1, 70), min_size=1, max_size=3),
)
def test_as_many_workers_have_something_to_do_as_there_are_blocks(
    clients: int, stack_sizes: list[int]
) -> None:
    cohort = range(0, 2 * clients, 2)
    blocks = cut_into_blocks(
        cohort, lambda client: client % 13 + 1, len(stack_sizes), lambda model: stack_sizes[model]
    )
    assert count_blocks(cohort, stack_sizes) == len(blocks) <= MOST_BLOCKS * len(stack_sizes)


def test_the_largest_clients_are_blocks_by_themselves() -> None:
    """Who waits for the largest one waits for nobody else's work beside it."""
    blocks = cut_into_blocks(range(1000), lambda client: 1000 if client < 16 else 1)
    assert max(map(len, blocks)) == 1
    assert sorted(client for block in blocks[:16] for client in block) == list(range(16))


MOST = st.none() | st.integers(1, 70)
WORK = st.lists(st.integers(1, 20), min_size=1, max_size=130)


@given(WORK, st.integers(1, 9), MOST)
def test_spans_cover_every_block_once_in_order(work: list[int], workers: int, most: int | None) -> None:
    cuts = [list(span) for span in cut_into_spans(work, workers, most)]
    assert [number for mine in cuts for number in mine] == list(range(len(work)))
    assert all(1 <= len(mine) <= (most or len(work)) for mine in cuts)


@given(WORK, st.integers(1, 9), MOST, st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_how_the_tree_is_cut_and_on_who_comes_first(
    work: list[int], workers: int, most: int | None, random: Random
) -> None:
    """Addition is written out, so that two sums agree only if the very same additions were made."""

    def tree_sum(nodes: Iterable[tuple[Node, str]]) -> TreeSum:
        total = TreeSum(lambda a, b: f"({a}+{b})")
        for node, value in nodes:
            total.add_node(node, value)
        return total

    leaves = [(Node(0, number), str(number)) for number in range(len(work))]
    for cuts in (cut_into_spans(work, workers, most), cut_evenly(len(work), workers)):
        parts = [tree_sum(leaves[span.start : span.stop]).nodes for span in cuts]
        nodes = [node for part in parts for node in part]
        assert tree_sum(nodes).total() == tree_sum(leaves).total()
        random.shuffle(nodes)
        assert tree_sum(nodes).total() == tree_sum(leaves).total()


def test_few_sums_are_held_while_spans_end_about_in_turn() -> None:
    """1,000 clients on 160 workers: their sums would take 100 GB for a model of 100 MB."""
    spans = list(cut_into_spans([1] * 1000, 160))
    total, held = TreeSum(lambda a, b: a + b), 0
    random = Random(0)
    for span in sorted(spans, key=lambda span: span.start + random.uniform(0, 50)):
        part = TreeSum(lambda a, b: a + b)
        for number in span:
            part.add_node(Node(0, number), 1)
        for node, value in part.nodes:
            total.add_node(node, value)
        held = max(held, len(total.nodes))
    assert total.total() == 1000
    assert held < 64 < len(spans)


@given(st.integers(1, 130), st.integers(1, 9))
def test_shares_cover_every_block_once_and_are_at_most_one_for_each_worker(blocks: int, workers: int) -> None:
    cuts = [list(span) for span in cut_evenly(blocks, workers)]
    assert [number for mine in cuts for number in mine] == list(range(blocks))
    assert all(cuts)
    assert len(cuts) <= workers


def test_shares_are_cut_where_few_sums_result() -> None:
    assert list(cut_evenly(50, 2)) == [range(24), range(24, 50)]


@given(WORK, st.integers(1, 9), MOST)
def test_a_span_is_the_whole_of_one_subtree(work: list[int], workers: int, most: int | None) -> None:
    for span in cut_into_spans(work, workers, most):
        size = 1 << (len(span) - 1).bit_length()
        assert span.start % size == 0
        assert len(span) == size or span.stop == len(work)


def test_spans_are_few_and_end_small_so_that_no_worker_waits_long() -> None:
    assert [len(span) for span in cut_into_spans([5] * 50, 2)] == [16, 16, 8, 8, 1, 1]
    assert [len(span) for span in cut_into_spans([5] * 64, 2)] == [16, 16, 8, 8, 4, 4, 2, 2, 2, 2]
    assert [len(span) for span in cut_into_spans([5] * 64, 2, most=5)] == [4] * 14 + [2] * 4
    # A thousand blocks take hardly more messages, each with one sum, than sixty-four do.
    assert [len(list(cut_into_spans([5] * 1000, workers))) for workers in (1, 4, 16, 64)] == [5, 21, 84, 296]
    assert [len(list(cut_into_spans([5] * 64, workers))) for workers in (1, 4, 16, 64)] == [5, 20, 48, 64]
