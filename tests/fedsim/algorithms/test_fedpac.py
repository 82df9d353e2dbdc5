"""FedPAC: FedRep without its two parts, the weights of heads by another solver, rounds once more by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from fedsim.algorithms import FedPAC, FedRep
from fedsim.algorithms.personalized import fedpac
from fedsim.algorithms.personalized.fedpac import combine_heads
from fedsim.base.digest import digest
from fedsim.core import ReducedUpdates, Traffic
from tests.fedsim.federations import federation
from tests.fedsim.handmade import BODY, HEAD, SETTINGS, Hand, Model, features, plain, small
from tests.fedsim.linear_models import run

CLASSES, WIDTH = 4, 5


def minimise(moments: Any, variances: Any) -> Any:
    """The weights of each client's new head, one row per client: those of the least estimate of its loss."""
    rows, count = [], len(moments)
    for own in range(count):
        distances = moments - moments[own]
        matrix = np.diag(variances) + distances @ distances.T
        scale = np.abs(matrix).max()
        found = minimize(
            lambda a, matrix=matrix / scale: a @ matrix @ a,
            np.full(count, 1 / count),
            bounds=[(0, 1)] * count,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            options={"ftol": 1e-12},
        )
        rows.append(found.x)
    return np.array(rows)


def test_without_alignment_and_combination_it_is_fedrep_bit_for_bit() -> None:
    population = small(SETTINGS["plain"], rounds=3)  # its rate is 0.1
    results, _ = run(FedPAC(lambda_align=0.0, combine=False, head_lr=0.1), population)
    others, pool = run(FedRep(), population)
    assert [digest(r.state.params) for r in results] == [digest(r.state.params) for r in others]
    assert [r.metrics for r in results] == [r.metrics for r in others]
    for client, state in pool.client_states().items():
        assert digest(results[-1].state.heads[str(client)]) == digest(state["own"])


def test_the_weights_minimise_the_estimate_of_the_loss() -> None:
    """SciPy's SLSQP finds the same weights; equal clients share evenly, a far client keeps its own head."""
    generator = np.random.default_rng(3)
    moments, variances = generator.normal(size=(5, 12)) * 0.05, generator.uniform(0.01, 0.05, size=5)
    np.testing.assert_allclose(combine_heads(moments, variances), minimise(moments, variances), atol=2e-3)
    np.testing.assert_allclose(combine_heads(np.zeros((4, 3)), np.ones(4)), np.full((4, 4), 0.25))
    far = combine_heads(np.array([[0.0], [0.0], [100.0]]), np.ones(3))
    np.testing.assert_allclose(far, [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], atol=1e-3)
    np.testing.assert_array_equal(combine_heads(np.zeros((2, 3)), np.zeros(2)), np.eye(2))


def test_heads_of_many_equal_clients_keep_their_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedpac, "LEAST_WEIGHT", 0.3)
    np.testing.assert_allclose(combine_heads(np.zeros((4, 3)), np.ones(4)), np.full((4, 4), 0.25))


def test_nobody_takes_the_head_of_a_client_without_examples() -> None:
    """And such a client keeps its own."""
    population = federation([20, 0, 24, 16], cohort_size=4, rounds=1)
    ctx, method = population.context(0), FedPAC(lambda_align=0.0)
    start = method.init_server_state(ctx)
    heads = [{key: torch.full_like(start.params[key], float(n)) for key in ctx.net.head} for n in range(4)]
    moments = [{"shares": torch.zeros(4, 2), "variance": torch.tensor(float(n != 1))} for n in range(4)]
    reduced = ReducedUpdates(
        payloads={"params": start.params, "heads": heads, "moments": moments},
        clients=(0, 1, 2, 3),
        weights=(20.0, 0.0, 24.0, 16.0),
        num_examples=(20, 0, 24, 16),
        metrics={},
        traffic=Traffic(),
    )
    after = method.aggregate(ctx, start, reduced)
    for client, expected in (("0", 5 / 3), ("1", 1.0), ("2", 5 / 3), ("3", 5 / 3)):
        for head in after.heads[client].values():
            torch.testing.assert_close(head, torch.full_like(head, expected))


class HandPAC(Hand):
    """Bodies are averaged; heads are combined by SLSQP; features are aligned with the last cohort's."""

    def __init__(self, population: Any, weight: float) -> None:
        super().__init__(population, BODY)
        self.weight = weight
        self.prototypes: dict[int, Tensor] = {}
        self.moments: dict[int, tuple[Tensor, float]] = {}
        self.hidden: dict[int, tuple[Tensor, Tensor]] = {}

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        held, data = self.population.partition.client_positions(client), self.population.dataset.train
        return torch.from_numpy(data.x[held]), torch.from_numpy(data.y[held])

    def train(self, number: int, client: int, model: Model) -> Model:
        x, y = self.examples(client)
        before = features(model, x)
        local = {int(c): before[y == c].mean(0) for c in y.unique()}
        shares = torch.stack(
            [(y == c).float().mean() * local.get(c, torch.zeros(WIDTH)) for c in range(CLASSES)]
        )
        variance = float((before.square().sum(1).mean() - shares.square().sum()) / len(y))
        self.moments[client] = shares, variance

        def aligned(params: Model, xs: Tensor, ys: Tensor) -> Tensor:
            total, hidden = plain(params, xs, ys), features(params, xs)
            if number == 0:
                return total
            goals = torch.stack([self.prototypes.get(int(c), local[int(c)]) for c in ys])
            return total + self.weight * F.mse_loss(hidden, goals)

        rows = self.rows(number, client)
        one = rows[: len(rows) // self.population.settings.local.epochs]
        model = self.sgd(model, one, HEAD, plain)
        model = self.sgd(model, rows, BODY, aligned)
        self.hidden[client] = features(model, x), y
        return model

    def round(self, number: int, cohort: Any) -> None:
        self.moments.clear()
        self.hidden.clear()
        super().round(number, cohort)
        hidden = torch.cat([each for each, _ in self.hidden.values()])
        labels = torch.cat([each for _, each in self.hidden.values()])
        self.prototypes = {int(c): hidden[labels == c].mean(0) for c in labels.unique()}
        flat = np.stack([self.moments[c][0].double().flatten().numpy() for c in cohort])
        weights = minimise(flat, np.array([self.moments[c][1] for c in cohort]))
        own = {client: self.own[client] for client in cohort}
        for client, row in zip(cohort, weights, strict=True):
            self.own[client] = {
                key: sum(float(w) * own[c][key] for w, c in zip(row, cohort, strict=True))  # type: ignore[misc]
                for key in HEAD
            }


@pytest.mark.parametrize("weight", [2.5])
def test_rounds_by_hand_and_their_bytes(weight: float) -> None:
    population = small(SETTINGS["plain"], rounds=3, seed=5)
    hand = HandPAC(population, weight)
    results, _ = run(FedPAC(lambda_align=weight, head_lr=0.1), population)
    body, head = sum(hand.server[k].numel() for k in BODY), sum(hand.server[k].numel() for k in HEAD)
    for number, result in enumerate(results):
        hand.round(number, result.cohort)
        for key in BODY:
            torch.testing.assert_close(result.state.params[key], hand.server[key], rtol=1e-4, atol=1e-5)
        for client in result.cohort:
            for key in HEAD:
                mine = result.state.heads[str(client)][key]
                torch.testing.assert_close(mine, hand.own[client][key], rtol=1e-3, atol=1e-4)
        sums = CLASSES * WIDTH + CLASSES
        moments = CLASSES * WIDTH + 1
        assert result.traffic.up == 4 * 4 * (body + head + sums + moments)
        assert result.traffic.down == 4 * 4 * (body + head + (CLASSES * WIDTH if number else 0))
        assert 0 <= result.method["own_head_weight"] <= 1
    method, ctx = FedPAC(lambda_align=weight), population.context(2)
    assert method.broadcast_personal(ctx, results[-1].state).keys() == {"params"}  # no prototypes
    assert method.instructs_personal(ctx)
