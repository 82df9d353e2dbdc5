"""What KDIA is compared with: identities with FedAvg, losses and weights in NumPy, bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsim.algorithms import FedAvg, FedAvgM, FedCOG, FedDisco, FedGKD, Moon
from fedsim.core import Algorithm, Batch
from fedsim.engine.pools import SerialPool
from fedsim.models import make_net
from fedsim.training.losses import cross_entropy
from tests.fedsim import replay
from tests.fedsim.federations import federation, gaussian_dataset
from tests.fedsim.linear_models import matrix, softmax
from tests.fedsim.methods import MOMENTUM, run, same_models, visited

Numbers = NDArray[np.float64]


@pytest.mark.parametrize(
    "neutral",
    [
        FedAvgM(beta=0.0),
        FedAvgM(beta=0.0, form="average"),
        FedGKD(gamma=0.0),
        FedDisco(a=0.0, b=0.0),
        Moon(mu=0.0),
        FedCOG(lambda_kd=0.0, start_round=0),
        FedCOG(start_round=3),
    ],
    ids=str,
)
def test_without_its_term_it_is_fedavg_bit_for_bit(neutral: Algorithm) -> None:
    population = federation(local=MOMENTUM, cohort_size=6, rounds=3)
    assert same_models(FedAvg(), neutral, population)


@pytest.mark.parametrize(
    "active",
    [FedAvgM(), FedGKD(), FedDisco(), Moon(), FedCOG(start_round=1, samples=16, descent=3)],
    ids=lambda method: type(method).__name__,
)
def test_with_its_term_it_is_not(active: Algorithm) -> None:
    assert not same_models(FedAvg(), active, federation(cohort_size=6, rounds=3))


@pytest.mark.parametrize("form", ["heavy_ball", "average"])
def test_four_rounds_of_fedavgm_in_numpy(form: str) -> None:
    population = federation(model="logistic", rounds=4, cohort_size=6, local=MOMENTUM)
    w = replay.start(population)
    v = np.zeros_like(w)
    for number, result in enumerate(run(FedAvgM(beta=0.7, form=form), population)):  # type: ignore[arg-type]
        came = [replay.Client(population, number, client) for client in result.cohort]
        models = [client.sgd(w) for client in came]
        d = w - np.average(models, axis=0, weights=[client.examples for client in came])
        v = 0.7 * v + (1.0 if form == "heavy_ball" else 0.3) * d
        w = w - v
        np.testing.assert_allclose(matrix(result.state.params), w, rtol=2e-5, atol=2e-6)


def test_fedgkds_loss_is_numpys() -> None:
    population, method = federation(), FedGKD(gamma=0.4, temperature=2.0)
    ctx, task = visited(method, population)
    batch, params = task.batches[0], population.nets[0].init(3)
    logits, taught = (ctx.net(w, batch.x).double().numpy() for w in (params, task.broadcast["teacher"]))
    p, q = softmax(taught, 2.0), softmax(logits, 2.0)
    entropy = -np.log(softmax(logits)[np.arange(len(batch.y)), batch.y.numpy()]).mean()
    expected = entropy + 0.2 * 4 * (p * np.log(p / q)).sum(-1).mean()
    assert float(method.loss(ctx, task, params, batch)) == pytest.approx(expected, rel=1e-5)


def test_fedgkd_averages_the_last_models_and_sends_the_mean() -> None:
    population = federation(rounds=5, cohort_size=4)
    results = run(FedGKD(buffer=3), population)
    method = FedGKD(buffer=3)
    sent = method.broadcast(population.context(4), results[3].state)
    for key, value in sent["teacher"].items():
        mean = np.mean([r.state.params[key].double().numpy() for r in results[1:4]], 0)
        np.testing.assert_allclose(value.numpy(), mean, rtol=1e-6, atol=1e-8)
    size = 4 * 4 * population.nets[0].count_parameters()
    assert [r.traffic.down for r in results] == [size, size, *[2 * size] * 3]
    assert {r.traffic.up for r in results} == {size}
    assert {r.traffic.down for r in run(FedGKD(buffer=1), population)} == {size}


def test_fedgkds_teacher_has_nothing_of_the_untrained_model() -> None:
    """In the second round it is the global model itself, in the third the mean of two that were averaged."""
    population, method = federation(rounds=2), FedGKD(buffer=5)
    first, second = run(method, population)
    assert "teacher" not in method.broadcast(population.context(1), first.state)
    # a plan asks the first state what later rounds send
    assert "teacher" in method.broadcast(
        population.context(2), method.init_server_state(population.context(0))
    )
    for key, value in method.broadcast(population.context(2), second.state)["teacher"].items():
        mean = (first.state.params[key].double().numpy() + second.state.params[key].double().numpy()) / 2
        np.testing.assert_allclose(value.numpy(), mean, rtol=1e-6, atol=1e-8)


def test_moons_loss_is_numpys() -> None:
    population, method = federation(), Moon(mu=3.0, tau=0.5)
    net = population.nets[0]
    memory = {"previous": net.init(4), "trained": torch.ones(())}
    ctx, task = visited(method, population, memory)
    batch, params = task.batches[0], net.init(3)
    z, near, far = (
        net.features(w, batch.x).double().numpy()
        for w in (params, task.broadcast["params"], memory["previous"])
    )

    def cosine(a: Numbers, b: Numbers) -> Numbers:
        return np.asarray((a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1))

    towards, away = np.exp(cosine(z, near) / 0.5), np.exp(cosine(z, far) / 0.5)
    entropy = float(cross_entropy(net(params, batch.x), batch))
    expected = entropy + 3 * np.mean(-np.log(towards / (towards + away)))
    assert float(method.loss(ctx, task, params, batch)) == pytest.approx(expected, rel=1e-5)


def test_moon_has_no_term_before_a_client_has_trained_and_keeps_what_it_trained() -> None:
    population, method = federation(), Moon()
    ctx, task = visited(method, population)
    batch, params = task.batches[0], population.nets[0].init(3)
    plain = FedAvg().loss(ctx, task, params, batch)
    assert float(method.loss(ctx, task, params, batch)) == pytest.approx(float(plain))
    update = method.train_client(ctx, task)
    assert update.client_state["trained"] == 1
    assert all(torch.equal(update.client_state["previous"][k], v) for k, v in update.upload["params"].items())


def test_moon_contrasts_the_projection_of_moon_cnn() -> None:
    net = make_net("moon_cnn", input_shape=(3, 32, 32), num_classes=10)
    assert net.features(net.init(0), torch.zeros(2, 3, 32, 32)).shape == (2, 256)


def test_feddiscos_weights_are_the_papers() -> None:
    """a = 0.5, b = 0.1, two classes: client 0 has one class (log 2 nats), client 1 both evenly (0)."""
    method = FedDisco()
    raw = np.array([30 / 40 - 0.5 * 1 + 0.1, 10 / 40 - 0 + 0.1])
    np.testing.assert_allclose(method.discrepancy_weights([30, 10], [np.log(2), 0.0]), raw / raw.sum())
    # the discrepancy alone decides: 0.25 - 0.5 + 0.1 < 0 counts nothing; nobody left gives all zeros
    np.testing.assert_array_equal(method.discrepancy_weights([10, 30], [np.log(2), 0.0]), [0.0, 1.0])
    np.testing.assert_array_equal(
        FedDisco(a=9.0, b=0.0).discrepancy_weights([10, 10], [1.0, 1.0]), [0.0, 0.0]
    )
    assert FedDisco().discrepancy_weights([0, 10], [0.0, 0.3])[0] == 0


def test_feddisco_averages_by_its_weights_and_tells_its_labels_once() -> None:
    population = federation(rounds=4, cohort_size=6)
    method = FedDisco()
    results = run(method, population)
    ctx, pool = population.context(0), SerialPool(method, population)
    sent = method.broadcast(ctx, method.init_server_state(ctx))
    models, far = [], []
    for client in results[0].cohort:
        task = pool.worker.loader.make_task(method, ctx, client, sent, {}, None)
        models.append(method.train_client(ctx, task).upload["params"])
        share = task.label_counts.double().numpy() / task.num_examples
        far.append(float((share[share > 0] * np.log(4 * share[share > 0])).sum()))
    weights = method.discrepancy_weights([population.partition.size(c) for c in results[0].cohort], far)
    for key, value in results[0].state.params.items():
        mean = np.average([m[key].double().numpy() for m in models], axis=0, weights=weights)
        np.testing.assert_allclose(value.numpy(), mean, rtol=1e-5, atol=1e-7)
    seen, size = set[int](), 4 * population.nets[0].count_parameters()
    for result in results:
        fresh = set(result.cohort) - seen
        assert result.traffic.up == 6 * size + 4 * 4 * len(fresh)
        assert result.traffic.by_payload.get("labels", 0) == 16 * len(fresh)
        assert not {"models", "distance"} & result.traffic.by_payload.keys()
        seen |= fresh


def test_feddisco_weighs_within_each_architecture() -> None:
    population, data = federation(rounds=2), gaussian_dataset()
    nets = tuple(make_net(k, input_shape=data.input_shape, num_classes=4) for k in ("mlp", "logistic"))
    mixed = replace(population, nets=nets)
    assert set(run(FedDisco(), mixed)[-1].state.params) == {"0", "1"}
    for method in (FedAvgM(), FedGKD(), Moon()):
        assert run(method, mixed)[-1].metrics["global_accuracy"] > 0.5


def test_padding_counts_for_nothing() -> None:
    population = federation()
    memory = {"previous": population.nets[0].init(4), "trained": torch.ones(())}
    params = population.nets[0].init(3)
    for method in (FedGKD(), Moon()):
        ctx, task = visited(method, population, memory)
        batch = task.batches[0]
        padded = Batch(torch.cat([batch.x, batch.x[:2] * 9]), torch.cat([batch.y, batch.y[:2]]))
        padded = padded._replace(mask=torch.tensor([1.0] * len(batch.y) + [0.0, 0.0]))
        whole = method.loss(ctx, task, params, batch)
        torch.testing.assert_close(method.loss(ctx, task, params, padded), whole)
