"""The labels of KDIA's generated features: what a client reads of them, and the ways of drawing them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import KDIA
from fedsim.core import Batch, LocalTraining
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.techniques.generator_training import GeneratorTraining, draw_client_labels
from tests.fedsim.federations import federation
from tests.fedsim.methods import QUICK
from tests.fedsim.stacks import same_as_one_by_one

LIGHT = QUICK["kdia"]


def read_labels(monkeypatch: pytest.MonkeyPatch, examples: int, **options: Any) -> list[Any]:
    """The labels that the loss of one client's generated features reads, step by step; batches of 8."""
    read = list[Any]()

    def heard(logits: Any, batch: Batch) -> Any:
        read.append(batch.y.numpy())
        return torch.zeros(())

    monkeypatch.setattr("fedsim.algorithms.generators.kdia.cross_entropy", heard)
    method = KDIA(lambda_kd=0.0, **{**LIGHT, **options})
    population = federation([examples], local=LocalTraining(epochs=4, batch_size=8))
    ctx = population.context(0)
    sent = method.broadcast(ctx, method.init_server_state(ctx))
    task = SerialPool(method, population).worker.loader.make_task(method, ctx, 0, sent, {}, None)
    for batch in task.batches:
        method.generated_loss(ctx, task, task.broadcast["params"], batch)
    return read


@pytest.mark.parametrize("examples", [8, 14, 40])
def test_every_pass_reads_the_same_labels_as_many_as_there_are_examples(
    monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    """Alg. 2, line 7: N_k labels, shuffled in each pass; one batch is a whole pass where N_k is B."""
    read = read_labels(monkeypatch, examples)
    each = -(-examples // 8)
    passes = [np.concatenate(read[at : at + each]) for at in range(0, 4 * each, each)]
    assert [len(one) for one in passes] == [examples] * 4
    assert all(np.array_equal(np.sort(one), np.sort(passes[0])) for one in passes)
    assert not all(np.array_equal(one, passes[0]) for one in passes)


def test_a_client_of_less_than_a_batch_draws_other_labels_in_every_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alg. 2, line 5: E N_k of them."""
    read = read_labels(monkeypatch, 7)
    assert [len(one) for one in read] == [7] * 4
    assert len({tuple(np.bincount(one, minlength=4)) for one in read}) > 1


def test_labels_of_a_batch_are_drawn_anew_in_each() -> None:
    """Of one batch a pass, and of three."""
    method, rng = KDIA(labels="batch"), np.random.default_rng(0)
    ctx = federation(local=LocalTraining(epochs=4, batch_size=8)).context(0)
    for steps, examples in ((4, 8), (12, 24)):
        labels = method.draw_step_noise(ctx, rng, steps, 8, examples)["labels"].reshape(4, examples)
        assert len({tuple(np.bincount(each, minlength=4)) for each in labels}) > 1
    schedule = GeneratorTraining(
        epochs=5, batches=3, batch_size=8, lr=0.1, weight_decay=0.0, diversity="ratio"
    )
    drawn = {
        kind: np.stack(schedule.draw_step_labels(rng, 4, kind)).reshape(5, 24) for kind in ("pass", "batch")
    }
    kinds = {kind: {tuple(np.bincount(each, minlength=4)) for each in made} for kind, made in drawn.items()}
    assert len(kinds["pass"]) == 1 < len(kinds["batch"])


@pytest.mark.parametrize("examples", [7, 14])
def test_labels_of_the_data_are_those_of_the_steps_own_batch(
    monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    """Each pass reads the client's own labels, as often as it has them; nothing of the kind is drawn."""
    read = read_labels(monkeypatch, examples, labels="data")
    each = -(-examples // 8)
    population = federation([examples])
    own = np.sort(population.dataset.train.y[population.partition.client_positions(0)])
    for at in range(0, 4 * each, each):
        assert np.array_equal(np.sort(np.concatenate(read[at : at + each])), own)
    method = KDIA(labels="data")
    ctx, rng = federation().context(0), np.random.default_rng(0)
    assert list(method.draw_step_noise(ctx, rng, 4, 8, examples)) == ["noise"]


def test_the_server_draws_labels_anew_for_each_batch_where_clients_have_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nobody trains, so that the classifiers are the same, generators of both ways are as well."""
    population = federation(rounds=1, local=LocalTraining(epochs=1, batch_size=8, lr=0.0))
    ends = {}
    for labels in ("pass", "batch", "data"):
        method = KDIA(labels=labels, **LIGHT)
        *_, last = simulate(method, population, SerialPool(method, population))
        ends[labels] = last.state.generator["params"]
    same = [
        all(torch.equal(value, ends[other][key]) for key, value in ends["data"].items())
        for other in ("batch", "pass")
    ]
    assert same == [True, False]


@pytest.mark.parametrize("labels", ["pass", "data"])
def test_clients_at_once_are_clients_one_by_one(labels: Any) -> None:
    same_as_one_by_one(KDIA(labels=labels, **LIGHT), 4, torch.float32)


def test_a_curriculum_has_labels_for_every_example_it_opens() -> None:
    """9 examples in batches of 8: a paced step of the second of a pass has up to 8, and labels as many."""
    rows = draw_client_labels(np.random.default_rng(0), 4, steps=5, batch_size=8, num_examples=9)
    assert rows.shape == (5, 8)
    assert rows.max() < 4
    cut = [np.sort(np.concatenate([rows[at], rows[at + 1, :1]])) for at in (0, 2)]
    assert np.array_equal(*cut)
