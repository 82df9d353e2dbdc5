"""FedDistill and FedDistill+: identities, the loss and the tables in NumPy, absent labels, bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg, FedDistill, FedDistillPlus
from fedsim.clients.population import Population
from fedsim.core import ClientTask, Context, ReducedUpdates, Traffic
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from tests.fedsim.algorithms.test_fedgen import digits
from tests.fedsim.federations import federation
from tests.fedsim.linear_models import softmax
from tests.fedsim.methods import MOMENTUM, run, same_models


def test_without_its_term_it_is_fedavg_or_everybody_alone() -> None:
    population = federation(local=MOMENTUM, cohort_size=4, rounds=3)
    assert same_models(FedAvg(), FedDistillPlus(gamma=0.0), population)
    assert not same_models(FedAvg(), FedDistillPlus(), population)
    alone = federation([0, 20], local=MOMENTUM, rounds=3)
    method = FedDistill(gamma=0.0)
    pool = SerialPool(method, alone)
    list(simulate(method, alone, pool))
    single = run(FedAvg(), alone)[-1].state.params  # client 0 holds nothing: the mean is client 1's model
    own = pool.client_states()[1]["own"]
    assert all(torch.equal(own[key], value) for key, value in single.items())


def test_bytes_are_the_classes_squared() -> None:
    model = 4 * (26_434 + 44)
    first, second = (result.traffic for result in run(FedDistill(), digits()))
    assert (first.down, first.up, second.down, second.up) == (0, 2 * 400, 2 * 400, 2 * 400)
    first, second = (result.traffic for result in run(FedDistillPlus(), digits()))
    assert (first.down, second.down) == (2 * model, 2 * (model + 400))
    assert first.up == second.up == 2 * (model + 400)


def arrived(method: FedDistillPlus, population: Population, client: int) -> tuple[Context, ClientTask]:
    """A client's visit in round 2, with rows of every label but the third."""
    ctx = population.context(2)
    rows = torch.randn((4, 4), generator=torch.Generator().manual_seed(0))
    rows[2] = torch.nan
    broadcast = {**method.broadcast(ctx, method.init_server_state(ctx)), "logits": {"rows": rows}}
    return ctx, SerialPool(method, population).worker.loader.make_task(
        method, ctx, client, broadcast, {}, None
    )


@pytest.mark.parametrize("client", [0, 9], ids=["three examples", "thirty-eight"])
def test_the_loss_is_numpys(client: int) -> None:
    method = FedDistillPlus(gamma=0.3)
    ctx, task = arrived(method, federation(), client)
    batch, params, rows = task.batches[0], ctx.net.init(4), task.broadcast["logits"]["rows"]
    assert client == 0 or (batch.y == 2).any()
    q, y = softmax(ctx.net(params, batch.x).double().numpy()), batch.y.numpy()
    p = softmax(rows.double().numpy())
    terms = [0.0 if label == 2 else (p[label] * np.log(p[label] / q[at])).sum() for at, label in enumerate(y)]
    expected = -np.log(q[np.arange(len(y)), y]).mean() + 0.3 * np.mean(terms)
    assert float(method.loss(ctx, task, params, batch)) == pytest.approx(expected, rel=1e-5)
    moved = {key: value.requires_grad_() for key, value in params.items()}
    method.loss(ctx, task, moved, batch).backward()
    assert all(torch.isfinite(value.grad).all() for value in moved.values() if value.grad is not None)


def test_rows_are_of_one_round_and_of_those_that_hold_the_label() -> None:
    """Recomputed in NumPy from what the clients keep after the second round."""
    population = federation([3, 5, 20], rounds=2, cohort_size=2)
    method = FedDistill()
    pool = SerialPool(method, population)
    result = list(simulate(method, population, pool))[-1]
    data, net, found = population.dataset.train, population.nets[0], []
    for client in result.cohort:
        mine = population.partition.client_positions(client)
        x, y = torch.from_numpy(data.x[mine]), data.y[mine]
        logits = net(pool.client_states()[client]["own"], x).double().numpy()
        found.append(
            [logits[y == label].mean(0) if (y == label).any() else np.full(4, np.nan) for label in range(4)]
        )
    table: Any = np.array(found)
    assert np.isnan(table).any()
    with np.errstate(all="ignore"):
        expected = np.array(
            [[np.mean(column[~np.isnan(column)]) for column in row.T] for row in table.transpose(1, 0, 2)]
        )
    np.testing.assert_allclose(result.state.logits.numpy(), expected, rtol=1e-5)


def test_a_label_that_nobody_holds_has_no_row_and_harms_nothing() -> None:
    population = federation([2, 2], rounds=3)
    held = set(population.dataset.train.y[:4].tolist())
    assert len(held) < 4
    result = run(FedDistill(), population)[-1]
    unknown = result.state.logits.isnan().all(1)
    assert {label for label in range(4) if not unknown[label]} == held
    assert np.isfinite(result.metrics["train_loss"])


@pytest.mark.parametrize("diverged", [[np.inf, 0, 0, 0], [np.nan, 0, 0, 0], [3e38, -3e38, 0, 0]])
def test_rows_of_a_diverged_client_count_for_nothing(diverged: list[float]) -> None:
    population, method = federation([20, 20], rounds=2), FedDistill()
    ctx, sound = population.context(0), torch.arange(16.0).view(4, 4)
    state, rows = method.init_server_state(ctx), [sound, torch.tensor([diverged] * 4)]
    payloads = {"params": {}, "logits": [{"rows": each} for each in rows]}
    reduced = ReducedUpdates(payloads, (0, 1), (20, 20), (20, 20), {}, Traffic())
    torch.testing.assert_close(method.aggregate(ctx, state, reduced).logits, sound)


def test_every_client_is_scored_with_its_own_model() -> None:
    population = federation([20, 30], rounds=2)
    method = FedDistill()
    pool = SerialPool(method, population)
    result = list(simulate(method, population, pool))[-1]
    test, net = population.dataset.test, population.nets[0]
    correct = [
        int((net(memory["own"], torch.from_numpy(test.x.copy())).argmax(-1).numpy() == test.y).sum())
        for _, memory in sorted(pool.client_states().items())
    ]
    assert result.personal is not None
    assert result.personal.correct.tolist() == correct
    assert "global_accuracy" not in result.metrics
