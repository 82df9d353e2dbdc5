"""FedDF and KT-pFL, and what methods with a public set share, once more in NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms import FedAvg, FedDF, KTpFL
from fedsim.algorithms.fedavg import PRIVATE_PARAMS
from fedsim.base import tree
from fedsim.clients.population import Population
from fedsim.core import Batch, LocalTraining, Progress
from fedsim.engine.pools import SerialPool
from fedsim.engine.server_training import ServerTrainingProgress
from fedsim.engine.simulation import simulate_with_progress
from fedsim.techniques.server_distillation import (
    DistillationSettings,
    average_logits_by_class,
    distil_model,
    make_accuracy_judge,
)
from fedsim.techniques.soft_targets import kl_divergence, soft_target_loss, soften_logits
from tests.fedsim.federations import federation, public_examples
from tests.fedsim.linear_models import SIZES, C, N, linear, logits_of, matrix, mixed, run, softmax
from tests.fedsim.replay import Array, Client, start

# what they share


def test_losses_of_soft_predictions() -> None:
    generator = np.random.default_rng(0)
    taught, said = generator.normal(size=(2, 5, 3))
    p, q = softmax(taught / 2), softmax(said / 2)
    soft = soften_logits(torch.from_numpy(taught), 2.0, several_labels=False)
    found = soft_target_loss(soft, torch.from_numpy(said), 2.0, several_labels=False)
    assert float(found) == pytest.approx((p * np.log(p / q)).sum(1).mean())
    p, q = 1 / (1 + np.exp(-taught / 2)), 1 / (1 + np.exp(-said / 2))
    soft = soften_logits(torch.from_numpy(taught), 2.0, several_labels=True)
    found = soft_target_loss(soft, torch.from_numpy(said), 2.0, several_labels=True)
    each = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    assert float(found) == pytest.approx(each.mean())
    mask = np.array([1, 1, 0, 1, 0])
    several = kl_divergence(*(torch.from_numpy(z) for z in (taught, said, mask)), 2.0, several_labels=True)
    assert float(several) == pytest.approx((each.mean(1) * mask).sum() / 3)
    sure = torch.tensor([[1.0, 0.0, 0.0]])
    assert float(
        soft_target_loss(sure, torch.tensor([[50.0, 0, 0]]), 1.0, several_labels=False)
    ) == pytest.approx(0)


def test_an_ensemble_listens_to_who_holds_a_class() -> None:
    """Class 0: a quarter and three quarters; class 1: only the second; class 2: nobody, so evenly."""
    logits = [torch.tensor([[4.0, 2.0, 6.0]]), torch.tensor([[8.0, 10.0, 2.0]])]
    counts = [torch.tensor([1.0, 0.0, 0.0]), torch.tensor([3.0, 5.0, 0.0])]
    assert average_logits_by_class(logits, counts).tolist() == [[7.0, 10.0, 4.0]]


def test_a_distillation_ends_when_it_gains_nothing_and_keeps_its_best() -> None:
    population = linear()
    public, net = population.context(0).require_public_set(), population.nets[0]
    first = net.init(3)
    rows = torch.arange(30, 40)
    judge = make_accuracy_judge(net, public, rows)
    w = logits_of(matrix(first), public.x[30:].numpy()).argmax(1)
    assert judge is not None
    assert judge(first) == pytest.approx(np.mean(w == public.y[30:].numpy()))

    def lesson(loss: Any, judge: Any, epochs: int = 20) -> Any:
        batches = public.shuffle_batches(7, 0, epochs=epochs, batch_size=20)
        course = DistillationSettings(lr=0.05, check_every=2, patience=6)
        steps, told = distil_model(net, first, batches, loss, course, judge, address=(7, 0)), list[Progress]()
        while True:
            try:
                told.append(next(steps))
            except StopIteration as end:
                return end.value, told

    def well(params: Any, batch: Batch) -> Tensor:
        return F.cross_entropy(net(params, batch.x), batch.y)

    def badly(params: Any, batch: Batch) -> Tensor:
        return -well(params, batch)

    good, told = lesson(well, judge)
    assert (good.steps < 40, good.score) == (True, 1.0)
    bad, _ = lesson(badly, judge)
    assert bad.steps == 6
    assert all(torch.equal(bad.params[key], first[key]) for key in first)
    last, told = lesson(well, None)
    assert (last.steps, [t.done for t in told], np.isnan(last.score)) == (40, [25], True)
    rates = [DistillationSettings(lr=0.4, cosine=True).learning_rate(step, 4) for step in range(4)]
    assert rates == pytest.approx([0.4, 0.2 + 0.2 * np.sqrt(0.5), 0.2, 0.2 - 0.2 * np.sqrt(0.5)])


# FedDF


def test_feddf_without_steps_is_fedavg() -> None:
    population = linear(cohort_size=4)
    plain, still = run(FedAvg(), population)[0], run(FedDF(steps=0), population)[0]
    for a, b in zip(plain, still, strict=True):
        assert all(torch.equal(value, b.state.params[key]) for key, value in a.state.params.items())
        assert (a.traffic, a.metrics) == (b.traffic, b.metrics)


def test_feddf_looks_at_its_student_at_the_end_too() -> None:
    population = federation(rounds=1, seed=5, local=LocalTraining(epochs=1, batch_size=8, lr=0.02))
    (plain,), _ = run(FedAvg(), population)
    (taught,), _ = run(FedDF(steps=80, batch_size=10, lr=0.03, apart=0.5, check_every=100), population)
    assert taught.method["distillation_steps"] == [80]
    assert not torch.equal(tree.flatten(taught.state.params), tree.flatten(plain.state.params))


def test_feddf_teaches_the_mean_what_all_say_together() -> None:
    """One step of Adam, which is lr times the sign of the gradient of KL(softmax(mean logits) || student)."""
    population = linear(rounds=1)
    algorithm = FedDF(steps=1, batch_size=100, lr=0.01, check_every=5, apart=0.01, temperature=1.5)
    (result,), _ = run(algorithm, population)
    w = start(population)
    models = [Client(population, 0, client).sgd(w) for client in range(7)]
    x = public_examples().x
    said = np.mean([logits_of(model, x) for model in models], axis=0)
    np.testing.assert_allclose(result.state.said.numpy(), said, rtol=1e-4, atol=1e-5)
    mean = np.average(models, axis=0, weights=SIZES)
    inputs = np.hstack([x, np.ones((N, 1))])
    slope = ((softmax(inputs @ mean.T / 1.5) - softmax(said / 1.5)).T @ inputs) / N / 1.5
    sure = np.abs(slope) > 1e-5
    assert sure.mean() > 0.9
    found = matrix(result.state.params)
    np.testing.assert_allclose(found[sure], (mean - 0.01 * np.sign(slope))[sure], rtol=1e-4, atol=2e-5)


def test_models_are_scored_after_what_they_depend_on() -> None:
    population = linear(rounds=2)
    algorithm = FedDF(steps=20, batch_size=10, check_every=5, patience=20, lr=0.02)
    tests = population.dataset.test
    for result in run(algorithm, population)[0]:
        said = logits_of(matrix(result.state.params), tests.x).argmax(1)
        assert result.metrics["global_accuracy"] == pytest.approx(np.mean(said == tests.y))
        assert 5 <= result.method["distillation_steps"][0] <= 20
        assert 0 <= result.method["distillation_accuracy"][0] <= 1
        assert result.seconds["learn"] > 0


def test_the_servers_training_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.engine.server_training.TELL_SECONDS", 0.0)
    population = linear(rounds=1)
    algorithm = FedDF(steps=60, batch_size=10, check_every=100)
    said = list(simulate_with_progress(algorithm, population, SerialPool(algorithm, population)))
    assert [(s.progress.done, s.progress.total) for s in said if isinstance(s, ServerTrainingProgress)] == [
        (25, 60),
        (50, 60),
    ]


def test_feddf_of_two_architectures_and_both_ways_to_charge() -> None:
    population = mixed(rounds=1)
    (plain,), _ = run(FedAvg(), population)
    quick = {"steps": 10, "batch_size": 10, "check_every": 5, "lr": 0.01, "patience": 50}
    (models,), _ = run(FedDF(**quick), population)
    (logits,), _ = run(FedDF(**quick, charged="logits"), population)
    assert models.traffic == plain.traffic
    assert (logits.traffic.down, logits.traffic.up) == (7 * 4 * N * C, 7 * 4 * N * C)
    assert logits.digest == models.digest
    assert len(models.method["distillation_steps"]) == 2
    for number in ("0", "1"):
        assert models.metrics[f"global_{number}_accuracy"] > 0.5


# KT-pFL


def public_rows(population: Population, round: int, size: int) -> Array:
    return (
        population.context(0).require_public_set().choose_rows(population.settings.seed, round, size).numpy()
    )


def test_kt_pfl_by_hand() -> None:
    """Two rounds, all seven clients, 12 of 40 public examples in a round, the teacher's pass as one step."""
    population = linear(rounds=2)
    algorithm = KTpFL(public_size=12, public_batch_size=12, public_lr=2.0, temperature=3.0, rho=0.7)
    results, pool = run(algorithm, population)
    public, models, c = public_examples(), [start(population) for _ in SIZES], np.full((7, 7), 1 / 7)
    said = np.zeros(0)
    for result in results:
        number = result.round - 1
        if number:
            x = public.x[public_rows(population, number - 1, 12)]
            inputs = np.hstack([x, np.ones((12, 1))])
            for client in range(7):
                taught = np.tensordot(c[client] / c[client].sum(), said, axes=1)
                own = softmax(inputs @ models[client].T / 3)
                models[client] = models[client] - 2.0 * ((own - taught).T @ inputs) / 12 / 3
        models = [Client(population, number, client).sgd(models[client]) for client in range(7)]
        rows = public_rows(population, number, 12)
        said = np.stack([softmax(logits_of(model, public.x[rows]) / 3) for model in models])
        np.testing.assert_allclose(result.state.said.numpy(), said, rtol=1e-4, atol=1e-6)
        flat, after = said.reshape(7, -1), c.copy()
        for n in range(7):
            slope = 2 * flat @ (c[n] @ flat - flat[n]) / flat.shape[1] + 2 * 0.7 * (c[n] - 1 / 7) / 7
            power = 5.0 ** round(np.log(0.01 / np.abs(slope).mean()) / np.log(5))
            assert 0.01 / np.sqrt(5) <= power * np.abs(slope).mean() <= 0.01 * np.sqrt(5)
            after[n] = softmax(5 * (c[n] - power * slope))
        c = after
        np.testing.assert_allclose(result.state.coefficients.numpy(), c, rtol=1e-5)
    assert not np.array_equal(public_rows(population, 0, 12), public_rows(population, 1, 12))
    for client, memory in pool.client_states().items():
        np.testing.assert_allclose(matrix(memory[PRIVATE_PARAMS]), models[client], rtol=2e-5, atol=2e-6)
    assert [r.traffic.up for r in results] == [7 * 4 * 12 * C] * 2
    assert [r.traffic.down for r in results] == [0, 7 * 4 * 12 * C]
    assert results[-1].metrics["personal_clients"] == 7
    parameters, steps = (
        population.nets[0].count_parameters(),
        sum(population.settings.local.steps_for(size) for size in SIZES),
    )
    assert [r.cost.updates for r in results] == [steps * parameters, (steps + 7) * parameters]


def test_a_teacher_mixes_those_who_came() -> None:
    population = mixed(cohort_size=3, rounds=2)
    algorithm = KTpFL(public_size=6)
    state = run(algorithm, population)[0][0].state
    ctx = population.context(1)
    assert len(state.who) == 3
    taught = algorithm.instruct_client(ctx, state, 5)["teacher"]["said"]
    row = state.coefficients[5, state.who]
    expected = sum(w * s for w, s in zip((row / row.sum()).float(), state.said, strict=True))
    torch.testing.assert_close(taught, expected)
    torch.testing.assert_close(taught.sum(-1), torch.ones(6))


def test_whoever_says_what_is_no_number_is_left_out() -> None:
    population = linear(cohort_size=4, rounds=2)
    algorithm = KTpFL(public_size=6)
    ctx, state = population.context(0), algorithm.init_server_state(population.context(0))
    reduced = SerialPool(algorithm, population).begin_training(ctx, state, [0, 2, 4, 6])()
    said = list(reduced["predictions"])
    without = replace(reduced, clients=(0, 2, 6), payloads={"predictions": [said[0], said[1], said[3]]})
    said[2]["probabilities"][3] = torch.nan
    found, expected = (algorithm.aggregate(ctx, state, each) for each in (reduced, without))
    assert found.who.tolist() == [0, 2, 6]
    for name in ("who", "said", "coefficients"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    for each in said:
        each["probabilities"][:] = torch.nan
    nobody = algorithm.aggregate(ctx, found, reduced)
    assert (nobody.said, len(nobody.who)) == (None, 0)
    assert torch.equal(nobody.coefficients, found.coefficients)
    assert algorithm.instruct_client(population.context(1), nobody, 0) == {}


def test_who_holds_nothing_learns_from_its_teacher_and_that_is_counted() -> None:
    population = federation(
        [0, 8], model="logistic", rounds=2, local=LocalTraining(epochs=1, batch_size=8, lr=0.1)
    )
    first, second = (result.cost.updates for result in run(KTpFL(), population)[0])
    parameters = population.nets[0].count_parameters()
    assert (first, second) == (parameters, 3 * parameters)


def test_a_client_learns_whom_to_listen_to_among_those_who_came() -> None:
    """Against difference quotients of the objective, the scale of the row being a constant."""
    generator = torch.Generator().manual_seed(3)
    row = torch.rand(7, generator=generator, dtype=torch.float64).softmax(0)
    said, who = torch.rand(3, 24, generator=generator, dtype=torch.float64), torch.tensor([1, 4, 6])
    scale = row[who].sum()

    def objective(row: Tensor) -> Tensor:
        return F.mse_loss(row[who] / scale @ said, said[2]) + 0.7 * F.mse_loss(
            row, torch.full_like(row, 1 / 7)
        )

    found = KTpFL(rho=0.7).coefficient_gradient(row, who, said, at=2)
    for at, step in enumerate(1e-6 * torch.eye(7, dtype=torch.float64)):
        quotient = (objective(row + step) - objective(row - step)) / 2e-6
        assert float(found[at]) == pytest.approx(float(quotient), rel=1e-5, abs=1e-9)
