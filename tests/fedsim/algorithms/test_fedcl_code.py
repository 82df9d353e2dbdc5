"""FedCL as its public code has it: a round by hand, the stages, and the generator's loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, FedCLCode
from fedsim.clients.population import Population
from fedsim.core import ClientTask, Context, LocalTraining
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from fedsim.models.net import Params
from tests.fedsim.algorithms.test_fedcl_clients import entropies
from tests.fedsim.federations import federation
from tests.fedsim.linear_models import softmax
from tests.fedsim.methods import QUICK, run

LIGHT = {**QUICK["fedcl_code"], "alpha": 10.0, "beta": 10.0}
TAU = np.log(10)


def confidence(losses: Any) -> Any:
    """SuperLoss's sigma with lambda 1, by SciPy."""
    from scipy.special import lambertw

    return np.exp(-lambertw(np.maximum(-2 / np.e, losses - TAU) / 2 + 1e-15).real)


def loss_and_gradient(weights: Any, x: Any, y: Any) -> tuple[float, Any]:
    """The loss of real examples on a linear classifier, and its gradient: the confidence has none."""
    logits = x @ weights.T
    said, truth = softmax(logits), np.eye(len(weights))[y]
    losses = entropies(logits, y)
    sigma = confidence(losses)
    value = 0.01 * -np.log(said).mean(1) + 0.99 * ((losses - TAU) * sigma + np.log(sigma) ** 2)
    slope = 0.01 * (said - 1 / len(weights)) + 0.99 * sigma[:, None] * (said - truth)
    return float(value.mean()), slope.T @ x / len(y)


def features_by_hand(generator: Params, noise: Any, labels: Any, wanted: Any) -> Any:
    """The generator by its layers, in evaluation mode."""
    w = {key: value.double().numpy() for key, value in generator.items()}
    x = np.concatenate([np.eye(4)[labels], noise.double().numpy(), wanted[:, None]], 1)
    hidden = x @ w["hidden.0.weight"].T + w["hidden.0.bias"] - w["hidden.1.running_mean"]
    hidden = hidden * w["hidden.1.weight"] / np.sqrt(w["hidden.1.running_var"] + 1e-5) + w["hidden.1.bias"]
    return np.maximum(hidden, 0) @ w["output.0.weight"].T + w["output.0.bias"]


def with_one(x: Any) -> Any:
    return np.hstack([x, np.ones((len(x), 1))])


def weights_of(head: Params) -> Any:
    """Weights and bias side by side."""
    weight, bias = (head[f"head.{name}"].double().numpy() for name in ("weight", "bias"))
    return np.hstack([weight, bias[:, None]])


class ByHand:
    """A client's round of a linear classifier, whose features are its inputs, in NumPy and float64."""

    def __init__(self, task: ClientTask, params: Params, round: int, scores: Any, stage: int) -> None:
        self.w = weights_of(params)
        self.task, self.round, self.scores, self.stage = task, round, scores, stage
        self.q1, self.q3 = np.quantile(scores, (0.25, 0.75))
        self.last, self.reached, self.steps = np.zeros(8), False, 0

    def run(self, lr: float) -> Any:
        for batch in self.task.batches:
            x, y = with_one(batch.x.double().numpy()), batch.y.numpy()
            found = entropies(x @ self.w.T, y) - TAU
            self.last = np.resize((found - found.min()) / (found.max() - found.min()), 8)
            drawn, labels = self._drawn(batch)
            value = np.sort(entropies(drawn @ self.w.T, labels) - TAU)[int(0.8 * len(labels))]
            goals = [value < self.q1, self.q1 < value < self.q3, value > self.q3]
            if goals[self.stage]:
                self.reached = True
                break
            strength = 10 * 0.98**self.round
            _, slope = loss_and_gradient(self.w, x, y)
            error = softmax(drawn @ self.w.T) - np.eye(4)[labels]
            slope = slope + strength * (len(labels) / 8) * error.T @ drawn / len(labels)
            teller = min(int(batch.noise["teller"] * len(self.scores)), len(self.scores) - 1)
            own = features_by_hand(
                self.task.broadcast["generator"],
                batch.noise["own"][: len(y)],
                y,
                self.scores[teller][: len(y)],
            )
            apart = softmax(x @ self.w.T) - softmax(with_one(own) @ self.w.T)
            slope = slope + strength * apart.T @ x / len(y)
            self.w = self.w - lr * slope
            self.steps += 1
        return self.w

    def _drawn(self, batch: Any) -> Any:
        chances = self.task.broadcast["labels"]["chances"].double().numpy()
        labels = np.searchsorted(np.cumsum(chances), batch.noise["chance"].numpy(), side="right")
        low, high = [(0.0, self.q1), (self.q1, self.q3), (self.q3, 1.0)][self.stage]
        wanted = low + (high - low) * batch.noise["places"].double().numpy()
        generator = self.task.broadcast["generator"]
        return with_one(features_by_hand(generator, batch.noise["noise"], labels, wanted)), labels


def linear(rounds: int = 8) -> Population:
    """Clients of a logistic regression, eight examples a batch."""
    local = LocalTraining(steps=6, batch_size=8, lr=0.05)
    return federation([16, 24, 11, 30, 20], model="logistic", rounds=rounds, cohort_size=3, local=local)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_round_is_the_hand_written_one(stage: int) -> None:
    """Every client of a round: its model, its scores and its end, whichever goal is met, or none."""
    population, method = linear(), FedCLCode(**LIGHT)
    pool, begun = SerialPool(method, population), run(method, population)[1].state
    rng, ended = np.random.default_rng(stage), []
    for trial in range(4):
        # A generator of large outputs makes features of very different losses.
        scores = torch.from_numpy(np.sort(rng.random((3, 8)), 0).astype(np.float32)) * (0.2 + trial)
        made = {key: value * (1 + trial) for key, value in begun.generator["params"].items()}
        generator = {**begun.generator, "params": made}
        state = replace(begun, scores=scores - trial, stage=stage, generator=generator)
        ctx = population.context(4)
        reduced = pool.begin_training(ctx, state, [0, 2, 3])()
        for client, sent, head in zip([0, 2, 3], reduced["scores"], reduced["heads"], strict=True):
            broadcast = method.broadcast(ctx, state)
            task = pool.worker.loader.make_task(method, ctx, client, broadcast, {}, None)
            ours = ByHand(task, state.params, 4, state.scores.double().numpy(), stage)
            expected = ours.run(0.05)
            np.testing.assert_allclose(head["head.weight"].numpy(), expected[:, :-1], rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(head["head.bias"].numpy(), expected[:, -1], rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(sent["values"].numpy(), ours.last, rtol=1e-3, atol=1e-4)
            assert bool(sent["reached"]) == ours.reached
            ended.append((ours.reached, ours.steps))
    assert {reached for reached, _ in ended} == {True, False}


def test_without_generator_and_superloss_of_a_large_lambda_it_is_fedavg() -> None:
    """A large lambda gives every example the weight 1, so that only the smoothing is left; here none."""
    population = linear(rounds=3)
    method = FedCLCode(**{**LIGHT, "alpha": 0.0, "beta": 0.0}, lambda_cl=1e9, smoothing=0.0)
    plain, found = run(FedAvg(), population)[-1], run(method, population)[-1]
    for key, value in plain.state.params.items():
        torch.testing.assert_close(found.state.params[key], value, rtol=1e-4, atol=1e-6)


def test_a_stage_ends_when_most_places_have_reached_its_goal() -> None:
    method, population = FedCLCode(**LIGHT), linear()
    ctx = population.context(0)
    state = method.init_server_state(ctx)
    assert state.reached.tolist() == [False] * 3

    def after(state: Any, round: int, reached: list[bool]) -> Any:
        pool = SerialPool(method, population)
        at: Context = population.context(round)
        reduced = pool.begin_training(at, state, [0, 1, 2])()
        for entry, flag in zip(reduced["scores"], reached, strict=True):
            entry["reached"] = torch.tensor(flag)
        return method.aggregate(at, state, reduced)

    assert after(state, 2, [True] * 3).reached.tolist() == [False] * 3  # the first rounds do not count
    some = after(state, 3, [True, False, True])
    assert (some.stage, some.reached.tolist()) == (0, [True, False, True])
    done = after(some, 4, [False, True, False])
    assert (done.stage, done.reached.tolist()) == (1, [False] * 3)


def test_the_generators_loss_is_the_sum_of_mean_shares_times_losses() -> None:
    method, population = FedCLCode(**LIGHT), linear()
    ctx = population.context(0)
    state = method.init_server_state(ctx)
    reduced = SerialPool(method, population).begin_training(ctx, state, [0, 2, 3])()
    made, wanted = torch.randn(6, 12), torch.tensor([0, 1, 2, 3, 0, 1])
    counts = np.stack([entry["counts"].numpy() for entry in reduced["labels"]]).astype(float)
    shares = counts / np.maximum(counts.sum(0), 1)
    expected = 0.0
    for share, head in zip(shares, reduced["heads"], strict=True):
        weights = np.hstack(
            [head["head.weight"].double().numpy(), head["head.bias"].double().numpy()[:, None]]
        )
        value, _ = loss_and_gradient(weights, with_one(made.double().numpy()), wanted.numpy())
        expected += share[wanted.numpy()].mean() * value
    found = method.critic(ctx, state, reduced, torch.device("cpu"))(made, wanted)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_stacked_clients_compute_the_same() -> None:
    population, method = linear(rounds=4), FedCLCode(**LIGHT)
    alone = run(method, population)[-1].state.params
    pool = StackedPool(method, population, 3)
    *_, last = simulate(method, population, pool)
    assert last.engine["stacked"]["together"]
    for key, value in alone.items():
        torch.testing.assert_close(last.state.params[key], value, rtol=1e-4, atol=1e-5)
