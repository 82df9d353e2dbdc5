"""Samplers: identities, then who comes, once more in NumPy; around methods, under curricula, in stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from fedsim.algorithms import FedAvg, FedCL, FedPer, FedProx, Scaffold
from fedsim.base import rng
from fedsim.base.digest import digest
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, Reduction
from fedsim.curriculum import ClientCurriculum, DataCurriculum
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import FedsimError
from fedsim.samplers import SAMPLERS, CohortSampling, Sampler
from fedsim.samplers.oort import Oort, score_clients
from fedsim.samplers.sampler import ClientScores
from fedsim.samplers.samplers import Availability, LossWeighted, PowerOfChoice, RoundRobin
from tests.fedsim.federations import federation

NOTHING = ClientScores(np.full(10, np.nan, np.float32), np.full(10, -1))

OTHERS = [RoundRobin(), Availability(), LossWeighted(), PowerOfChoice(candidates=6), Oort()]


Known = dict[int, tuple[int, "np.ndarray[Any, Any]"]]
"""{client: the round in which it took part last, and the losses of its examples then}."""


def run(algorithm: Algorithm, population: Population) -> list[RoundResult]:
    return list(simulate(algorithm, population, SerialPool(algorithm, population)))


def sampled(sampler: Sampler, base: Algorithm | None = None) -> CohortSampling:
    return CohortSampling(base=base or FedAvg(), sampler=sampler)


def measure(population: Population, result: RoundResult | None, client: int) -> np.ndarray[Any, Any]:
    """The losses of a logistic model on a client's examples, by NumPy."""
    params = result.state.params if result else population.nets[0].init(population.settings.seed)
    rows = population.partition.client_positions(client)
    data = population.dataset.train
    logits = data.x[rows].astype(np.float64) @ params["head.weight"].double().numpy().T
    logits += params["head.bias"].double().numpy()
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), data.y[rows]]


# identities


@pytest.mark.parametrize(
    "base", [FedAvg(), FedProx(mu=0.1), Scaffold(), FedPer()], ids=lambda b: type(b).__name__
)
@pytest.mark.parametrize(
    "sampler", [SAMPLERS["uniform"](), PowerOfChoice(candidates=1), Availability(lowest=1.0)], ids=repr
)
def test_it_is_the_method_itself(sampler: Sampler, base: Algorithm) -> None:
    """A uniform sampler; as many candidates as places; and everybody online, up to who is drawn."""
    population = federation(cohort_size=4)
    if sampler.surveys and not base.deploys_models:
        with pytest.raises(ValueError, match="no global model"):
            sampled(sampler, base)
        return
    plain, found = run(base, population), run(sampled(sampler, base), population)
    if not isinstance(sampler, Availability):
        assert [r.cohort for r in found] == [r.cohort for r in plain]
        assert [digest(r.state.base) for r in found] == [r.digest for r in plain]
        assert [r.metrics for r in found] == [r.metrics for r in plain]
    assert [len(r.cohort) for r in found] == [4] * 3


@pytest.mark.parametrize("sampler", OTHERS[2:], ids=repr)
def test_with_everybody_in_every_round_it_is_the_method_itself(sampler: Sampler) -> None:
    plain, found = run(FedAvg(), federation()), run(sampled(sampler), federation())
    assert [digest(r.state.base) for r in found] == [r.digest for r in plain]


# who comes


def test_round_robin_takes_everybody_equally_often() -> None:
    population = federation(cohort_size=4, rounds=5)
    results = run(sampled(RoundRobin()), population)
    assert set(Counter(client for r in results for client in r.cohort).values()) == {2}
    order = rng.stream(population.settings.seed, "round robin").permutation(10)
    for number, result in enumerate(results):
        assert list(result.cohort) == sorted(order[(4 * number + np.arange(4)) % 10])


def test_round_robin_is_in_turn_among_the_clients_that_may_come() -> None:
    population, among = federation(cohort_size=2, rounds=9), np.array([0, 1, 2, 8, 9])
    came = [
        RoundRobin().select(population.context(t), among, NOTHING, np.random.default_rng(0)) for t in range(5)
    ]
    assert Counter(np.concatenate(came).tolist()) == dict.fromkeys(among.tolist(), 2)


def test_who_is_offline_does_not_take_part() -> None:
    population = federation(cohort_size=8, rounds=10)
    results = run(sampled(Availability(lowest=0.0)), population)
    seed = population.settings.seed
    likely = rng.stream(seed, "availability").random(10)
    for number, result in enumerate(results):
        online = np.flatnonzero(rng.stream(seed, "online", number).random(10) < likely)
        assert set(result.cohort) <= set(online.tolist())
        assert len(result.cohort) == min(8, len(online))
    assert len({len(r.cohort) for r in results}) > 2
    ctx, nobody = population.context(0), Availability(lowest=0.0)
    offline = int(np.argmin(likely))
    assert nobody.select(ctx, np.array([offline]), NOTHING, np.random.default_rng(0)).tolist() == [offline]


def test_power_of_choice_takes_the_worst_of_its_candidates() -> None:
    population = federation(cohort_size=2, rounds=4, model="logistic")
    results = run(sampled(PowerOfChoice(candidates=5)), population)
    before = None
    for number, result in enumerate(results):
        draw = rng.stream(population.settings.seed, "cohort", number)
        candidates = sorted(draw.choice(10, 5, replace=False).tolist())
        losses = [measure(population, before, client).mean() for client in candidates]
        worst = sorted(candidates[i] for i in np.argsort(losses)[-2:])
        assert list(result.cohort) == worst
        # Each candidate receives the model and sends one number.
        assert result.traffic.by_payload["survey"] == 5 * (4 * population.nets[0].count_parameters() + 4)
        before = result


@pytest.mark.parametrize("sampler", [LossWeighted(), Oort()], ids=repr)
def test_scores_are_those_of_the_received_model(sampler: Sampler) -> None:
    population = federation(cohort_size=4, rounds=3, model="logistic")
    known, before = np.full(10, np.nan), None
    for result in run(sampled(sampler), population):
        for client in result.cohort:
            losses = measure(population, before, client)
            known[client] = (
                len(losses) * np.sqrt((losses**2).mean()) if isinstance(sampler, Oort) else losses.mean()
            )
        np.testing.assert_allclose(result.state.scores.numpy(), known, rtol=1e-4)
        assert result.traffic.by_payload["score"] == 4 * 4
        before = result


def draw_by_loss(number: int, known: Known, draw: np.random.Generator) -> set[int]:
    losses = [np.mean(known[c][1]) if c in known else None for c in range(10)]
    mean = np.mean([loss for loss in losses if loss is not None]) if known else 1.0
    weights = np.array([mean if loss is None else loss for loss in losses])
    return set(draw.choice(10, 4, replace=False, p=weights / weights.sum()).tolist())


def draw_by_oort(number: int, known: Known, draw: np.random.Generator) -> set[int]:
    """Algorithm 1: half of the four places explore, the others exploit."""
    new, old = [c for c in range(10) if c not in known], sorted(known)
    explored = min(len(new), max(2, 4 - len(old)))
    chosen = set(draw.choice(new, explored, replace=False).tolist()) if explored else set()
    if explored == 4:
        return chosen
    utility = np.array([len(known[c][1]) * np.sqrt(np.mean(known[c][1] ** 2)) for c in old])
    utility = np.minimum(utility, np.quantile(utility, 0.95))
    scores = (utility - utility.min()) / (utility.max() - utility.min())
    scores += [np.sqrt(0.1 * np.log(number + 1) / (known[c][0] + 1)) for c in old]
    able = scores >= 0.95 * sorted(scores)[explored - 4]
    weights = scores[able] / scores[able].sum()
    drawn = draw.choice(np.array(old)[able], 4 - explored, replace=False, p=weights)
    return chosen | set(drawn.tolist())


@pytest.mark.parametrize(
    ("sampler", "expect"),
    [(LossWeighted(), draw_by_loss), (Oort(exploration=0.5, decay=1.0), draw_by_oort)],
    ids=["loss weighted", "oort"],
)
def test_six_cohorts_in_numpy(
    sampler: Sampler, expect: Callable[[int, Known, np.random.Generator], set[int]]
) -> None:
    """From losses that NumPy measures, with the draws of the round's own stream."""
    population = federation(cohort_size=4, rounds=6, model="logistic")
    known, before = Known(), None
    for number, result in enumerate(run(sampled(sampler), population)):
        draw = rng.stream(population.settings.seed, "cohort", number)
        assert set(result.cohort) == expect(number, known, draw)
        known |= {client: (number, measure(population, before, client)) for client in result.cohort}
        before = result


def test_a_large_loss_comes_more_often() -> None:
    population = federation(cohort_size=1)
    ctx = population.context(0)
    known = NOTHING._replace(values=np.array([1, 2, 5, np.nan] + [0] * 6, np.float32))
    rngs = map(np.random.default_rng, range(2000))
    drawn = Counter(int(LossWeighted().select(ctx, np.arange(4), known, rng)[0]) for rng in rngs)
    # The unknown one has the mean of the others, 8 / 3.
    expected = np.array([1, 2, 5, 8 / 3]) / (8 + 8 / 3)
    np.testing.assert_allclose([drawn[c] / 2000 for c in range(4)], expected, atol=0.04)


def test_oort_scores_are_those_of_the_paper() -> None:
    utilities, rounds = np.array([1.0, 3.0, 2.0, np.nan], np.float32), np.array([0, 3, 1, 2])
    clipped = np.minimum([1, 3, 2, 0], np.quantile([1, 3, 2, 0], 0.95))
    expected = clipped / clipped.max() + np.sqrt(0.1 * np.log(5) / (rounds + 1))
    np.testing.assert_allclose(score_clients(utilities, rounds, 4), expected)


def test_oort_explores_first_and_exploits_then() -> None:
    def cohorts(sampler: Oort) -> list[set[int]]:
        return [set(r.cohort) for r in run(sampled(sampler), federation(cohort_size=4, rounds=3))]

    assert set().union(*cohorts(Oort(exploration=1.0, decay=1.0))) == set(range(10))
    first, second, _ = cohorts(Oort(exploration=1.0, decay=0.0, least_exploration=0.0))
    assert first == second


# around methods, under curricula, on every pool


def test_methods_that_choose_their_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="FedCL chooses its clients itself"):
        sampled(Oort(), FedCL())
    with pytest.raises(ValueError, match="remove the sampler"):
        ClientCurriculum(base=sampled(Oort()), batches="all")


@pytest.mark.parametrize("scores", ["all", "kept"])
@pytest.mark.parametrize("sampler", OTHERS, ids=repr)
def test_under_the_client_curriculum_it_selects_among_the_open_clients(sampler: Sampler, scores: Any) -> None:
    population = federation(cohort_size=2, rounds=6)
    algorithm = ClientCurriculum(base=sampled(sampler, DataCurriculum(base=FedAvg())), scores=scores, b=0.3)
    for result in run(algorithm, population):
        assert 1 <= len(result.cohort) <= 2
        ready = algorithm._list_open_clients(population.context(result.round - 1), result.state)
        if scores == "all":
            assert set(result.cohort) <= set(ready.tolist())


def test_under_the_client_curriculum_power_of_choice_takes_the_worst_open_clients() -> None:
    """Everybody open is a candidate here."""
    population = federation(cohort_size=2, rounds=5, model="logistic")
    algorithm = ClientCurriculum(base=sampled(PowerOfChoice(candidates=10)), scores="all", b=0.3)
    before = None
    for result in run(algorithm, population):
        is_open = algorithm._list_open_clients(population.context(result.round - 1), result.state).tolist()
        losses = {client: measure(population, before, client).mean() for client in is_open}
        assert set(result.cohort) == set(sorted(losses, key=losses.__getitem__)[-2:])
        before = result


@pytest.mark.parametrize("sampler", OTHERS[2:], ids=repr)
def test_stacks_select_the_same_clients(sampler: Sampler) -> None:
    population = federation([16] * 10, cohort_size=4)
    algorithm = sampled(sampler)
    expected = run(algorithm, population)
    found = list(simulate(algorithm, population, StackedPool(algorithm, population, 2)))
    assert [r.cohort for r in found] == [r.cohort for r in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.state.scores.numpy(), other.state.scores.numpy(), rtol=1e-4)


@dataclass(frozen=True, kw_only=True)
class SendsScores(FedAvg):
    """FedAvg with a payload that has the name of the sampler's own."""

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        return {**super().broadcast(ctx, state), "score": {}}


@dataclass(frozen=True, kw_only=True)
class UploadsScores(FedAvg):
    """FedAvg with an upload that has the name of the sampler's own."""

    uploads: ClassVar = {**FedAvg.uploads, "score": Reduction.GATHER}


def test_a_payload_with_the_samplers_name_is_refused() -> None:
    """One payload would replace the other without a word."""
    message = "Scores has a payload 'score', and so has CohortSampling"
    with pytest.raises(FedsimError, match=message):
        sampled(Oort(), UploadsScores())
    with pytest.raises(FedsimError, match=message):
        run(sampled(Oort(), SendsScores()), federation(cohort_size=4))
