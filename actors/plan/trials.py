"""Trials: small rounds of an experiment on the actors that would run it, timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from actors.plan.forecast import Outlook
from actors.plan.trial import Trial, grown, mean_traffic
from actors.ray_pool import RayPool
from fedsim.base import rng
from fedsim.base.digest import digest
from fedsim.base.progress import run_to_end
from fedsim.clients.population import Population
from fedsim.core import Algorithm, LocalTraining, Traffic
from fedsim.core.capabilities import ClientSurvey, capability, fullest, select_cohort
from fedsim.engine.cost_model import Costs, dealt, fit, together
from fedsim.engine.initial_state import make_state_and_traffic
from fedsim.engine.personal_evaluation import personal_evaluation_work, select_tested_clients
from fedsim.engine.pools import (
    count_bytes_down,
    count_survey_traffic,
    make_broadcasts,
    make_instructions,
    select_survey_models,
    stack_size_by_model,
)
from fedsim.engine.server_training import measure_server_training
from fedsim.engine.simulation import Personal, RoundResult, simulate
from fedsim.engine.worker import SHARD, count_shards
from fedsim.training.work import Work, client_work

LOOKED_AT = 20
"""Rounds whose cohorts are looked at: enough for a mean over clients of very different sizes."""

ENOUGH_ROUNDS, ENOUGH_SECONDS = 20, 4.0
"""Whole rounds are run until there are so many and they took so long: more would tell no more."""

REPEATS = 3

CLEARLY = 4
"""How many times the shortest trial a longer one has to take: what it is longer by must not be chance."""


class Trials:
    """Small rounds, cut down in clients and in local steps; and whole ones, where there is time for them.

    Args:
        algorithm: whose clients to run.
        population: the federation.
        pool: the actors, joined.
        device: where the server trains what is its own.
    """

    def __init__(
        self, algorithm: Algorithm, population: Population, pool: RayPool, device: str = "cpu"
    ) -> None:
        self.algorithm, self.population, self.pool = algorithm, population, pool
        self.device = device
        self.workers = len(pool.actor_infos)
        self.state, self.enrolling = make_state_and_traffic(algorithm, population)
        self.begun = self.latest = self.state  # with which the last whole round began, and ended
        self.done: list[Trial] = []
        self.asked: tuple[int, ...] = ()

    def survey(self, seconds: float) -> float:
        """Seconds of a round's survey; its answers go into the state, as cohorts may depend on them.

        Args:
            seconds: to spend, about; where a survey takes longer, a few clients answer for all.
        """
        ctx = self.population.context(0)
        self.asked = (
            tuple(cast(Any, self.algorithm).select_surveyed_clients(ctx, self.state))
            if capability(self.algorithm, ClientSurvey)
            else ()
        )
        if not self.asked:
            return 0.0
        few = self.asked[: 4 * self.workers]
        self._ask(few)
        losses, taken = self._ask(few)
        taken *= sum(map(self._size, self.asked)) / max(1, sum(map(self._size, few)))
        if taken < seconds:
            losses, taken = self._ask(self.asked)
        else:
            losses = np.full(len(self.asked), np.nanmean(losses))
        self.state = cast(Any, self.algorithm).apply_survey(ctx, self.state, losses)
        return taken

    def _ask(self, clients: Sequence[int]) -> tuple[NDArray[np.float64], float]:
        began = perf_counter()
        survey = self.pool.measure_losses(self.algorithm, self.population.context(0), self.state, clients)
        return survey.losses, perf_counter() - began

    @cached_property
    def cohorts(self) -> list[list[int]]:
        """The cohorts of the first rounds."""
        found = []
        for number in range(min(self.population.rounds, LOOKED_AT)):
            stream = rng.stream(self.population.seed, "cohort", number)
            found.append(
                list(select_cohort(self.algorithm, self.population.context(number), self.state, stream))
            )
        return found

    def train(self, cohort: Sequence[int], local: LocalTraining) -> Trial:
        """Run one round of these clients with this local training; its outcome is thrown away."""
        self._limit(local)
        ctx = self.pool.population.context(0)
        began = perf_counter()
        reduced = self.pool.begin_training(self.algorithm, ctx, self.state, cohort)()
        trained = perf_counter()
        digest(self.algorithm.aggregate(ctx, self.state, reduced))
        served, up = perf_counter(), Counter(reduced.traffic.by_payload)
        up.subtract(self.bytes_down(cohort))
        self.done.append(Trial(tuple(cohort), self._busiest(cohort), trained - began, served - trained, up))
        return self.done[-1]

    def _limit(self, local: LocalTraining) -> None:
        if self.pool.population.local != local:
            ray.get([actor.set_local_training.remote(local) for actor in self.pool.actor_group.actors])
            self.pool.population = replace(self.population, local=local)

    def _busiest(self, cohort: Sequence[int]) -> Work:
        population, nets = self.pool.population, self.population.nets
        width, steps = stack_size_by_model(self.algorithm, nets, self.pool.stack_size), population.count_steps
        hands = dealt(cohort, steps, steps, self.workers, len(nets), width)
        shares = (together(client_work(population.local, self._size(client)) for client in h) for h in hands)
        return max(shares, key=lambda work: (work.steps, work.examples))

    def _size(self, client: int) -> int:
        return self.population.partition.size(client)

    def warm_up(self) -> None:
        """Have one client of each architecture make one step."""
        for model in range(len(self.population.nets)):
            if client := self.chosen(model)[0][:1]:
                self.train(client, replace(self.population.local, steps=1))

    def costs(self, model: int, seconds: float) -> Costs:
        """Measure what the clients of one architecture cost.

        Args:
            model: its number.
            seconds: to spend, about.
        """
        few, many = self.chosen(model)
        if not few:
            return Costs()
        local, piece = self.population.local, seconds / (4 * REPEATS)
        one = replace(local, steps=1)
        self.train(few, one)
        first = median(self.train(few, one).seconds for _ in range(REPEATS))
        # A first step that was slow by chance, as on a busy machine, must not make the others long ones.
        enough = max(piece, min(CLEARLY * first, seconds))
        most = max(2, *(client_work(local, self._size(client)).steps for client in few))
        steps = grown(lambda n: self.train(few, replace(local, steps=n)), enough, 2, most)
        clients = grown(lambda n: self.train(many[:n], one), enough, len(few), len(many))
        half = replace(local, steps=steps, batch_size=max(1, local.batch_size // 2))
        shapes = ((few, one), (few, replace(local, steps=steps)), (few, half), (many[:clients], one))
        return fit([self._median(cohort, shape, piece) for cohort, shape in shapes])

    def chosen(self, model: int) -> tuple[list[int], list[int]]:
        """Of the first cohort that has such clients: the largest, one for each worker; and all of them."""
        models = len(self.population.nets)
        for cohort in self.cohorts:
            mine = [c for c in cohort if c % models == model and self.population.count_steps(c)]
            if mine:
                mine.sort(key=self._size, reverse=True)
                return mine[: self.workers], mine
        return [], []

    def _median(self, cohort: Sequence[int], local: LocalTraining, piece: float) -> tuple[Work, float]:
        first = self.train(cohort, local)
        affordable = max(1, int(REPEATS * piece / first.seconds))
        # What is long is told by what it is longer by, so the short ones must not be left to chance.
        times = REPEATS if local.steps == 1 else min(REPEATS, affordable)
        seconds = [first.seconds, *(self.train(cohort, local).seconds for _ in range(times - 1))]
        return first.work, median(seconds)

    def evaluation(self, seconds: float) -> float:
        """Seconds of one evaluation: measured where there is time for it, else from a shard for each worker.

        Args:
            seconds: to spend, about.
        """
        shards = count_shards(self.population)
        if not shards:
            return 0.0
        some = min(shards, self.workers)
        taken = min(self._evaluate(some) for _ in range(2))
        whole = taken * -(-shards // some)
        if some < shards and whole < seconds:
            return self._evaluate(shards)
        return whole

    def _evaluate(self, shards: int) -> float:
        """Seconds of the first so many: those of the test set come before those of the validation set."""
        data, held, local = self.population.dataset, self.population.validation, self.pool.population.local
        more = shards - -(-len(data.test) // SHARD)
        part = replace(data, test=data.test.select_rows(slice(shards * SHARD)))
        rest = held.select_rows(slice(more * SHARD)) if held is not None and more > 0 else None
        self.pool.population = replace(self.population, dataset=part, validation=rest, local=local)
        began = perf_counter()
        self.pool.begin_evaluation(self.algorithm, self.population.context(0), self.state)()
        taken = perf_counter() - began
        self.pool.population = replace(self.population, local=local)
        return taken

    def learn(self, seconds: float) -> float:
        """Seconds of what the server trains itself after a round, from what a whole cohort sends.

        Args:
            seconds: to spend, about; where it takes longer, its beginning tells.
        """
        self._limit(replace(self.population.local, steps=1))
        ctx, device = self.pool.population.context(0), torch.device(self.device)
        reduced = self.pool.begin_training(self.algorithm, ctx, self.state, self.cohorts[0])()
        state = self.algorithm.aggregate(ctx, self.state, reduced)
        # What the first time pays for, later ones find done.
        twice = (
            measure_server_training(self.algorithm, ctx, state, reduced, device, seconds / 2)
            for _ in range(2)
        )
        return min(twice)

    def examination(self, seconds: float) -> tuple[float, int]:
        """Seconds of one scoring of the clients' own models, and the bytes that go down for it.

        It is measured where there is time for it; else one client for each worker stands for all, those whose
        work is nearest to the middle.

        Args:
            seconds: to spend, about.
        """
        ctx = self.population.context(0)
        clients = select_tested_clients(self.population, None).clients
        work = {c: personal_evaluation_work(self.algorithm, self.population, ctx, c) for c in clients}
        by_work, few = sorted(clients, key=work.__getitem__), min(len(clients), self.workers)
        start = (len(clients) - few) // 2
        chosen = by_work[start : start + few]
        if not chosen:
            return 0.0, 0
        self._examine(chosen[:1])
        taken, received = self._examine(chosen)
        taken *= sum(work.values()) / max(1, sum(work[client] for client in chosen))
        if taken < seconds:
            return self._examine(clients)
        return taken, received * len(clients) // len(chosen)

    def _examine(self, clients: Sequence[int]) -> tuple[float, int]:
        # What comes down after the last round is what counts: it may be more than after the first.
        ctx, began = self.population.context(self.population.rounds - 1), perf_counter()
        state = fullest(self.algorithm, ctx, self.state)
        scores = run_to_end(self.pool.begin_personal_evaluation(self.algorithm, ctx, state, clients))
        return perf_counter() - began, scores.bytes_down

    def rounds(
        self, seconds: float, evaluate_every: int, personal: Personal = "auto"
    ) -> Iterator[RoundResult]:
        """Run the first whole rounds of the experiment, as many as fit into this time but at least one."""
        self._limit(self.population.local)
        self.pool.drop_client_states()  # the clients of the trials have not come yet
        began = perf_counter()
        options: dict[str, Any] = {"evaluate_every": evaluate_every, "personal": personal}
        state = self.state
        for result in simulate(self.algorithm, self.population, self.pool, **options, device=self.device):
            self.begun = state
            self.latest = state = result.state
            yield replace(result, state=None)
            spent = perf_counter() - began
            enough = result.round >= ENOUGH_ROUNDS and spent > ENOUGH_SECONDS
            if enough or spent + result.seconds["total"] > seconds:
                return

    def bytes_down(self, cohort: Sequence[int]) -> Counter[str]:
        """What these clients receive in the first round, by payload."""
        ctx = self.population.context(0)
        letters = make_instructions(self.algorithm, ctx, self.state, cohort)
        return count_bytes_down(
            self.algorithm, ctx, make_broadcasts(self.algorithm, ctx, self.state), letters, cohort
        )

    @property
    def outlook(self) -> Outlook:
        """What later rounds send."""
        return Outlook(self.algorithm, self.population, self.state, self.begun, self.latest)

    def traffic(self) -> Traffic:
        """The first round's traffic, a mean over cohorts: each client sends what those of the trials sent."""
        num_models, down, up = len(self.population.nets), Counter[str](), Counter[str]()
        # The first trial of each: what clients send once, later ones no longer do.
        share = {trial.cohort[0] % num_models: trial for trial in reversed(self.done)}
        for cohort in self.cohorts:
            down.update(self.bytes_down(cohort))
            for model, trial in share.items():
                came = sum(client % num_models == model for client in cohort)
                up.update({name: sent * came / len(trial.cohort) for name, sent in trial.up.items()})
        ctx = self.population.context(0)
        models = select_survey_models(self.algorithm, ctx, self.state)
        asking = count_survey_traffic(self.algorithm, ctx, self.state, models, self.asked) + self.enrolling
        return mean_traffic(down, up, len(self.cohorts)) + asking
