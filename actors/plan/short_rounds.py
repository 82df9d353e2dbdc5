"""ShortRounds: real rounds of an experiment with few clients and few local steps, timed and counted.

The clients run on the actors of the run, by the engine's own functions. A part of a round that takes too long
is run for a few of its items, and its seconds are scaled by their work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from heapq import heapreplace
from itertools import zip_longest
from statistics import mean, median
from time import perf_counter
from typing import Any, TypeAlias

import torch

from actors.ray_pool import RayPool
from fedsim.base import rng
from fedsim.base.digest import digest
from fedsim.base.progress import run_to_end
from fedsim.core import Algorithm, ReducedUpdates, Traffic
from fedsim.core.capabilities import ClientSurvey, capability, select_cohort
from fedsim.engine.blocks import cut_into_blocks
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
from fedsim.engine.server_training import train_server
from fedsim.engine.simulation import Personal, RoundResult, simulate
from fedsim.engine.worker import count_shards

Clients: TypeAlias = Sequence[int]

FIRST_ROUNDS = 20
"""The cohorts of this many first rounds represent the cohorts of the run."""

ENOUGH_ROUNDS, ENOUGH_SECONDS = 20, 4.0
"""After this many whole rounds and seconds, another whole round adds nothing new."""

MESSAGES = 200
"""Largest number of later rounds whose message sizes are checked."""


def time_part(
    run: Callable[[Clients], Any], items: Clients, work: Callable[[int], int], few: int, most: float
) -> tuple[float, Any]:
    """Seconds of `run(items)`, told from a few items where it takes longer than `most`; and an outcome."""
    if not len(items):
        return 0.0, None
    start = max(0, len(items) - few) // 2
    some = sorted(items, key=work)[start : start + few]
    run(some[:1])  # the first time pays for what later times find done
    began, outcome = perf_counter(), run(some)
    taken = (perf_counter() - began) * sum(map(work, items)) / max(1, sum(map(work, some)))
    if len(some) < len(items) and taken < most:
        began, outcome = perf_counter(), run(items)
        taken = perf_counter() - began
    return taken, outcome


class ShortRounds:
    """Rounds of one experiment on its own actors; the server trains on `device`.

    Attributes:
        first, begun, latest: the server state before round 1, before the last counted round, and after it.
        census: bytes of asking all clients before round 1.
        few: clients that give each worker a stack of clients to train, and each architecture a client.
        overhead, step: seconds of a round's training without clients, and of one local step.
    """

    def __init__(self, algorithm: Algorithm, pool: RayPool, device: str = "cpu") -> None:
        self.algorithm, self.population, self.pool = algorithm, pool.population, pool
        self.workers, self.device = len(pool.actor_infos), torch.device(device)
        self.few = max(self.workers * pool.stack_size, len(self.population.nets))
        self.first, self.census = make_state_and_traffic(algorithm, self.population)
        self.begun = self.latest = self.first
        self.overhead = self.step = 0.0

    @cached_property
    def cohorts(self) -> list[list[int]]:
        """The cohorts of the first rounds, as far as the state before round 1 tells."""
        ctx, seed = self.population.context, self.population.seed
        numbers = range(min(self.population.rounds, FIRST_ROUNDS))
        drawn = ((ctx(n), self.first, rng.stream(seed, "cohort", n)) for n in numbers)
        return [list(select_cohort(self.algorithm, *each)) for each in drawn]

    @cached_property
    def sample(self) -> list[int]:
        """Clients of the first cohort: as many as make one local step in about three seconds."""
        few = self.cohorts[0][: self.few]
        return self.cohorts[0][: max(self.few, int(3 * len(few) / self.train(few, 1)[1]))]

    # training

    def train(
        self, cohort: Clients, steps: int | None = None, number: int = 0
    ) -> tuple[ReducedUpdates, float]:
        """Run a round's training with so many local steps, by default as in the run; and its seconds."""
        self.set_steps(steps)
        ctx, began = self.pool.population.context(number), perf_counter()
        return self.pool.begin_training(self.algorithm, ctx, self.latest, cohort)(), perf_counter() - began

    def set_steps(self, steps: int | None = None) -> None:
        """Have all clients make so many local steps from now on, by default as many as in the run."""
        local = self.population.local if steps is None else replace(self.population.local, steps=steps)
        if self.pool.population.local != local:
            self.pool.actor_group.set_local_training(local)
            self.pool.population = replace(self.population, local=local)

    def stack_sizes(self) -> list[int]:
        """Return the stack size of each architecture."""
        nets = self.population.nets
        return [*map(stack_size_by_model(self.algorithm, nets, self.pool.stack_size), range(len(nets)))]

    def cost_of_busiest(self, cohort: Clients, workers: int, cost: Callable[[int], float]) -> float:
        """The cost of the busiest of so many workers, where each block goes to the first free worker."""
        sizes, busy = self.stack_sizes(), [0.0] * workers
        blocks = cut_into_blocks(cohort, self.population.count_steps, len(sizes), sizes.__getitem__)
        for total in sorted((sum(map(cost, block)) for block in blocks), reverse=True):
            heapreplace(busy, busy[0] + total)
        return max(busy)

    def rank_clients_by_size(self) -> list[int]:
        """The clients of the first cohort: the largest of each architecture, the second largest, ..."""
        models, size = len(self.population.nets), self.population.partition.size
        kinds = [[c for c in self.cohorts[0] if c % models == model] for model in range(models)]
        ranked = zip_longest(*(sorted(kind, key=size, reverse=True) for kind in kinds))
        return [client for clients in ranked for client in clients if client is not None]

    def time_training(self, seconds: float) -> None:
        """Find `overhead` and `step`: run rounds of twice the work each, for about so many seconds.

        The local steps double first, up to those of the run, then the clients, up to a cohort.
        """
        began, clients = (
            perf_counter(),
            [*filter(self.population.count_steps, self.cohorts[0])] or self.cohorts[0],
        )
        few = clients[: self.few]
        most = max(map(self.population.count_steps, few))
        rungs: list[tuple[int, int | None]] = [(len(few), 2**n) for n in range(1, (most - 1).bit_length())]
        rungs += [(len(few) << n, None) for n in range(((len(clients) - 1) // len(few)).bit_length() + 1)]
        first = median(self.train(few, 1)[1] for _ in range(3))
        short, found = (
            self.cost_of_busiest(few, self.workers, self.pool.population.count_steps),
            list[float](),
        )
        for count, steps in rungs:
            taken = self.train(clients[:count], steps)[1]
            work = self.cost_of_busiest(clients[:count], self.workers, self.pool.population.count_steps)
            found.append(min(max(0.0, taken - first) / max(1.0, work - short), taken / max(1.0, work)))
            if perf_counter() - began + 2 * taken > seconds:
                break
        self.step = median(found[-3:])  # one round that was slow by chance must not decide
        self.overhead = max(0.0, first - self.step * short)

    def expect_client(self, client: int) -> float:
        """Return the expected training seconds of a client in a round."""
        return self.step * self.population.count_steps(client)

    def expect_training(self, workers: int, cohorts: Sequence[Clients]) -> float:
        """Seconds of a round's training on so many workers: a mean over these cohorts."""
        return self.overhead + mean(
            self.cost_of_busiest(each, workers, self.expect_client) for each in cohorts
        )

    # the other parts of a round

    def time_survey(self, seconds: float) -> float:
        """Time the survey before a round."""
        algorithm, ctx, state = self.algorithm, self.population.context(0), self.first
        ask, size = partial(self.pool.measure_losses, algorithm, ctx, state), self.population.partition.size
        return time_part(ask, self._select_surveyed_clients(0), size, self.workers, seconds)[0]

    def time_server(self, seconds: float) -> dict[str, float]:
        """Time the server's work and its training after a short round; scale a long training's beginning."""
        reduced, ctx, began = self.train(self.sample, 1)[0], self.population.context(0), perf_counter()
        state = self.algorithm.aggregate(ctx, self.first, reduced)
        digest(state)
        found, began, behind, last = {"server": perf_counter() - began}, perf_counter(), 0, 0
        for told in train_server(self.algorithm, ctx, state, reduced, self.device):
            _, done, total = told.progress
            behind, last = behind + total * (done < last), done
            if (spent := perf_counter() - began) > seconds:
                # Methods that train each architecture by itself tell of the present one only.
                whole = max(behind + total, total * len(self.population.nets))
                return found | {"learn": spent * whole / max(1, behind + done)}
        return found | {"learn": perf_counter() - began}

    def time_evaluation(self, seconds: float) -> float:
        """Time one evaluation of the deployed models."""
        ctx, shards = self.population.context(0), range(count_shards(self.population))

        def score(some: Clients) -> Any:
            return self.pool.begin_evaluation(self.algorithm, ctx, self.first, some)()

        return time_part(score, shards, lambda _: 1, self.workers, seconds)[0]

    def time_personal_evaluation(self, seconds: float) -> tuple[float, int]:
        """Time one personal evaluation, and count the bytes that it sends to clients."""
        algorithm, population = self.algorithm, self.population
        ctx, clients = (
            population.context(population.rounds - 1),
            select_tested_clients(population, None).clients,
        )

        def evaluate(some: Clients) -> float:
            return run_to_end(
                self.pool.begin_personal_evaluation(algorithm, ctx, self.first, some)
            ).bytes_down / len(some)

        work = partial(personal_evaluation_work, algorithm, population, ctx)
        taken, each = time_part(evaluate, clients, work, self.workers, seconds)
        return taken, round(len(clients) * (each or 0))

    def run_whole(self, seconds: float, every: int, personal: Personal) -> Iterator[RoundResult]:
        """Run the first rounds as the run does: for about so many seconds, but at least one."""
        self.set_steps()
        self.pool.drop_client_states()  # in the run, no client has come before round 1
        began, options = perf_counter(), dict[str, Any](evaluate_every=every, personal=personal)
        for result in simulate(self.algorithm, self.population, self.pool, **options, device=self.device):
            self.begun, self.latest = self.latest, result.state
            yield replace(result, state=None)
            spent = perf_counter() - began
            enough = result.round >= ENOUGH_ROUNDS and spent > ENOUGH_SECONDS
            if enough or spent + result.seconds["total"] > seconds:
                return

    # bytes

    def count_run(self, sent: Sequence[Traffic], seconds: float) -> tuple[Traffic, Traffic]:
        """Bytes of a round and of the run, where the first rounds have sent so much.

        A later round counts as the last one, or as a short round in its place if its messages have other
        sizes. More than three short rounds take about so many seconds in all.
        """
        began, rounds = perf_counter(), self.population.rounds
        if not sent:
            sent = [self._count_round(0) + self.census]
        done = len(sent)
        present = each = replace(sent[-1] + self.census.scale(-(done == 1)), personal=0)
        known, total = {self._message_sizes(done - 1, self.begun): each}, sum(sent, Traffic())
        later = range(done, rounds, max(1, (rounds - done) // MESSAGES))
        for number in later:
            sizes = self._message_sizes(number, self.latest)
            if sizes not in known and (len(known) < 4 or perf_counter() - began < seconds):
                known[sizes] = self._count_round(number)
            present = known.get(sizes, present)
            total += present.scale((rounds - done) / len(later))
        return each, total

    def _count_round(self, number: int) -> Traffic:
        """Bytes of this round: those of a short round, scaled to a whole cohort, and those of its survey."""
        algorithm, ctx, sample = self.algorithm, self.population.context(number), self.sample
        if number == 0:
            self.pool.drop_client_states()
        reduced, _ = self.train(sample, 1, number)
        if number == 0:
            self.latest = algorithm.aggregate(ctx, self.first, reduced)
        models, asked = (
            select_survey_models(algorithm, ctx, self.first),
            self._select_surveyed_clients(number),
        )
        survey = count_survey_traffic(algorithm, ctx, self.first, models, asked)
        return reduced.traffic.scale(mean(map(len, self.cohorts)) / len(sample)) + survey

    def _select_surveyed_clients(self, number: int) -> Clients:
        """The clients that this round's survey asks, as far as the state before round 1 tells."""
        ctx, algorithm = self.population.context(number), self.algorithm
        asking = capability(algorithm, ClientSurvey)
        return () if asking is None else asking.select_surveyed_clients(ctx, self.first)

    def _message_sizes(self, number: int, state: Any) -> Any:
        """Bytes that go down to the sample, and how many clients are surveyed, in this round and the next."""
        algorithm, found = self.algorithm, list[tuple[str, int]]()
        for one, held in ((number, state), (min(number + 1, self.population.rounds - 1), self.latest)):
            ctx = self.population.context(one)
            instructions = make_instructions(algorithm, ctx, held, self.sample)
            down = count_bytes_down(
                algorithm, ctx, make_broadcasts(algorithm, ctx, held), instructions, self.sample
            )
            found += [*down.items(), ("survey", len(self._select_surveyed_clients(one)))]
        return tuple(found)
