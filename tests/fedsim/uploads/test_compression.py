"""Compression: the compressors in NumPy, exact bytes, identities, error feedback, and every pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import ALGORITHMS, FedAvg, Scaffold
from fedsim.base import rng, tree
from fedsim.core import Algorithm
from fedsim.curriculum import DataCurriculum
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.simulation import simulate
from fedsim.uploads import COMPRESSORS, CompressedUpdates, Compressor, PrivateUpdates, RobustAggregation
from fedsim.uploads.aggregators import Median
from fedsim.uploads.compressors import QSGD, PowerSGD, RandomK, TopK
from fedsim.uploads.model_updates import explain_other_uploads
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick, run

SERVED = [name for name in ALGORITHMS if not explain_other_uploads(ALGORITHMS[name])]


def compressed(compressor: Compressor, base: Algorithm | None = None) -> CompressedUpdates:
    return CompressedUpdates(base=base or FedAvg(), compressor=compressor)


def compress(compressor: Compressor, vector: Any, *address: int) -> tuple[Any, int]:
    found = compressor.compress(torch.from_numpy(vector), rng.stream(0, "test", *address))
    return found.vector.numpy(), found.bytes


VECTOR = np.random.default_rng(0).normal(size=1000)


def test_top_k_keeps_the_largest_entries() -> None:
    found, size = compress(TopK(share=0.0125), VECTOR)
    kept = np.argsort(-np.abs(VECTOR))[:13]
    expected = np.zeros(1000)
    expected[kept] = VECTOR[kept]
    assert np.array_equal(found, expected)
    assert size == 13 * 8


def test_random_k_keeps_the_drawn_entries() -> None:
    found, size = compress(RandomK(share=0.1), VECTOR, 3)
    kept = rng.stream(0, "test", 3).permutation(1000)[:100]
    assert np.array_equal(np.flatnonzero(found), np.sort(kept))
    assert np.array_equal(found[kept], VECTOR[kept])
    assert size == 400


@pytest.mark.slow
@pytest.mark.parametrize("compressor", [RandomK(share=0.25, error_feedback=False), QSGD(bits=4)])
def test_without_feedback_the_mean_is_exact(compressor: Compressor) -> None:
    found = np.mean([compress(compressor, VECTOR, number)[0] for number in range(4000)], axis=0)
    deviation = np.std([compress(compressor, VECTOR, number)[0] for number in range(50)], axis=0).mean()
    assert np.abs(found - VECTOR).mean() < 2 * deviation / np.sqrt(4000)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_qsgd_in_numpy(bits: int) -> None:
    found, size = compress(QSGD(bits=bits, bucket_size=300), VECTOR, 5)
    drawn, levels = rng.stream(0, "test", 5).random((4, 300)), 2 ** (bits - 1) - 1
    for number, start in enumerate(range(0, 1000, 300)):
        part = VECTOR[start : start + 300]
        norm = np.float64(np.float32(np.linalg.norm(part)))
        exact = np.abs(part) / norm * levels
        rounded = np.floor(exact) + (drawn[number, : len(part)] < exact - np.floor(exact))
        expected = np.sign(part) * np.minimum(rounded, levels) / levels * norm
        assert found[start : start + 300] == pytest.approx(expected)
    assert size == 1000 * bits / 8 + 4 * 4


SHAPES = ((20, 30), (7,), (), (8, 3, 4, 4), (1, 8))


def factorise(vector: Any, shapes: Any, stream: Any, rank: int, iterations: int) -> tuple[Any, int]:
    """The tensors of a vector after PowerSGD, as one vector again, and their bytes."""
    found, size = [], 0
    for part in np.split(vector, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]):
        rows = shapes[len(found)][0] if len(shapes[len(found)]) > 1 else 1
        numbers, matrix = rank * (rows + part.size // rows), part.reshape(rows, -1)
        if numbers < part.size:
            right = stream.standard_normal((matrix.shape[1], rank))
            for _ in range(iterations):
                left = np.linalg.qr(matrix @ right)[0]
                right = matrix.T @ left
            matrix = left.astype(np.float32).astype(np.float64) @ right.astype(np.float32).T
        found.append(matrix.ravel())
        size += 4 * min(numbers, part.size)
    return np.concatenate(found), size


def test_power_sgd_in_numpy() -> None:
    """Two matrices of 20 x 30 and 8 x 48 are factorised; the rest is too small and travels whole."""
    method = PowerSGD(rank=3, iterations=2)
    vector = np.random.default_rng(1).normal(size=sum(int(np.prod(shape)) for shape in SHAPES))
    result = method.compress(torch.from_numpy(vector), rng.stream(0, "test"), SHAPES)
    expected, size = factorise(vector, SHAPES, rng.stream(0, "test"), 3, 2)
    assert result.vector.numpy() == pytest.approx(expected, abs=1e-6)
    assert result.bytes == size == 4 * (3 * (20 + 30) + 7 + 1 + 3 * (8 + 48) + 8)


def test_power_sgd_keeps_a_matrix_of_its_rank() -> None:
    draw = np.random.default_rng(2)
    matrix = torch.from_numpy(draw.normal(size=(20, 2)) @ draw.normal(size=(2, 30)))
    result = PowerSGD(rank=2).compress(matrix.flatten(), rng.stream(0, "test"), ((20, 30),))
    torch.testing.assert_close(result.vector.view(20, 30), matrix, rtol=1e-5, atol=1e-5)
    zeros = PowerSGD(rank=2).compress(torch.zeros(600).double(), rng.stream(0, "test"), ((20, 30),))
    assert not zeros.vector.any()


def test_a_bucket_of_zeros_stays() -> None:
    assert compress(QSGD(), np.zeros(5))[0].tolist() == [0.0] * 5


@pytest.mark.parametrize(
    "name", [n if n in ("fedavg", "scaffold") else pytest.param(n, marks=pytest.mark.slow) for n in SERVED]
)
def test_all_entries_are_the_base_algorithm(name: str) -> None:
    population = federation(cohort_size=5, rounds=3)
    plain = run(quick(name), population)
    for compressor in (TopK(share=1.0), RandomK(share=1.0), PowerSGD(rank=100)):
        for one, other in zip(plain, run(compressed(compressor, quick(name)), population), strict=True):
            for (_, a), (_, b) in zip(
                tree.leaves(one.state.params), tree.leaves(other.state.params), strict=True
            ):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
            assert other.traffic == one.traffic


def read_top_k(wanted: Any, shapes: Any, stream: Any) -> tuple[Any, int]:
    kept = np.argsort(-np.abs(wanted), kind="stable")[: -(-len(wanted) // 10)]
    sent = np.zeros_like(wanted)
    sent[kept] = wanted[kept]
    return sent, 8 * len(kept)


def read_power_sgd(wanted: Any, shapes: Any, stream: Any) -> tuple[Any, int]:
    return factorise(wanted, shapes, stream, 1, 3)


@pytest.mark.parametrize(
    ("compressor", "read_by_hand"),
    [(TopK(share=0.1), read_top_k), (PowerSGD(rank=1, iterations=3), read_power_sgd)],
)
def test_three_rounds_in_numpy_with_error_feedback(compressor: Compressor, read_by_hand: Any) -> None:
    population, base = federation([16] * 4, rounds=3), FedAvg()
    method = compressed(compressor)
    pool, before = SerialPool(base, population), base.init_server_state(population.context(0))
    left = {client: 0.0 for client in range(4)}
    for result in run(method, population):
        ctx, read = population.context(result.round - 1), []
        broadcast = base.broadcast(ctx, before)
        origin = tree.flatten(broadcast["params"]).numpy()
        shapes = [shape for _, shape in tree.layout(broadcast["params"])]
        for client in range(4):
            task = pool.worker.loader.make_task(base, ctx, client, broadcast, {}, None)
            change = tree.flatten(base.train_client(ctx, task).upload["params"]).numpy() - origin
            wanted = change + left[client]
            stream = rng.stream(ctx.seed, "compression params", ctx.round, client)
            sent, size = read_by_hand(wanted, shapes, stream)
            left[client] = (wanted - sent).astype(np.float32)
            read.append(sent)
        found = tree.flatten(result.state.params).numpy()
        assert found == pytest.approx(origin + np.mean(read, axis=0), abs=1e-6)
        assert result.traffic.up == 4 * size
        before = result.state


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "feddc"])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_servers_controls_stay_the_mean_of_the_clients(name: str, ordered: bool) -> None:
    """Clients keep what they sent, not what they would have sent without the compression.

    With scores of local models, clients keep a model beside their controls.
    """
    population = federation([16] * 6, rounds=5)
    base = DataCurriculum(base=quick(name), score="local_loss") if ordered else quick(name)
    method = compressed(TopK(share=0.1, error_feedback=False), base)
    pool = SerialPool(method, population)
    *_, last = simulate(method, population, pool)
    kept = [client["base"] if ordered else client for client in pool.client_states().values()]
    checked = {"control", "drift"} & kept[0].keys()
    assert checked
    for part in checked:
        for key, value in getattr(last.state, part).items():
            mean = torch.stack([client[part][key] for client in kept]).mean(0)
            torch.testing.assert_close(value, mean, rtol=1e-4, atol=1e-6)


def test_bytes_are_exact_per_payload() -> None:
    population = federation(cohort_size=5, rounds=1)
    plain = run(Scaffold(), population)[0].traffic
    size = plain.by_payload["params"] // (2 * 5 * 4)
    found = run(compressed(QSGD(bits=4, bucket_size=64), Scaffold()), population)[0].traffic
    each = -(-size // 2) + 4 * -(-size // 64)
    assert found.down == plain.down
    assert found.up == 2 * 5 * each
    assert found.by_payload["params"] == plain.by_payload["params"] // 2 + 5 * each


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("base", [Scaffold(), RobustAggregation(base=FedAvg(), aggregator=Median())])
def test_stacks_and_checkpoints_give_the_same_rounds(name: str, base: Algorithm) -> None:
    population, method = federation(cohort_size=6, rounds=3), compressed(COMPRESSORS[name](), base)
    pool = SerialPool(method, population)
    whole, states = [], []
    for result in simulate(method, population, pool):
        whole.append(result)
        states.append(dict(pool.client_states()))
    rest = SerialPool(method, population)
    middle = Checkpoint(round=1, state=whole[0].state, records=(), client_states=[states[0]])
    resumed = simulate(method, population, rest, resume=middle)
    assert [each.digest for each in resumed] == [each.digest for each in whole[1:]]
    stacked = simulate(method, population, StackedPool(method, population, 3))
    first = next(iter(stacked))
    assert first.traffic == whole[0].traffic


def test_local_privacy_comes_before_compression() -> None:
    private = PrivateUpdates(base=FedAvg(), kind="local", clip=0.5, noise_multiplier=0.0)
    population = federation([16] * 4, rounds=1)
    result = run(compressed(TopK(share=0.1), private), population)[0]
    start = tree.flatten(FedAvg().init_server_state(population.context(0)).params)
    assert float((tree.flatten(result.state.params) - start).norm()) < 0.5


def test_other_uploads_are_refused() -> None:
    with pytest.raises(ValueError, match="no plain model updates"):
        compressed(TopK(), ALGORITHMS["ifca"]())
