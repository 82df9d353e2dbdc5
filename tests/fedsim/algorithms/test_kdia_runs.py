"""Whole runs of KDIA: the teacher against the clients' own last models, the generator against the student."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import KDIA, FedAvg
from fedsim.base import tree
from fedsim.base.digest import digest
from fedsim.core import ClientTask, Context, LocalTraining
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.techniques.generator_training import make_joint_classifier, train_generator
from fedsim.techniques.last_models import POWERS_BY_KIND, make_teacher
from tests.fedsim.algorithms.test_kdia import direct
from tests.fedsim.federations import federation


@pytest.mark.parametrize("kind", POWERS_BY_KIND)
def test_in_a_run_the_teacher_is_the_direct_sum_over_all_clients(kind: Any) -> None:
    """30 rounds of 2 of 30 clients: ages and visits from the cohorts, last models from what clients keep.

    The weights are also found from the teacher itself: it is a combination of the last models, and of the
    first global model, with which those that never came would count.
    """
    sizes = [3 + k % 7 for k in range(30)]
    population = federation(
        sizes, cohort_size=2, rounds=30, local=LocalTraining(epochs=1, batch_size=8, lr=0.1)
    )
    method = KDIA(lambda_gen=0.0, weights=kind)
    pool = SerialPool(method, population)
    results = list(simulate(method, population, pool))
    last, visits = np.full(30, -1.0), np.zeros(30)
    for result in results:
        last[list(result.cohort)] = result.round - 1
        visits[list(result.cohort)] += 1
    weights = direct(kind, 29, last, visits, np.array(sizes, float))
    seen, memories = np.flatnonzero(visits), pool.client_states()
    assert 2 < len(seen) < 30
    assert len(set(last[seen])) > 10

    def flat(params: Any) -> Any:
        return np.concatenate([value.double().numpy().ravel() for value in params.values()])

    models = np.stack([flat(memories[k]["model"]) for k in seen])
    state = results[-1].state
    exact = flat(make_teacher(state.sums, {key: value.double() for key, value in state.params.items()}))
    np.testing.assert_allclose(exact, weights[seen] @ models, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(flat(method.teacher(state)), exact, rtol=1e-6, atol=1e-9)
    first = flat(method.init_server_state(population.context(0)).params)
    found = np.linalg.lstsq(np.vstack([models, first]).T, exact, rcond=None)[0]
    np.testing.assert_allclose(found, [*weights[seen], 0.0], atol=1e-6)
    assert found.sum() == pytest.approx(1, abs=1e-6)


def test_without_distillation_students_are_fedavgs_and_the_teacher_is_still_scored() -> None:
    """The control: what the teacher gains by averaging alone; its traffic is FedAvg's."""
    sizes = [3 + k % 7 for k in range(12)]
    population = federation(sizes, cohort_size=3, rounds=8)
    method = KDIA(lambda_kd=0.0, lambda_gen=0.0)
    pool = SerialPool(method, population)
    last, visits = np.full(12, -1.0), np.zeros(12)
    test = population.dataset.test
    plain = simulate(FedAvg(), population, SerialPool(FedAvg(), population))
    for student, result in zip(plain, simulate(method, population, pool), strict=True):
        assert digest(result.state.params) == digest(student.state.params)
        assert result.metrics["global_accuracy"] == student.metrics["global_accuracy"]
        assert (result.traffic.down, result.traffic.up) == (student.traffic.down, student.traffic.up)
        last[list(result.cohort)] = result.round - 1
        visits[list(result.cohort)] += 1
        weights = direct("geometric", result.round - 1, last, visits, np.array(sizes, float))
        kept = pool.client_states()
        mean = {
            key: sum(weights[k] * kept[k]["model"][key].double() for k in kept).float()
            for key in result.state.params
        }
        logits = population.nets[0](mean, torch.tensor(np.asarray(test.x)))
        accuracy = float((logits.argmax(-1).numpy() == test.y).mean())
        assert result.metrics["teacher_accuracy"] == pytest.approx(accuracy, abs=1e-9)


class Mute(KDIA):
    """Its clients' classifiers say nothing."""

    def make_update(self, ctx: Context, task: ClientTask, trained: Any) -> Any:
        update = super().make_update(ctx, task, trained)
        return update._replace(upload={**update.upload, "heads": tree.zeros_like(update.upload["heads"])})


def test_the_student_takes_generated_features_for_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """After five rounds far above the chance of 1/4; not where the classifiers that came say nothing.

    The generator is shown each client's own classifier, by its share of the cohort's examples.
    """
    population = federation([4, 10, 30, 60, 80], cohort_size=3, rounds=5)
    schedule = {"generator_epochs": 4, "generator_batches": 10, "generator_batch_size": 32}
    options = {**schedule, "generator_noise": 8, "generator_lr": 0.01}
    asked = list[Any]()

    def judge(net: Any, where: Any, heads: Any, shares: Any, device: Any) -> Any:
        asked.append((heads, shares))
        return make_joint_classifier(net, where, heads, shares, device)

    monkeypatch.setattr("fedsim.algorithms.generators.kdia.make_joint_classifier", judge)
    found = {}
    for method in (KDIA(**options), Mute(**options)):
        pool = SerialPool(method, population)
        last = list(simulate(method, population, pool))[-1]
        ctx, wanted = population.context(5), torch.arange(400) % 4
        noise = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
        made = method.generator(ctx)(last.state.generator["params"], noise, wanted)
        said = ctx.net.classify(last.state.params, made).argmax(-1)
        found[type(method)] = float((said == wanted).float().mean())
        if type(method) is KDIA:
            heads, shares = asked[-1]
            sizes = np.array([population.partition.size(client) for client in last.cohort])
            np.testing.assert_allclose(shares, sizes / sizes.sum())
            for head, client in zip(heads, last.cohort, strict=True):
                assert head.keys() == ctx.net.head
                kept = pool.client_states()[client]["model"]
                assert all(torch.equal(value, kept[key]) for key, value in head.items())
    assert found[KDIA] > 0.8
    assert found[Mute] < 0.5


def test_models_are_being_scored_while_the_generator_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scoring begins before the generator's training, and is only waited for behind it."""
    told = list[str]()

    class Watching(SerialPool):
        def begin_evaluation(self, *asked: Any) -> Any:
            told.append("begun")
            score = super().begin_evaluation(*asked)
            return lambda: (told.append("waited for"), score())[1]

    def taking(*given: Any) -> Any:
        told.append("learning")
        return (yield from train_generator(*given))

    monkeypatch.setattr("fedsim.algorithms.generators.generator_base.train_generator", taking)
    method = KDIA(generator_epochs=1, generator_batches=2, generator_batch_size=4, generator_noise=4)
    population = federation(rounds=2)
    assert len(list(simulate(method, population, Watching(method, population)))) == 2
    assert told == ["begun", "learning", "waited for"] * 2
