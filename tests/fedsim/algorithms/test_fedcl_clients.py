"""What a client of FedCL descends, works out and tells: its losses and its difficulties in NumPy."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import lambertw

from fedsim.algorithms import FedCL
from fedsim.clients.population import Population
from fedsim.engine.pools import SerialPool
from fedsim.models.net import Params
from fedsim.techniques.gaussian_mixtures import fit_mixture
from fedsim.techniques.generators import draw_labels
from tests.fedsim.federations import federation
from tests.fedsim.linear_models import softmax
from tests.fedsim.methods import QUICK, run

LIGHT = QUICK["fedcl"]
TAU, STRENGTH = np.log(10), 0.5


def confidence(losses: Any) -> Any:
    """The closed form, in NumPy and SciPy."""
    return np.exp(-lambertw(np.maximum(-2 / np.e, (losses - TAU) / STRENGTH) / 2 + 1e-15).real)


def superloss(losses: Any) -> Any:
    """Eq. 7."""
    sigma = confidence(losses)
    return (losses - TAU) * sigma + STRENGTH * np.log(sigma) ** 2


def entropies(logits: Any, y: Any) -> Any:
    return -np.log(softmax(logits)[np.arange(len(y)), y])


def difficulties(population: Population, client: int, model: Params) -> NDArray[np.float64]:
    """Eq. 6 of all that a client holds, by a model."""
    rows = population.partition.client_positions(client)
    data = population.dataset.train
    logits = population.nets[0](model, torch.from_numpy(np.asarray(data.x[rows]))).double().numpy()
    losses = entropies(logits, data.y[rows])
    return np.asarray((losses - TAU) * confidence(losses))


@pytest.mark.parametrize(("samples", "made"), [(None, 8), (8, 8), (12, 12), (3, 3)])
def test_a_local_loss_is_numpys(samples: int | None, made: int) -> None:
    """Eq. 19 for one batch of 8: the generator by its layers, the classifier, the closed form.

    Of as many features as examples the loss counts alpha times, and of others in proportion.
    """
    method, population = FedCL(**{**LIGHT, "samples": samples}, alpha=0.7), federation()
    ctx = population.context(5)
    state = method.init_server_state(ctx)
    sent = {**method.broadcast(ctx, state), "generator": method.generator(ctx).net.init(3)}
    sent |= {"labels": {"chances": torch.tensor([0.0, 0.5, 0.25, 0.25])}}
    sent |= {"difficulties": {"quantiles": torch.tensor([-2.5, -1.5, 0.5])}}
    task = SerialPool(method, population).worker.loader.make_task(method, ctx, 5, sent, {}, None)
    batch, params = task.batches[0], ctx.net.init(4)
    assert len(batch.y) == 8
    assert batch.noise["chance"].shape == (made,)

    w = {key: value.double().numpy() for key, value in task.broadcast["generator"].items()}
    labels = np.searchsorted([0.0, 0.5, 0.75, 1.0], batch.noise["chance"].numpy(), side="right")
    wanted = np.array([-2.5, -1.5, 0.5])[np.int64(3 * batch.noise["places"].numpy())]
    x = np.concatenate([np.eye(4)[labels], batch.noise["noise"].numpy(), wanted[:, None]], 1)
    hidden = x @ w["hidden.0.weight"].T + w["hidden.0.bias"]
    hidden = hidden * w["hidden.1.weight"] / np.sqrt(w["hidden.1.running_var"] + 1e-5) + w["hidden.1.bias"]
    features = np.maximum(hidden, 0) @ w["output.0.weight"].T + w["output.0.bias"]
    judged = features @ params["head.weight"].double().numpy().T + params["head.bias"].double().numpy()

    real = entropies(ctx.net(params, batch.x).double().numpy(), batch.y.numpy())
    expected = superloss(real).mean() + 0.7 * made / 8 * superloss(entropies(judged, labels)).mean()
    assert float(method.loss(ctx, task, params, batch)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scored_by", ["trained", "received"])
def test_difficulties_are_numpys_over_all_that_a_client_holds(
    scored_by: Literal["trained", "received"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eqs 6 and 12 after one visit; 38 examples are looked at sixteen at a time."""
    monkeypatch.setattr("fedsim.data.dataset.AT_ONCE", 16)
    method, population = FedCL(**LIGHT, scored_by=scored_by, average="all"), federation()
    ctx = population.context(0)
    state, pool = method.init_server_state(ctx), SerialPool(method, population)
    task = pool.worker.loader.make_task(method, ctx, 9, method.broadcast(ctx, state), {}, None)
    assert [len(batch.y) for batch in task.examples.batches()] == [16, 16, 6]
    reduced = pool.begin_training(ctx, state, [4, 9])()
    trained = pool.client_states()
    for client, sent in zip((4, 9), reduced["difficulty"], strict=True):
        model = trained[client]["model"] if scored_by == "trained" else state.params
        expected = fit_mixture(difficulties(population, client, model), 3)
        assert expected[:, 2].sum() > 0.99
        np.testing.assert_allclose(sent["mixture"].numpy(), expected.numpy(), rtol=1e-3, atol=1e-5)


def test_what_goes_up_has_one_shape_whatever_a_client_holds_and_tells_of_no_example() -> None:
    """3 L numbers and the label counts besides the model: nothing that grows with the examples."""
    method = FedCL(**LIGHT, components=4, average="all")
    population = federation([1, 3, 38, 0, 150], rounds=1)
    ctx = population.context(0)
    state = method.init_server_state(ctx)
    pool = SerialPool(method, population)
    reduced = pool.begin_training(ctx, state, range(5))()
    for labels, sent in zip(reduced["labels"], reduced["difficulty"], strict=True):
        assert {key: (tuple(v.shape), v.dtype) for key, v in sent.items()} == {
            "mixture": ((4, 3), torch.float32)
        }
        assert {key: tuple(v.shape) for key, v in labels.items()} == {"counts": (4,)}
    model = 4 * population.nets[0].count_parameters()
    assert reduced.traffic.up == 5 * (model + 4 * 4 + 4 * 3 * 4)
    assert reduced.traffic.by_payload.keys() == {"params", "labels", "difficulty"}
    memories = pool.client_states()
    for client, sent in enumerate(reduced["difficulty"]):
        told = sent["mixture"].numpy()
        assert (told[:, 2] > 0).any() == (client in (2, 4))
        if client != 3:
            own = difficulties(population, client, memories[client]["model"])
            there = told[told[:, 2] > 0]
            assert (np.abs(there.ravel()[:, None] - own) > 1e-5).all()
            assert told.any() == (len(own) >= 5)


def test_labels_are_even_as_long_as_nobody_has_told_any() -> None:
    """The first cohort holds nothing: in the second round features are asked for of every class."""
    method, population = FedCL(**LIGHT, cap=9), federation([0, 20, 20], cohort_size=1, seed=1, rounds=2)
    first, second = run(method, population)
    assert first.cohort == (0,)
    assert second.cohort != (0,)
    assert first.state.labels.tolist() == [0.25] * 4
    ctx = population.context(1)
    sent = method.broadcast(ctx, first.state)
    task = SerialPool(method, population).worker.loader.make_task(
        method, ctx, second.cohort[0], sent, {}, None
    )
    chances = [batch.noise["chance"] for batch in task.batches]
    labels = draw_labels(task.broadcast["labels"]["chances"], torch.cat(chances))
    assert set(labels.tolist()) == {0, 1, 2, 3}
