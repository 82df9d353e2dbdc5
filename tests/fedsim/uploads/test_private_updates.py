"""Private updates: identities, noise held against statistics, clipping, budgets, and every pool."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import ALGORITHMS, FedAvg, Scaffold
from fedsim.base import rng, tree
from fedsim.core import Algorithm, Context, LocalTraining, ReducedUpdates
from fedsim.core.capabilities import select_cohort
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.simulation import simulate
from fedsim.errors import FedsimError
from fedsim.uploads import AdaptiveClip, AttackedClients, PrivateUpdates
from fedsim.uploads.attacks import Scaling, draw_attackers
from fedsim.uploads.model_updates import explain_other_uploads
from fedsim.uploads.private_updates import _draw_poisson_cohort
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick, run

pytest.importorskip("opacus")

# The weights of qfedavg are losses, and all clients of privacy have the weight 1: the spec refuses it.
SERVED = [name for name in ALGORITHMS if not explain_other_uploads(ALGORITHMS[name]) and name != "qfedavg"]
WIDE = 1e9


def private(base: Algorithm | None = None, **changes: Any) -> PrivateUpdates:
    return PrivateUpdates(base=base or FedAvg(), **{"noise_multiplier": 0.0, "clip": WIDE, **changes})


def params(result: Any) -> Any:
    return tree.flatten(result.state.params).numpy()


def start(population: Any) -> Any:
    return tree.flatten(FedAvg().init_server_state(population.context(0)).params).numpy()


@pytest.mark.parametrize(
    "name", [n if n in ("fedavg", "scaffold") else pytest.param(n, marks=pytest.mark.slow) for n in SERVED]
)
@pytest.mark.parametrize("kind", ["central", "tree", "local"])
def test_no_noise_and_a_wide_bound_is_the_base_algorithm(name: str, kind: str) -> None:
    population = federation([16] * 6, rounds=3)
    plain = run(quick(name), population)
    for one, other in zip(plain, run(private(quick(name), kind=kind), population), strict=True):
        assert params(other) == pytest.approx(params(one), rel=1e-4, abs=1e-5)
        assert other.traffic == one.traffic
        assert other.method["privacy"]["epsilon"] is None


def test_three_rounds_in_numpy() -> None:
    """Clipped updates, their sum, the addressed noise, divided by K."""
    population, clip, noise = federation([16] * 5, rounds=3), 0.3, 0.1
    method, base = private(clip=clip, noise_multiplier=noise), FedAvg()
    pool, before = SerialPool(base, population), base.init_server_state(population.context(0))
    for result in run(method, population):
        ctx = population.context(result.round - 1)
        broadcast, total = base.broadcast(ctx, before), 0.0
        origin = tree.flatten(broadcast["params"]).numpy()
        for client in range(5):
            task = pool.worker.loader.make_task(base, ctx, client, broadcast, {}, None)
            change = tree.flatten(base.train_client(ctx, task).upload["params"]).numpy() - origin
            total = total + change * min(1, clip / np.linalg.norm(change))
        drawn = rng.stream(ctx.seed, "privacy", ctx.round).standard_normal(len(origin))
        assert params(result) == pytest.approx(origin + (total + noise * clip * drawn) / 5, abs=1e-6)
        before = result.state.base


def test_five_rounds_with_a_tree_in_numpy() -> None:
    """The model is the first one, plus the running sum of clipped updates and of its nodes' noise, over K."""
    population, clip, noise = federation([16] * 5, cohort_size=2, rounds=5), 0.3, 0.1
    method, base = private(clip=clip, noise_multiplier=noise, kind="tree"), FedAvg()
    pool, before = SerialPool(base, population), base.init_server_state(population.context(0))
    first, total = start(population), 0.0
    nodes = {1: [(0, 0)], 2: [(1, 0)], 3: [(1, 0), (0, 2)], 4: [(2, 0)], 5: [(2, 0), (0, 4)]}
    for result in run(method, population):
        ctx = population.context(result.round - 1)
        broadcast = base.broadcast(ctx, before)
        origin = tree.flatten(broadcast["params"]).numpy()
        for client in result.cohort:
            task = pool.worker.loader.make_task(base, ctx, client, broadcast, {}, None)
            change = tree.flatten(base.train_client(ctx, task).upload["params"]).numpy() - origin
            total = total + change * min(1, clip / np.linalg.norm(change))
        drawn = [
            rng.stream(ctx.seed, "privacy tree", 0, *node).standard_normal(len(origin))
            for node in nodes[result.round]
        ]
        expected = first + (total + noise * clip * np.sum(drawn, axis=0)) / 2
        assert params(result) == pytest.approx(expected, abs=1e-5)
        before = result.state.base


def test_with_a_tree_every_client_takes_its_turn() -> None:
    population = federation([16] * 5, cohort_size=2, rounds=6)
    cohorts = [result.cohort for result in run(private(kind="tree"), population)]
    assert sorted(client for cohort in cohorts[:3] for client in cohort) == [0, 1, 2, 3, 4]
    assert [len(cohort) for cohort in cohorts] == [2, 2, 1] * 2
    assert cohorts[3:] == cohorts[:3]


def test_the_budget_of_a_tree_grows_with_its_nodes() -> None:
    """Two rounds of one client: its leaves, and later the node of both, where it counts twice."""
    from opacus.accountants import RDPAccountant

    population = federation([16] * 3, rounds=3)
    for tree_rounds, releases in ((None, [1, 1 + 1 + 4, 1 + 1 + 4 + 1]), (1, [1, 2, 3])):
        method = private(noise_multiplier=4.0, clip=1.0, kind="tree", tree_rounds=tree_rounds)
        for result, count in zip(run(method, population), releases, strict=True):
            book = RDPAccountant()
            book.history = [(4.0, 1.0, count)]
            said = result.method["privacy"]
            assert (said["kind"], said["noise_multiplier"]) == ("tree", 4.0)
            assert said["epsilon"] == pytest.approx(book.get_epsilon(1e-5), abs=1e-5)


@pytest.mark.parametrize("kind", ["central", "local"])
def test_the_noise_has_the_standard_deviation_that_was_asked_for(kind: str) -> None:
    """Over 16 times 1,700 numbers the estimate is right to 0.5 %: noise too small by 3 % would fail."""
    population = federation([16] * 4, rounds=4, hidden=96)
    clip, noise = 0.5, 2.0
    method = private(kind=kind, clip=clip, noise_multiplier=noise)
    residues, before = [], start(population)
    for result in run(method, population):
        residues.append(params(result) - before)
        before = params(result)
    # Four clipped updates over 4: their norm is at most clip, spread over all coordinates.
    expected = clip * noise * (1 / 4 if kind == "central" else 1 / 2)
    signal = clip / np.sqrt(len(before))
    found = np.std(residues)
    assert signal < 0.05 * expected
    assert found == pytest.approx(expected, rel=0.03)


def test_no_client_moves_the_sum_by_more_than_the_bound() -> None:
    population = federation([16] * 4, rounds=1)
    attacked = AttackedClients(base=FedAvg(), attack=Scaling(share=1.0, scale=1e6))
    result = run(private(attacked, clip=0.25), population)[0]
    change = params(result) - start(population)
    assert np.linalg.norm(change) <= 0.25 * 1.001


def test_clients_that_diverge_move_the_sum_by_nothing() -> None:
    local = LocalTraining(epochs=2, batch_size=8, lr=1e30)
    population = federation([16] * 4, rounds=1, local=local)
    assert not np.isfinite(params(run(FedAvg(), population)[0])).all()
    assert (params(run(private(clip=0.25), population)[0]) == start(population)).all()


def test_one_bound_covers_all_payloads() -> None:
    population = federation([16] * 4, rounds=1)
    method = private(Scaffold(), clip=0.25, kind="local")
    pool, ctx = SerialPool(method, population), population.context(0)
    state = method.init_server_state(ctx)
    broadcast = method.broadcast(ctx, state)
    task = pool.worker.loader.make_task(method, ctx, 1, broadcast, {}, None)
    upload = method.train_client(ctx, task).upload
    parts = [
        tree.flatten(upload["params"]) - tree.flatten(broadcast["params"]),
        tree.flatten(upload["control"]),
    ]
    assert float(torch.cat(parts).norm()) == pytest.approx(0.25, rel=1e-4)


def test_cohorts_are_poisson_samples() -> None:
    population = federation([4] * 40, cohort_size=8, rounds=1)
    method = private()
    sizes, seen = [], np.zeros(40)
    for number in range(400):
        ctx = population.context(number)
        cohort = list(select_cohort(method, ctx, None, np.random.default_rng(0)))
        sizes.append(len(cohort))
        seen[cohort] += 1
    assert np.mean(sizes) == pytest.approx(8, rel=0.05)
    assert np.var(sizes) == pytest.approx(40 * 0.2 * 0.8, rel=0.2)
    assert (np.abs(seen / 400 - 0.2) < 0.08).all()


@dataclass(frozen=True, kw_only=True)
class Counting(FedAvg):
    """Notes what the server sees of a cohort."""

    seen: list[Any] = field(default_factory=list)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        self.seen.append((reduced.clients, reduced.weights, reduced.num_examples))
        return super().aggregate(ctx, state, reduced)


def test_the_algorithm_does_not_learn_who_came() -> None:
    population, base = federation([16] * 10, cohort_size=4, rounds=5), Counting()
    sizes = {len(result.cohort) for result in run(private(base), population)}
    assert len(sizes) > 1
    assert base.seen == [((0, 1, 2, 3), (1, 1, 1, 1), (1, 1, 1, 1))] * 5


def test_the_record_has_the_attackers_that_came() -> None:
    population, attack = federation([9] * 20, cohort_size=8, rounds=4), Scaling(share=0.5)
    bad = set(draw_attackers(attack, 7, 20).tolist())
    for result in run(private(AttackedClients(base=FedAvg(), attack=attack)), population):
        assert result.method["attackers"] == [client for client in result.cohort if client in bad]


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "feddc"])
def test_the_servers_controls_stay_the_mean_of_the_clients(name: str) -> None:
    """Clients keep what they sent: clipped, and with their own noise."""
    population = federation([16] * 6, rounds=5)
    method = private(quick(name), kind="local", clip=0.5, noise_multiplier=0.1)
    pool = SerialPool(method, population)
    *_, last = simulate(method, population, pool)
    kept = list(pool.client_states().values())
    checked = {"control", "drift"} & kept[0].keys()
    assert checked
    for part in checked:
        for key, value in getattr(last.state.base, part).items():
            mean = torch.stack([client[part][key] for client in kept]).mean(0)
            torch.testing.assert_close(value, mean, rtol=1e-4, atol=1e-6)


def test_an_empty_sample_changes_nothing_but_noise() -> None:
    population = federation([16] * 4, cohort_size=1, rounds=12)
    sizes = []
    method, before = private(), start(population)
    for result in run(method, population):
        empty = not len(_draw_poisson_cohort(population.context(result.round - 1)))
        sizes.append(empty)
        if empty:
            assert params(result) == pytest.approx(before, abs=1e-7)
        before = params(result)
    assert any(sizes)
    assert not all(sizes)


def test_the_bound_follows_the_quantile() -> None:
    population = federation([16] * 8, rounds=16)
    method = private(clip=50.0, adaptive=AdaptiveClip(quantile=0.5, learning_rate=1.0))
    results = run(method, population)
    bounds = [result.method["privacy"]["clip"] for result in results]
    assert bounds[0] == pytest.approx(50 * np.exp(-1.0 * (1 - 0.5)))
    assert bounds[-1] < 5
    assert results[0].traffic.by_payload["clip"] == results[0].traffic.by_payload["below"] == 8 * 4


def test_the_noise_of_the_count_is_paid_for() -> None:
    ctx = federation([16] * 10).context(0)
    method = private(noise_multiplier=0.8, adaptive=AdaptiveClip(count_noise=2.0))
    updates = method._update_noise(ctx)
    assert updates > 0.8
    # The vector (update / C, bit) has the noise multipliers z' and 2 x 2.0: together z.
    assert (updates**-2 + (2 * 2.0) ** -2) ** -0.5 == pytest.approx(0.8)


def test_the_budget_of_a_record_grows_as_the_accountant_says() -> None:
    from opacus.accountants import RDPAccountant

    population = federation([16] * 10, cohort_size=5, rounds=3)
    book = RDPAccountant()
    for result in run(private(noise_multiplier=2.0, clip=1.0, delta=1e-4), population):
        book.step(noise_multiplier=2.0, sample_rate=0.5)
        said = result.method["privacy"]
        assert said["epsilon"] == pytest.approx(book.get_epsilon(1e-4), abs=1e-5)
        assert (said["delta"], said["noise_multiplier"], said["clip"]) == (1e-4, 2.0, 1.0)


def test_a_shuffler_changes_the_budget_and_the_bytes_alone() -> None:
    population = federation(cohort_size=6, rounds=2)
    changes: dict[str, Any] = {"kind": "local", "noise_multiplier": 2.0, "clip": 1.0}
    alone, shuffled = (run(private(shuffled=given, **changes), population) for given in (False, True))
    assert [each.digest for each in shuffled] == [each.digest for each in alone]
    assert shuffled[0].traffic.by_payload["envelope"] == 6 * 60
    assert shuffled[0].traffic.up == alone[0].traffic.up + 6 * 60
    # Six clients are too few for the theorem: the budget is that without a shuffler.
    assert [each.method for each in shuffled] == [each.method for each in alone]
    with pytest.raises(ValueError, match="leave shuffled out"):
        private(shuffled=True)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"kind": "local", "shuffled": True},
        pytest.param({"kind": "local"}, marks=pytest.mark.slow),
        {"kind": "tree", "tree_rounds": 2},
        {"adaptive": AdaptiveClip(count_noise=3.0)},
    ],
)
def test_stacks_and_checkpoints_give_the_same_rounds(changes: Any) -> None:
    population = federation(cohort_size=6, rounds=3)
    method = private(clip=0.5, noise_multiplier=0.5, **changes)
    whole = run(method, population)
    stacked = simulate(method, population, StackedPool(method, population, 3))
    for one, other in zip(whole, stacked, strict=True):
        assert (one.cohort, one.traffic) == (other.cohort, other.traffic)
        assert params(other) == pytest.approx(params(one), rel=1e-3, abs=1e-4)
    middle = Checkpoint(round=1, state=whole[0].state, records=(), client_states=())
    rest = simulate(method, population, SerialPool(method, population), resume=middle)
    assert [each.digest for each in rest] == [each.digest for each in whole[1:]]


def test_what_does_not_suit() -> None:
    with pytest.raises(ValueError, match="no plain model updates"):
        private(ALGORITHMS["ifca"]())
    with pytest.raises(ValueError, match="leave adaptive out"):
        private(kind="local", adaptive=AdaptiveClip())
    with pytest.raises(ValueError, match="of tree privacy is fixed"):
        private(kind="tree", adaptive=AdaptiveClip())
    with pytest.raises(ValueError, match="central privacy has no tree"):
        private(tree_rounds=4)
    with pytest.raises(FedsimError, match="count_noise has to be above"):
        run(private(noise_multiplier=9.0, adaptive=AdaptiveClip()), federation(rounds=1))
