"""Attacks: who attacks, what attackers send, and what the record says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, Scaffold
from fedsim.base import tree
from fedsim.core import Algorithm
from fedsim.data.dataset import Dataset, Examples
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.uploads import ATTACKS, Attack, AttackedClients, RobustAggregation
from fedsim.uploads.aggregators import Krum, Mean, Median
from fedsim.uploads.attacks import (
    ALittleIsEnough,
    Backdoor,
    FreeRider,
    Gaussian,
    InnerProductManipulation,
    LabelFlip,
    Scaling,
    SignFlip,
    draw_attackers,
)
from fedsim.uploads.poisoning import poison_examples
from tests.fedsim.federations import federation, partition
from tests.fedsim.methods import run


def attacked(attack: Attack, base: Algorithm | None = None) -> Algorithm:
    algorithm = base or FedAvg()
    if attack.colludes:
        algorithm = RobustAggregation(base=algorithm, aggregator=Mean())
    return AttackedClients(base=algorithm, attack=attack)


def honest_updates(population: Any, base: Algorithm) -> dict[int, Any]:
    """The first round's updates of FedAvg's clients."""
    pool, ctx = SerialPool(base, population), population.context(0)
    state = base.init_server_state(ctx)
    broadcast, found = base.broadcast(ctx, state), {}
    for client in range(population.partition.num_clients):
        task = pool.worker.loader.make_task(base, ctx, client, broadcast, {}, None)
        sent = base.train_client(ctx, task).upload["params"]
        found[client] = tree.flatten(sent).numpy() - tree.flatten(broadcast["params"]).numpy()
    return found


def first_change(population: Any, method: Algorithm) -> Any:
    start = FedAvg().init_server_state(population.context(0)).params
    after = run(method, population)[0].state.params
    return tree.flatten(after).numpy() - tree.flatten(start).numpy()


def test_the_share_of_attackers_is_exact_and_fixed_by_the_seed() -> None:
    assert len(draw_attackers(SignFlip(share=0.25), 3, 10)) == 3  # 2.5 is rounded up
    assert len(draw_attackers(SignFlip(share=0.0), 3, 10)) == 0
    same = draw_attackers(Scaling(share=0.4), 3, 20), draw_attackers(LabelFlip(share=0.4), 3, 20)
    assert same[0].tolist() == same[1].tolist()
    assert same[0].tolist() != draw_attackers(Scaling(share=0.4), 4, 20).tolist()


@pytest.mark.parametrize("name", ATTACKS)
def test_without_attackers_the_run_is_the_base_algorithm(name: str) -> None:
    population, attack = federation(cohort_size=5, rounds=2), ATTACKS[name](share=0.0)
    for plain, found in zip(run(FedAvg(), population), run(attacked(attack), population), strict=True):
        state = found.state.base.base if attack.colludes else found.state.base
        for key, value in plain.state.params.items():
            if attack.colludes:  # the mean of gathered models rounds in another order
                torch.testing.assert_close(value, state.params[key], rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(value, state.params[key])
        assert found.method["attackers"] == []
        assert found.traffic == plain.traffic


def test_what_attackers_send_in_numpy() -> None:
    population = federation([20] * 8, rounds=1)
    honest = honest_updates(population, FedAvg())
    bad = set(draw_attackers(SignFlip(share=0.25), 7, 8).tolist())
    own = np.stack([honest[client] for client in sorted(bad)])
    rest = np.stack([honest[client] for client in honest if client not in bad])
    forged = {
        SignFlip(share=0.25, scale=3.0): -3 * own,
        Scaling(share=0.25, scale=4.0): 4 * own,
        FreeRider(share=0.25): 0 * own,
        ALittleIsEnough(share=0.25, z=1.5): np.tile(own.mean(0) - 1.5 * own.std(0), (2, 1)),
        InnerProductManipulation(share=0.25, epsilon=2.0): np.tile(-2 * rest.mean(0), (2, 1)),
        Backdoor(share=0.25, boost=5.0): 5 * own,
    }
    for attack, sent in forged.items():
        expected = np.concatenate([sent, rest]).mean(0)
        assert first_change(population, attacked(attack)) == pytest.approx(expected, abs=2e-6), attack


def test_noise_is_that_of_the_client_and_round() -> None:
    population = federation([20] * 8, rounds=2)
    method = attacked(Gaussian(share=1.0, std=0.5))
    one, other = run(method, population), run(method, population)
    assert [r.digest for r in one] == [r.digest for r in other]
    noise = first_change(population, method) * np.sqrt(8)
    assert noise.std() == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("attack", [SignFlip(share=0.4), Gaussian(share=0.4), ALittleIsEnough(share=0.4)])
def test_stacked_attackers_send_the_same(attack: Attack) -> None:
    population, method = federation(cohort_size=6, rounds=2), attacked(attack)
    stacked = simulate(method, population, StackedPool(method, population, 3))
    for one, other in zip(run(method, population), stacked, strict=True):
        assert one.method["attackers"] == other.method["attackers"]
        for (_, a), (_, b) in zip(
            tree.leaves(one.state.params), tree.leaves(other.state.params), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_the_record_has_the_share_of_the_attackers() -> None:
    population, attack = federation([20] * 8, rounds=1), Scaling(share=0.25, scale=1e4)
    shares = {}
    for rule in (Mean(), Krum(), Median()):
        base = RobustAggregation(base=FedAvg(), aggregator=rule)
        shares[type(rule)] = run(AttackedClients(base=base, attack=attack), population)[0].method
    assert shares[Mean]["attacker_share"] == 0.25
    assert shares[Krum]["attacker_share"] == 0
    assert set(shares[Krum]["attackers"]) < set(shares[Krum]["excluded_clients"])
    assert "attacker_share" not in shares[Median]


def test_every_payload_is_attacked() -> None:
    population = federation([20] * 6, rounds=1)
    plain = run(Scaffold(), population)[0].state
    lied = run(attacked(SignFlip(share=1.0), Scaffold()), population)[0].state.base
    flat = [tree.flatten(state.control).numpy() for state in (plain, lied)]
    assert flat[1] == pytest.approx(-flat[0], rel=1e-5, abs=1e-7)


def images(count: int = 40) -> Dataset:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 200, (count, 1, 6, 6)).astype(np.uint8), rng.integers(0, 4, count)
    half = count // 2
    return Dataset(
        name="tiny",
        train=Examples(pixels[:half], labels[:half]),
        test=Examples(pixels[half:], labels[half:]),
        num_classes=4,
        input_shape=(1, 6, 6),
        classes=tuple("abcd"),
    )


def test_label_flips_change_the_labels_of_attackers_alone() -> None:
    data, parts = images(), partition([5, 5, 5, 5])
    attack = LabelFlip(share=0.5)
    poisoned, backdoor = poison_examples(attack, data, parts, 3)
    bad = draw_attackers(attack, 3, 4)
    for client in range(4):
        rows = parts.client_positions(client)
        expected = 3 - data.train.y[rows] if client in bad else data.train.y[rows]
        assert poisoned.train.y[rows].tolist() == expected.tolist()
    assert backdoor is None
    assert poisoned.test is data.test
    assert np.array_equal(poisoned.train.x, data.train.x)


def test_a_backdoor_puts_the_trigger_into_a_share_of_the_examples() -> None:
    data, parts = images(), partition([8, 4, 4, 4])
    attack = Backdoor(share=1.0, poisoned=0.5, target=2, size=2)
    poisoned, backdoor = poison_examples(attack, data, parts, 3)
    white = (poisoned.train.x[:, 0, -2:, -2:] == data.train.x.max()).all((1, 2))
    for client, count in enumerate([4, 2, 2, 2]):
        rows = parts.client_positions(client)
        assert white[rows].sum() == count
    assert set(poisoned.train.y[white].tolist()) == {2}
    assert np.array_equal(poisoned.train.y[~white], data.train.y[~white])
    assert np.array_equal(poisoned.train.x[:, :, :4], data.train.x[:, :, :4])
    assert backdoor is not None
    assert len(backdoor) == (data.test.y != 2).sum()
    assert set(backdoor.y.tolist()) == {2}
    assert (backdoor.x[:, 0, -2:, -2:] == data.train.x.max()).all()


def test_the_attack_success_is_a_metric() -> None:
    population = federation(cohort_size=4, rounds=1)
    triggered = population.dataset.test.select_rows(np.arange(9))
    result = run(FedAvg(), replace(population, backdoor=triggered, validation=triggered))[0]
    for what in ("accuracy", "loss"):
        assert result.metrics[f"global_backdoor_{what}"] == result.metrics[f"global_validation_{what}"]


def test_colluding_attackers_need_the_updates_of_all() -> None:
    with pytest.raises(ValueError, match="need RobustAggregation"):
        AttackedClients(base=FedAvg(), attack=ALittleIsEnough())


def test_the_default_z_is_that_of_the_paper() -> None:
    # 50 workers of which 24 are corrupted (section 3.4): s = 26 - 24 = 2, z = quantile of 24 / 26.
    assert ALittleIsEnough()._choose_z(24, 26) == pytest.approx(1.4261, abs=1e-3)
