"""ShortRounds: real rounds of an experiment with few clients and few local steps, timed and counted.

The clients run on the actors of the run, by the engine's own functions. A part of a round that takes too long
is run for a few of its items; its seconds are scaled by their work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from heapq import heapreplace
from itertools import pairwise
from statistics import mean, median
from time import perf_counter
from typing import Any, TypeAlias

import torch

from actors.ray_pool import RayPool
from fedsim.base import rng
from fedsim.base.digest import digest
from fedsim.base.progress import run_to_end
from fedsim.clock.devices import Devices
from fedsim.core import Algorithm, ReducedUpdates, Traffic
from fedsim.core.capabilities import ClientSurvey, capability, select_cohort
from fedsim.engine.blocks import cut_into_blocks
from fedsim.engine.evaluation.personal_evaluation import personal_evaluation_work, select_tested_clients
from fedsim.engine.evaluation.scoring import Personal
from fedsim.engine.initial_state import make_state_and_traffic
from fedsim.engine.pools import stack_size_by_model
from fedsim.engine.server_messages import (
    count_survey_traffic,
    make_broadcasts,
    make_instructions,
    measure_bytes_down,
    select_survey_models,
)
from fedsim.engine.server_training import train_server
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.engine.worker import count_shards

Clients: TypeAlias = Sequence[int]

FIRST_ROUNDS = 20
"""The cohorts of this many first rounds represent the cohorts of the run."""

ENOUGH_ROUNDS = 100
"""After this many whole rounds, another whole round adds nothing new."""

CLEARLY_LONGER = 1.5
"""A round that takes this many times as long as the shortest one does so because of its steps."""


def time_part(
    run: Callable[[Clients], Any], items: Clients, work: Callable[[int], int], few: int, most: float
) -> tuple[float, Any]:
    """Time `run(items)`, or estimate its seconds from a few items if they exceed `most`; return a result."""
    if not len(items):
        return 0.0, None
    start = max(0, len(items) - few) // 2
    some = sorted(items, key=work)[start : start + few]
    run(some[:1])  # the first call pays for set-up that later calls find done
    began = perf_counter()
    result = run(some)
    seconds = (perf_counter() - began) * sum(map(work, items)) / max(1, sum(map(work, some)))
    if len(some) < len(items) and seconds < most:
        began = perf_counter()
        result = run(items)
        seconds = perf_counter() - began
    return seconds, result


class ShortRounds:
    """Rounds of one experiment on its own actors; the server trains on `device`.

    Args:
        algorithm: of the run.
        pool: of the run.
        device: of the server.
        updates_per_round: see `Experiment`; None for the size of a cohort.

    Attributes:
        first_state, previous_state, latest_state: the server state before round 1, before the last whole
            round, and after the last round.
        census: traffic of the label census before round 1.
        few: number of clients that gives each worker one stack, and each architecture one client.
        overhead, step: seconds of a round's training without clients, and of one local step.
    """

    def __init__(
        self, algorithm: Algorithm, pool: RayPool, device: str = "cpu", updates_per_round: int | None = None
    ) -> None:
        self.updates_per_round = updates_per_round or pool.population.settings.cohort_size
        self.algorithm, self.population, self.pool = algorithm, pool.population, pool
        self.workers, self.device = len(pool.actor_infos), torch.device(device)
        self.few = max(self.workers * pool.stack_size, len(self.population.nets))
        self.first_state, self.census = make_state_and_traffic(algorithm, self.population)
        self.previous_state = self.latest_state = self.first_state
        self.overhead = self.step = 0.0

    @cached_property
    def cohorts(self) -> list[list[int]]:
        """The cohorts of the first rounds, as the server state before round 1 gives them."""
        settings = self.population.settings
        contexts = (
            replace(self.population.context(number), cohort_size=self.updates_per_round)
            for number in range(min(settings.rounds, FIRST_ROUNDS))
        )
        draw = partial(rng.stream, settings.seed, "cohort")
        return [
            list(select_cohort(self.algorithm, ctx, self.first_state, draw(ctx.round))) for ctx in contexts
        ]

    @cached_property
    def sample(self) -> list[int]:
        """Clients of the first cohort: as many as make one local step in about three seconds."""
        few = self.cohorts[0][: self.few]
        return self.cohorts[0][: max(self.few, int(3 * len(few) / self.train(few, 1)[1]))]

    # training

    def train(
        self, cohort: Clients, steps: int | None = None, number: int = 0
    ) -> tuple[ReducedUpdates, float]:
        """Run a round's training with this number of local steps; return the updates and the seconds."""
        self.set_steps(steps)
        ctx, began = self.pool.population.context(number), perf_counter()
        finish_round = self.pool.begin_training(ctx, self.latest_state, cohort)
        return finish_round(), perf_counter() - began

    def set_steps(self, steps: int | None = None) -> None:
        """Set the local steps of all clients; None stands for the local training of the run."""
        settings = self.population.settings
        local = settings.local if steps is None else replace(settings.local, steps=steps)
        if self.pool.population.settings.local != local:
            self.pool.actor_group.set_local_training(local)
            self.pool.population = replace(self.population, settings=replace(settings, local=local))

    def stack_sizes(self) -> list[int]:
        """Return the stack size of each architecture."""
        nets = self.population.nets
        return [*map(stack_size_by_model(nets, self.pool.stack_size), range(len(nets)))]

    def cost_of_busiest(self, cohort: Clients, workers: int, cost: Callable[[int], float]) -> float:
        """Return the cost of the busiest worker, if each block goes to the first free worker."""
        sizes, busy = self.stack_sizes(), [0.0] * workers
        blocks = cut_into_blocks(cohort, self.population.count_steps, len(sizes), sizes.__getitem__)
        for total in sorted((sum(map(cost, block)) for block in blocks), reverse=True):
            heapreplace(busy, busy[0] + total)
        return max(busy)

    def time_training(self, seconds: float) -> None:
        """Find `overhead` and `step` from rounds of more and more work.

        It takes about this many seconds, or until a round is clearly longer than the shortest one.
        """
        began = perf_counter()
        clients = [*filter(self.population.count_steps, self.cohorts[0])] or self.cohorts[0]
        few = clients[: self.few]
        shortest = median(self.train(few, 1)[1] for _ in range(3))
        least = self.cost_of_busiest(few, self.workers, self.pool.population.count_steps)
        found, clear = list[float](), list[float]()
        for some, steps in self._list_longer_rounds(clients):
            taken = self.train(some, steps)[1]
            work = self.cost_of_busiest(some, self.workers, self.pool.population.count_steps)
            found.append(min(max(0.0, taken - shortest) / max(1.0, work - least), taken / max(1.0, work)))
            # A round that hardly takes longer than the shortest shows chance, not its steps: go on.
            if taken < CLEARLY_LONGER * shortest:
                continue
            clear.append(found[-1])
            if perf_counter() - began + 2 * taken > seconds:
                break
        self.step = median((clear or found)[-3:])  # one round that was slow by chance must not decide
        self.overhead = max(0.0, shortest - self.step * least)

    def _list_longer_rounds(self, clients: Clients) -> Iterator[tuple[Clients, int | None]]:
        """Yield the clients and the local steps of each round: first the steps double, then the clients."""
        count, steps = len(clients[: self.few]), 2
        while steps < max(map(self.population.count_steps, clients[:count])):
            yield clients[:count], steps
            steps *= 2
        yield clients[:count], None
        while count < len(clients):
            count *= 2
            yield clients[:count], None

    def expect_client(self, client: int) -> float:
        """Return the expected training seconds of a client in a round."""
        return self.step * self.population.count_steps(client)

    def expect_training(self, workers: int, cohorts: Sequence[Clients]) -> float:
        """Return the expected seconds of a round's training on this number of workers, the cohorts' mean."""
        busiest = (self.cost_of_busiest(cohort, workers, self.expect_client) for cohort in cohorts)
        return self.overhead + mean(busiest)

    # the other parts of a round

    def time_survey(self, seconds: float) -> float:
        """Time the client survey before a round."""
        ctx, size = self.population.context(0), self.population.partition.size
        measure = partial(self.pool.measure_losses, ctx, self.first_state)
        return time_part(measure, self._select_surveyed_clients(0), size, self.workers, seconds)[0]

    def time_server(self, seconds: float) -> dict[str, float]:
        """Time the server's work and its training; a training that takes longer is scaled by its progress."""
        reduced, ctx = self.train(self.sample, 1)[0], self.population.context(0)
        began = perf_counter()
        state = self.algorithm.aggregate(ctx, self.first_state, reduced)
        digest(state)
        found = {"server": perf_counter() - began}
        began, earlier, last = perf_counter(), 0, 0
        for report in train_server(self.algorithm, ctx, state, reduced, self.device):
            _, done, total = report.progress
            # An algorithm that trains each architecture by itself reports the present one only.
            if done < last:
                earlier += total
            last, spent = done, perf_counter() - began
            if spent > seconds:
                whole = max(earlier + total, total * len(self.population.nets))
                return found | {"learn": spent * whole / max(1, earlier + done)}
        return found | {"learn": perf_counter() - began}

    def time_evaluation(self, seconds: float) -> float:
        """Time one evaluation of the deployed models."""
        ctx, shards = self.population.context(0), range(count_shards(self.population))

        def evaluate(some: Clients) -> Any:
            return self.pool.begin_evaluation(ctx, self.first_state, some)()

        return time_part(evaluate, shards, lambda shard: 1, self.workers, seconds)[0]

    def time_personal_evaluation(self, seconds: float) -> tuple[float, int]:
        """Time one personal evaluation, and count the bytes that it sends to clients."""
        ctx = self.population.context(self.population.settings.rounds - 1)
        clients = select_tested_clients(self.population, None).clients

        def evaluate(some: Clients) -> float:
            work = self.pool.begin_personal_evaluation(ctx, self.first_state, some)
            return run_to_end(work).bytes_down / len(some)

        work = partial(personal_evaluation_work, self.algorithm, self.population, ctx)
        taken, each = time_part(evaluate, clients, work, self.workers, seconds)
        return taken, round(len(clients) * (each or 0.0))

    def run_whole(
        self, seconds: float, every: int, personal: Personal, devices: Devices | None = None
    ) -> Iterator[RoundResult]:
        """Run the first rounds as the run does, for about this many seconds but at least one round."""
        self.set_steps()
        self.pool.drop_client_states()  # in the run, no client has come before round 1
        options: dict[str, Any] = {"evaluate_every": every, "personal": personal, "device": self.device}
        options["devices"] = devices
        began = perf_counter()
        for result in simulate(self.algorithm, self.population, self.pool, **options):
            self.previous_state, self.latest_state = self.latest_state, result.state
            yield replace(result, state=None)
            spent = perf_counter() - began
            if result.round >= ENOUGH_ROUNDS or spent + result.seconds["total"] > seconds:
                return

    # bytes

    def count_run(self, sent: Sequence[Traffic], seconds: float) -> tuple[Traffic, Traffic]:
        """Count the bytes of a round and of the run.

        The first rounds sent `sent`. A later round counts as the last one. If its messages have other sizes,
        it counts as a short round in its place; after three of them, only for about this many seconds.
        """
        began, rounds = perf_counter(), self.population.settings.rounds
        sent = sent or [self._count_round(0) + self.census]
        last, total = replace(sent[-1], personal=0), sum(sent, Traffic())
        if len(sent) == 1:
            last += self.census.scale(-1)
        later = [self._measure_messages(number, self.latest_state) for number in range(len(sent), rounds)]
        present, before = last, self._measure_messages(len(sent) - 1, self.previous_state)
        # What goes up in a round shows in the messages down in the next.
        known = {(before, *later[:1]): present}
        for number, sizes in enumerate(pairwise([*later, *later[-1:]]), start=len(sent)):
            if sizes not in known and (len(known) < 4 or perf_counter() - began < seconds):
                known[sizes] = self._count_round(number)
            present = known.get(sizes, present)
            total += present
        return last, total

    def _count_round(self, number: int) -> Traffic:
        """Count the bytes of a round: those of a short round, scaled to a whole cohort, and the survey's."""
        algorithm, ctx, sample = self.algorithm, self.population.context(number), self.sample
        if number == 0:
            self.pool.drop_client_states()
        reduced, _ = self.train(sample, 1, number)
        if number == 0:
            self.latest_state = algorithm.aggregate(ctx, self.first_state, reduced)
        models = select_survey_models(algorithm, ctx, self.first_state)
        surveyed = self._select_surveyed_clients(number)
        survey = count_survey_traffic(algorithm, ctx, self.first_state, models, surveyed)
        return reduced.traffic.scale(mean(map(len, self.cohorts)) / len(sample)) + survey

    def _select_surveyed_clients(self, number: int) -> Clients:
        """Return the clients of a round's survey, as the server state before round 1 gives them."""
        survey = capability(self.algorithm, ClientSurvey)
        ctx = self.population.context(number)
        return () if survey is None else survey.select_surveyed_clients(ctx, self.first_state)

    def _measure_messages(self, number: int, state: Any) -> tuple[tuple[str, int], ...]:
        """Return the bytes of each payload to the sample in a round, and the number of surveyed clients."""
        ctx = self.population.context(number)
        broadcasts = make_broadcasts(self.algorithm, ctx, state)
        instructions = make_instructions(self.algorithm, ctx, state, self.sample)
        down = measure_bytes_down(self.algorithm, ctx, broadcasts, instructions).sum_payloads(self.sample)
        return *down.items(), ("survey", len(self._select_surveyed_clients(number)))
