"""FedCOG: what a client makes up for want of classes, both of its losses in NumPy, its memories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, FedCOG
from fedsim.algorithms.averaging.fedcog import choose_rare_labels
from fedsim.checkpoints.serialization import pack, unpack
from fedsim.data.dataset import Examples
from fedsim.engine.pools import SerialPool
from fedsim.models import make_net
from tests.fedsim.federations import federation, gaussian_dataset
from tests.fedsim.linear_models import softmax
from tests.fedsim.methods import MOMENTUM, run, visited


def test_fedcog_makes_up_what_a_client_lacks() -> None:
    labels, count = choose_rare_labels(torch.tensor([10.0, 4.0, 0.0, 10.0]), 256)
    # needs 0, 6, 10, 0 of 16: 96 of class 1, 160 of class 2
    assert float(count) == 256
    assert torch.bincount(labels, minlength=4).tolist() == [0, 96, 160, 0]
    labels, count = choose_rare_labels(torch.tensor([5.0, 3.0, 2.0]), 16)
    # 6.4 and 9.6 are rounded down: one place is left over
    assert (labels[:15].tolist(), float(count)) == ([1] * 6 + [2] * 9, 15)
    assert choose_rare_labels(torch.tensor([5.0, 5.0]), 16)[1] == 0


def test_fedcogs_loss_of_what_it_makes_up_is_numpys() -> None:
    rng = np.random.default_rng(0)
    taught, own, labels = (
        rng.normal(size=(6, 3)) * 3,
        rng.normal(size=(6, 3)) * 3,
        np.array([0, 1, 2, 0, 1, 2]),
    )
    p, q = softmax(own), softmax(taught)
    p, q, m = (np.clip(each, 0.01, 0.99) for each in (p, q, (p + q) / 2))
    js = ((m * np.log(m / p)).sum(-1) / 2 + (m * np.log(m / q)).sum(-1) / 2)[:5].mean()
    fit = -np.log(softmax(taught)[np.arange(6), labels])[:5].mean()
    mask = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    found = FedCOG(lambda_dis=0.3).synthesis_loss(*map(torch.from_numpy, (taught, own, labels)), mask)
    assert float(found) == pytest.approx(fit + 0.3 * (1 - js), rel=1e-6)


def test_fedcogs_inputs_are_what_the_global_model_takes_for_their_class() -> None:
    population = federation()
    trained = run(FedAvg(), federation(rounds=6))[-1].state.params
    method = FedCOG(start_round=0, samples=32, descent=30, rate=0.2)
    ctx, task = visited(method, population)
    task = task._replace(broadcast={"params": trained}, client_state={"previous": population.nets[0].init(9)})
    made, (labels, _) = method.make_synthetic_inputs(ctx, task), choose_rare_labels(task.label_counts, 32)
    wanted = int(made["count"])
    found = ctx.net(trained, made["inputs"])
    assert (found[:wanted].argmax(-1) == labels[:wanted]).float().mean() > 0.95
    torch.testing.assert_close(found[:wanted], made["logits"][:wanted])


def test_fedcog_goes_on_from_client_states_out_of_a_checkpoint_as_from_those_out_of_training() -> None:
    rng = np.random.default_rng(0)
    data = replace(
        gaussian_dataset(),
        train=Examples(
            rng.normal(size=(24, 1, 28, 28)).astype(np.float32), np.repeat([0, 1, 2], [4, 10, 10])
        ),
        input_shape=(1, 28, 28),
    )
    net = make_net("fedgen_cnn", input_shape=(1, 28, 28), num_classes=4)
    population = replace(federation([6, 18], local=MOMENTUM), dataset=data, nets=(net,))
    method = FedCOG(start_round=1, samples=8, descent=2)
    pool, again = SerialPool(method, population), SerialPool(method, population)
    ctx, state = population.context(0), method.init_server_state(population.context(0))
    state = method.aggregate(ctx, state, pool.begin_training(ctx, state, [0, 1])())
    again.restore_client_states(unpack(pack(dict(pool.client_states()))))
    ctx = population.context(1)
    found, expected = (each.begin_training(ctx, state, [0, 1])() for each in (again, pool))
    assert found.memory_digest == expected.memory_digest


def test_fedcogs_local_loss_is_numpys() -> None:
    """The cross-entropy of the batch, and KL(global || student) on the made-up inputs that were drawn."""
    population, method = federation(), FedCOG(start_round=0, samples=16, descent=2, lambda_kd=0.7)
    ctx, task = visited(method, population)
    task = task._replace(client_state={"previous": population.nets[0].init(9)})
    made = method.make_synthetic_inputs(ctx, task)
    task = task._replace(instruction={"made": made})
    batch, params = task.batches[0], population.nets[0].init(3)
    inputs = made["inputs"][(batch.noise["chosen"].double().numpy() * float(made["count"])).astype(int)]
    logits, student = (ctx.net(params, x).double().numpy() for x in (batch.x, inputs))
    p, q = softmax(ctx.net(task.broadcast["params"], inputs).double().numpy()), softmax(student)
    entropy = -np.log(softmax(logits)[np.arange(len(batch.y)), batch.y.numpy()]).mean()
    expected = entropy + 0.7 * (p * np.log(p / q)).sum(-1).mean()
    assert float(method.loss(ctx, task, params, batch)) == pytest.approx(expected, rel=1e-5)


def test_fedcog_learns_nothing_made_up_where_classes_are_even() -> None:
    population = federation()
    method = FedCOG(start_round=0, samples=8, descent=2)
    ctx, task = visited(method, population)
    even = task._replace(label_counts=torch.full((4,), 5.0))
    found, plain = method.train_client(ctx, even), FedAvg().train_client(ctx, even)
    assert all(torch.equal(found.upload["params"][k], v) for k, v in plain.upload["params"].items())
