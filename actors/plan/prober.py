"""Prober: measures an experiment on the actors that would run it, and says what a round will take."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean, median
from time import perf_counter
from typing import Any, TypeAlias

import ray
import torch

from actors.actor_group import ActorGroup
from actors.client_actor import MemoryUsage
from actors.coordinator import Status, relay_preparation
from actors.device import acquire_device, describe_cpu_fallback
from actors.plan.measured import Measured
from actors.plan.trial import without
from actors.plan.trials import Trials
from actors.ray_pool import RayPool
from actors.resources import ClusterNode, Placement, check_memory, parse_ray_nodes
from fedsim.clients.population import Population
from fedsim.core.capabilities import ServerTraining, capability
from fedsim.engine.blocks import count_blocks
from fedsim.engine.cost_model import Costs, dealt
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import Faults
from fedsim.engine.pools import stack_size_by_model
from fedsim.engine.simulation import RoundResult, is_personal_evaluation_due
from fedsim.training.work import client_work

Progress: TypeAlias = Status | RoundResult | Measured


class ProberProcess:
    """What a Prober does; an actor of it is made by `Prober`.

    Like the coordinator, it is a process of its own with one thread, so that what it measures is disturbed
    as much as a run would be.

    Args:
        experiment: what would run.
        placement: its client actors.
    """

    def __init__(self, experiment: Experiment, placement: Placement) -> None:
        torch.set_num_threads(1)
        self.claim = acquire_device(placement.server_gpus, "resources.server_gpus")
        self.experiment, self.placement = experiment, placement

    def measure(self, seconds: float, workers: Sequence[int]) -> Iterator[Progress]:
        """Measure: phases and whole rounds on the way, at the end what was found.

        Args:
            seconds: to spend on rounds, about; setting them up comes on top.
            workers: numbers of actors to tell the seconds of a round for.

        Raises:
            DoesNotFit: if the memory of a node is too small for its actors, or a GPU cannot be used.
            NoRoomNow: if no room came free for them in time.
        """
        self.claim.raise_if_refused()
        began = perf_counter()
        yield Status(f"placing {self.placement.workers} client actors")
        algorithm = self.experiment.algorithm
        crew = ActorGroup(self.placement, inline=not algorithm.stateful)
        try:
            population = yield from relay_preparation(self.experiment.prepare_population())
            yield Status("waiting for the client actors")
            never, stack, graphs = Faults(max_retries=0), self.experiment.stack, self.experiment.graphs
            pool = RayPool(algorithm, population, crew, faults=never, stack=stack, graphs=graphs)
            if text := describe_cpu_fallback(pool.actor_infos):
                yield Status(text)
            trials = Trials(algorithm, pool.population, pool, self.claim.device)
            probe = Probe(trials, self.experiment, perf_counter() - began)
            yield from probe.run(seconds, workers)
        finally:
            crew.close()


class Probe:
    """One measurement, on actors that are ready.

    Args:
        trials: the rounds.
        experiment: what would run.
        startup: seconds until now.
    """

    def __init__(self, trials: Trials, experiment: Experiment, startup: float) -> None:
        self.trials, self.experiment, self.startup = trials, experiment, startup
        self.population: Population = trials.population
        self.shared_bytes, self.asked = size_of(self.population), trials.pool.stack_size
        self.costs: tuple[Costs, ...] = ()
        self.survey = self.learn = self.evaluation = self.examination = 0.0
        self.examination_bytes = 0
        self.load = os.getloadavg()[0]
        self.began = perf_counter()

    def run(self, seconds: float, workers: Sequence[int]) -> Iterator[Progress]:
        """Measure clients, then an evaluation, then whole rounds if there is time for them.

        Yields:
            What is being done, each whole round, and at the end what was found.
        """
        yield Status("measuring one client")
        self.survey = self.trials.survey(seconds / 6)
        self.first_client()
        yield Status("measuring clients")
        models = len(self.population.nets)
        self.costs = tuple(self.trials.costs(number, seconds / 3 / models) for number in range(models))
        if capability(self.trials.algorithm, ServerTraining):
            yield Status("measuring what the server trains")
            self.learn = self.trials.learn(seconds / 6)
        yield Status("measuring the evaluation")
        self.evaluation = self.trials.evaluation(seconds / 6)
        if self.examinations():
            yield Status("measuring the clients' own models")
            self.examination, self.examination_bytes = self.trials.examination(seconds / 6)
        results: list[RoundResult] = []
        left = seconds - (perf_counter() - self.began)
        meanwhile = 0.0 if getattr(self.trials.algorithm, "trains_before_evaluation", False) else self.learn
        scoring = sum(awaited(meanwhile, self.evaluation, self.examination)[: 1 + (self.examinations() > 1)])
        if self.survey + self.expected(self.trials.workers) + self.learn + scoring < left:
            yield Status("measuring whole rounds")
            experiment = self.experiment
            for result in self.trials.rounds(left, experiment.evaluate_every, experiment.personal):
                results.append(result)
                # Sent as a run sends it: somebody has to read it while the next round runs.
                yield result
        yield self.measured(workers, results)

    def examinations(self) -> int:
        """How often the run scores the clients' own models."""
        rounds, every = self.population.rounds, self.experiment.evaluate_every
        due = (self.experiment.personal, self.trials.algorithm, self.population, self.population.context(0))
        before = rounds // every - (rounds % every == 0)
        return before * is_personal_evaluation_due(*due, last=False) + is_personal_evaluation_due(
            *due, last=True
        )

    def first_client(self) -> None:
        """Have one step made by one client, and stop here if its memory rules the others out.

        Where clients train at once, as many as that do so next on every actor, for two steps: the first one
        makes the momentum.
        """
        self.trials.warm_up()
        self.check_memory()
        trials, two = self.trials, replace(self.population.local, steps=2)
        for model in range(len(self.population.nets)) if self.asked > 1 else ():
            if many := trials.chosen(model)[1][: self.asked * trials.workers]:
                trials.train(many, two)
                self.check_memory()

    def usage(self) -> MemoryUsage:
        """The most that any actor needed so far."""
        every: list[MemoryUsage] = ray.get(
            [actor.measure_memory.remote() for actor in self.trials.pool.actor_group.actors]
        )
        gpu = [usage.gpu for usage in every if usage.gpu is not None]
        caps = [usage.gpu_cap for usage in every if usage.gpu_cap is not None]
        private = max(usage.private for usage in every)
        return MemoryUsage(private, max(gpu, default=None), min(caps, default=None))

    def check_memory(self) -> MemoryUsage:
        """Compare what an actor needs, times their number, with what each node has.

        Raises:
            DoesNotFit: if it is more.
        """
        usage = self.usage()
        check_memory([*_placed(self.by_node())], usage.private, self.shared_bytes)
        return usage

    def by_node(self) -> dict[str, int]:
        """How many actors each node has."""
        return dict(Counter(actor["node"] for actor in self.trials.pool.actor_infos))

    def pieces(self, cohort: Sequence[int]) -> int:
        """How many workers this cohort has something to do for."""
        nets = self.population.nets
        width = stack_size_by_model(self.trials.algorithm, nets, self.trials.pool.stack_size)
        return count_blocks(cohort, [width(model) for model in range(len(nets))])

    def expected(self, workers: int) -> float:
        """Seconds of a round's training on so many workers, as the costs say: a mean over the cohorts."""
        return mean(self.modelled(cohort, workers) for cohort in self.trials.cohorts)

    def modelled(self, cohort: Sequence[int], workers: int) -> float:
        """Seconds of this cohort's training, as the costs say."""
        models, steps = len(self.costs), self.population.count_steps
        width = stack_size_by_model(self.trials.algorithm, self.population.nets, self.trials.pool.stack_size)
        hands = dealt(cohort, steps, self.client_seconds, workers, models, width)
        return self.overhead() + max(sum(map(self.client_seconds, hand)) for hand in hands)

    def overhead(self) -> float:
        """Seconds of a round in which nobody has anything to do."""
        return max(costs.overhead for costs in self.costs)

    def client_seconds(self, client: int) -> float:
        """Seconds of one client in a round."""
        work = client_work(self.population.local, self.population.partition.size(client))
        return self.costs[client % len(self.costs)].of(work)

    def measured(self, workers: Sequence[int], results: Sequence[RoundResult]) -> Measured:
        """Put together what was found; whole rounds, where there were some, set the scale."""
        trials = self.trials
        # The first round still pays for things that later ones find done.
        steady = results[1:] if len(results) > 2 else results
        correction, server, survey = 1.0, median(trial.server for trial in trials.done), self.survey
        learn, evaluation, examination = self.after_training(steady)
        if steady:
            modelled = sum(self.modelled(result.cohort, trials.workers) for result in steady)
            correction = sum(result.seconds["train"] for result in steady) / modelled
            server = mean(result.seconds["server"] for result in steady)
            survey = mean(result.seconds["survey"] for result in steady) if trials.asked else 0.0
        each = results[-1].traffic if results else trials.traffic()
        came = len(results[-1].cohort) if results else mean(map(len, trials.cohorts))
        longest = mean(max(map(self.client_seconds, cohort)) for cohort in trials.cohorts)
        return Measured(
            device=trials.pool.actor_infos[0]["device"],
            workers=trials.workers,
            stack=(trials.pool.stack_size, self.asked),
            pieces=max(self.pieces(cohort) for cohort in trials.cohorts),
            by_node=self.by_node(),
            startup=self.startup,
            survey=survey,
            train={count: correction * self.expected(count) for count in {*workers, trials.workers}},
            overhead=correction * self.overhead(),
            longest=correction * longest,
            server=server,
            learn=learn,
            evaluation=evaluation,
            examination=examination,
            examinations=self.examinations(),
            examination_bytes=self.examination_bytes,
            traffic=without(each, trials.enrolling) if len(results) <= 1 else each,
            once=trials.enrolling,
            sent=[result.traffic for result in results],
            change=trials.outlook.change(len(results), came),
            at_most=trials.outlook.at_most,
            whole_rounds=len(results),
            usage=self.check_memory(),
            shared_bytes=self.shared_bytes,
            seconds=perf_counter() - self.began,
            load=self.load,
            cores=os.cpu_count() or 1,
        )

    def after_training(self, steady: Sequence[RoundResult]) -> tuple[float, float, float]:
        """Seconds of what the server trains, of an evaluation and of a scoring of the clients' own models."""
        algorithm, learn = self.trials.algorithm, self.learn
        if steady and capability(algorithm, ServerTraining):
            learn = mean(result.seconds["learn"] for result in steady)
        meanwhile = 0.0 if getattr(algorithm, "trains_before_evaluation", False) else learn
        evaluation, examination = awaited(meanwhile, self.evaluation, self.examination)
        examined = [r.seconds["personal"] for r in steady if r.personal is not None]
        scored = [r.seconds["evaluate"] for r in steady if r.round % self.experiment.evaluate_every == 0]
        return learn, mean(scored) if scored else evaluation, mean(examined) if examined else examination


def awaited(meanwhile: float, evaluation: float, examination: float) -> tuple[float, float]:
    """Seconds that a round waits for scores while the server has something else to do for a while.

    Args:
        meanwhile: seconds of that.
        evaluation: seconds of an evaluation, which comes first.
        examination: seconds of a scoring of the clients' own models, which comes behind it.

    Returns:
        Of each, what is left.
    """
    left = max(0.0, meanwhile - evaluation)
    return max(0.0, evaluation - meanwhile), max(0.0, examination - left)


def size_of(population: Population) -> int:
    """Bytes that the object store keeps of a federation."""
    buffers: list[Any] = []
    body: bytes = ray.cloudpickle.dumps(population, protocol=5, buffer_callback=buffers.append)
    return len(body) + sum(int(buffer.raw().nbytes) for buffer in buffers)


def _placed(by_node: dict[str, int]) -> Iterator[tuple[ClusterNode, int]]:
    nodes = {node.id: node for node in parse_ray_nodes(ray.nodes())}
    return ((nodes[name], count) for name, count in by_node.items() if name in nodes)


Prober = ray.remote(num_cpus=0)(ProberProcess)
