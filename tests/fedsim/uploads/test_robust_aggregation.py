"""Robust aggregation in runs: identities, a recomputation in NumPy, every pool, bytes and state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsim.algorithms import ALGORITHMS, FedAvg, Scaffold
from fedsim.base import tree
from fedsim.core import Algorithm, ClientTask, ClientUpdate, Context, Reduction
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.simulation import simulate
from fedsim.models import make_net
from fedsim.uploads import AGGREGATORS, Aggregator, RobustAggregation
from fedsim.uploads.aggregators import (
    Combined,
    FLTrust,
    FoolsGold,
    Krum,
    Mean,
    Median,
    NormClipping,
    TrimmedMean,
)
from fedsim.uploads.model_updates import explain_other_uploads
from tests.fedsim.federations import federation
from tests.fedsim.methods import quick, run

SERVED = [name for name in ALGORITHMS if not explain_other_uploads(ALGORITHMS[name])]
FAST = ("fedavg", "scaffold", "mimelite")


@dataclass(frozen=True, kw_only=True)
class Recording(Aggregator):
    """A median that notes the updates of every round."""

    seen: list[Any] = field(default_factory=list)

    def combine(self, updates: Tensor, weights: Tensor, beside: Tensor) -> Combined:
        self.seen.append((updates.numpy(), weights.numpy()))
        return Median().combine(updates, weights, beside)


def robust(rule: Aggregator, base: Algorithm | None = None) -> RobustAggregation:
    return RobustAggregation(base=base or FedAvg(), aggregator=rule)


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in SERVED]
)
def test_the_mean_is_the_base_algorithm(name: str) -> None:
    population = federation(cohort_size=6, rounds=3)
    plain, found = run(quick(name), population), run(robust(Mean(), quick(name)), population)
    for one, other in zip(plain, found, strict=True):
        assert other.traffic == one.traffic
        for (_, a), (_, b) in zip(
            tree.leaves(one.state.params), tree.leaves(other.state.base.params), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_no_trimming_and_equal_clients_are_fedavg() -> None:
    population = federation([16] * 8, rounds=3)
    plain, found = run(FedAvg(), population), run(robust(TrimmedMean(trim=0.0)), population)
    for key, value in plain[-1].state.params.items():
        torch.testing.assert_close(value, found[-1].state.base.params[key], rtol=1e-5, atol=1e-6)


def test_three_rounds_in_numpy() -> None:
    rule = Recording()
    population = federation(cohort_size=6, rounds=3)
    before: Any = FedAvg().init_server_state(population.context(0)).params
    for result, (updates, weights) in zip(run(robust(rule), population), rule.seen, strict=True):
        assert weights.tolist() == [population.partition.size(client) for client in result.cohort]
        start = np.concatenate([value.double().numpy().ravel() for value in before.values()])
        after = result.state.base.params
        expected = (start + np.median(updates, axis=0)).astype(np.float32)
        found = np.concatenate([value.numpy().ravel() for value in after.values()])
        assert found == pytest.approx(expected, abs=1e-7)
        before = after


def test_a_sum_is_the_number_of_clients_times_the_combined_update() -> None:
    population = federation([16] * 6, rounds=2)
    rule = Recording()
    found = run(robust(rule, Scaffold()), population)
    updates, _ = rule.seen[0]
    size = sum(value.numel() for value in found[0].state.base.params.values())
    control = np.median(updates, axis=0)[size:] * 6 / 6  # Scaffold divides the sum by N
    vector = tree.flatten(found[0].state.base.control).numpy()
    assert vector == pytest.approx(control, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    "name", [n if n in ("krum", "fltrust") else pytest.param(n, marks=pytest.mark.slow) for n in AGGREGATORS]
)
def test_stacked_clients_give_the_same_models(name: str) -> None:
    population, method = federation(cohort_size=6, rounds=2), robust(AGGREGATORS[name]())
    stacked = list(simulate(method, population, StackedPool(method, population, 3)))
    for one, other in zip(run(method, population), stacked, strict=True):
        assert one.traffic == other.traffic
        for key, value in one.state.base.params.items():
            torch.testing.assert_close(value, other.state.base.params[key], rtol=1e-3, atol=1e-4)


def test_architectures_are_combined_apart() -> None:
    nets = tuple(make_net("mlp", input_shape=(12,), num_classes=4, hidden=size) for size in (8, 6))
    population = replace(federation(cohort_size=8, rounds=2), nets=nets)
    result = run(robust(Krum()), population)[-1]
    kept = {client: share for client, share in result.state.shares.items() if share}
    assert sorted(int(client) % 2 for client in kept) == [0, 1]
    assert set(kept.values()) == {1.0}
    assert result.method["excluded_clients"] == [c for c in result.cohort if str(c) not in kept]


def test_clients_without_examples_do_not_count() -> None:
    population = federation([0, 0, 0, 20, 20, 20], rounds=1)
    alone = federation([20, 20, 20], rounds=1)
    assert run(robust(Median()), population)[0].failed == ()
    rule = Recording()
    run(robust(rule), population)
    assert len(rule.seen[0][0]) == 3
    assert alone.partition.num_clients == 3


def test_a_round_without_any_example_leaves_the_model() -> None:
    population = federation([0, 0, 0, 0, 40], cohort_size=1, rounds=4)
    for result in run(robust(Median()), population):
        assert torch.isfinite(tree.flatten(result.state.base.params)).all()


@dataclass(frozen=True, kw_only=True)
class OneDiverges(FedAvg):
    """The model of client 2 is not finite."""

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        update = super().train_client(ctx, task)
        factor = torch.nan if task.client == 2 else 1.0
        return update._replace(upload={"params": tree.scale(update.upload["params"], factor)})


@pytest.mark.parametrize("name", sorted(set(AGGREGATORS) - {"mean"}))
def test_an_update_that_is_not_finite_does_not_count(name: str) -> None:
    population = federation([16] * 6, rounds=2)
    result = run(robust(AGGREGATORS[name](), OneDiverges()), population)[-1]
    assert torch.isfinite(tree.flatten(result.state.base.params)).all()
    if result.state.shares:
        assert 2 in result.method["excluded_clients"]
    mean = run(robust(Mean(), OneDiverges()), population)[-1]
    assert torch.isnan(tree.flatten(mean.state.base.params)).any()


def test_the_shares_are_those_of_the_round() -> None:
    nets = tuple(make_net("mlp", input_shape=(12,), num_classes=4, hidden=size) for size in (8, 6))
    for result in run(robust(NormClipping()), replace(federation(cohort_size=1, rounds=6), nets=nets)):
        assert list(result.state.shares) == [str(client) for client in result.cohort]


def test_the_server_of_fltrust_trains_as_a_client_does() -> None:
    """With the public set as the only client's examples, FLTrust has the norm of FedAvg's own update."""
    population = replace(federation([40], rounds=1), public=None)
    own = population.dataset.train.select_rows(population.partition.client_positions(0))
    batch = replace(population.settings.local, batch_size=40)
    settings = replace(population.settings, local=batch)
    population = replace(population, public=own, settings=settings)
    plain, found = run(FedAvg(), population)[0], run(robust(FLTrust()), population)[0]
    for key, value in plain.state.params.items():
        torch.testing.assert_close(value, found.state.base.params[key], rtol=1e-4, atol=1e-5)


def test_fltrust_needs_a_server_that_can_train() -> None:
    assert robust(FLTrust()).needs_public_set
    with pytest.raises(ValueError, match="random numbers"):
        robust(FLTrust(), ALGORITHMS["fedcog"]())


def test_foolsgold_goes_on_after_a_checkpoint() -> None:
    population, method = federation(cohort_size=4, rounds=4), robust(FoolsGold())
    whole = run(method, population)
    middle = Checkpoint(round=2, state=whole[1].state, records=(), client_states=())
    rest = list(simulate(method, population, SerialPool(method, population), resume=middle))
    assert [each.digest for each in rest] == [each.digest for each in whole[2:]]
    assert set(whole[-1].state.history) == {str(c) for each in whole for c in each.cohort}


def test_buckets_are_drawn_anew_in_each_round() -> None:
    population = federation(cohort_size=6, rounds=2)
    plain = run(robust(Median()), population)
    bucketed = run(robust(Median(bucket_size=2)), population)
    assert plain[0].digest != bucketed[0].digest
    assert [r.digest for r in bucketed] == [r.digest for r in run(robust(Median(bucket_size=2)), population)]


def test_all_payloads_are_gathered_and_cost_the_same() -> None:
    method = robust(Median(), Scaffold())
    assert dict(method.uploads) == {"params": Reduction.GATHER, "control": Reduction.GATHER}


@pytest.mark.parametrize("name", ["fedcl", "ifca", "kt_pfl", "feddf", "ace_pfl"])
def test_other_uploads_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="sends no plain model updates"):
        robust(Median(), ALGORITHMS[name]())
