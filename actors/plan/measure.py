"""Prober: measures an experiment on the actors that would run it, in a process of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from statistics import mean
from time import perf_counter
from typing import Any, NamedTuple

import ray
import torch

from actors.actor_group import ActorGroup
from actors.device import acquire_device, describe_cpu_fallback
from actors.plan.short_rounds import ShortRounds
from actors.ray_pool import RayPool
from actors.resources import Placement, check_memory, parse_ray_nodes
from fedsim.base.costs import ClockReading
from fedsim.base.progress import relay_progress
from fedsim.checkpoints.experiment_run import Status
from fedsim.clients.population import Population
from fedsim.core.capabilities import ServerTraining, capability
from fedsim.engine.blocks import count_blocks
from fedsim.engine.evaluation.scoring import is_personal_evaluation_due
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import Faults
from fedsim.engine.simulation import RoundResult


class Measured(NamedTuple):
    """The measurements of an experiment."""

    figures: Mapping[str, Any]  # fields of `jobs.plan.plan.Plan`
    by_node: Mapping[str, int]  # number of actors by Ray's id of their node
    train: Mapping[int, float]  # seconds of a round's training by number of workers
    longest: float  # training seconds of the longest client of a round
    busy: int  # largest number of workers that have work in a round
    stack: int  # the stack size if every actor had enough memory


class ProberProcess:
    """The class behind the Ray actor `Prober`, which takes the place of a run's coordinator."""

    def measure(
        self, experiment: Experiment, placement: Placement, workers: list[int], seconds: float, started: float
    ) -> Iterator[Status | RoundResult | Measured]:
        """Start the actors of a run, and measure on them; yield the steps, whole rounds, and the figures.

        The figures foretell a round's training for each of these numbers of `workers`; the first is the
        run's. The start of Ray took `started` seconds.

        Raises:
            DoesNotFit: if the memory of a node is too small for its actors, or a GPU cannot be used.
            NoCapacityNow: if the actors do not get their resources in time.
        """
        began, algorithm = perf_counter(), experiment.algorithm
        torch.set_num_threads(1)
        share = acquire_device(placement.server_gpus, "resources.server_gpus")
        share.raise_if_refused()
        yield Status(f"placing {placement.workers} workers")
        actor_group = ActorGroup(placement, inline=not algorithm.stateful)
        try:
            population = yield from relay_progress(experiment.prepare_population(), Status)
            yield Status("waiting for the workers")
            stack, graphs, never = experiment.stack, experiment.graphs, Faults(max_retries=0)
            pool = RayPool(algorithm, population, actor_group, faults=never, stack=stack, graphs=graphs)
            if text := describe_cpu_fallback(pool.actor_infos):
                yield Status(text)
            startup = started + perf_counter() - began
            rounds = ShortRounds(algorithm, pool, share.device, experiment.updates_per_round)
            yield from Probe(experiment, rounds, startup).measure(workers, seconds)
        finally:
            actor_group.close()


Prober = ray.remote(num_cpus=0)(ProberProcess)


class Probe:
    """One measurement of an experiment; the first round can begin after `startup` seconds."""

    def __init__(self, experiment: Experiment, rounds: ShortRounds, startup: float = 0.0) -> None:
        self.experiment, self.rounds, self.startup = experiment, rounds, startup
        self.began = perf_counter()
        self.stack = rounds.pool.stack_size
        self.shared = measure_size(rounds.population)
        given = (experiment.personal, rounds.algorithm, rounds.population, rounds.population.context(0))
        earlier = (rounds.population.settings.rounds - 1) // experiment.evaluate_every
        self.personal_evaluations = earlier * is_personal_evaluation_due(*given, last=False)
        self.personal_evaluations += is_personal_evaluation_due(*given, last=True)
        self.by_node = Counter(actor["node"] for actor in rounds.pool.actor_infos)

    def measure(self, workers: Sequence[int], seconds: float) -> Iterator[Status | RoundResult | Measured]:
        """Measure the parts of a round one by one, then whole rounds if there is time for one."""
        rounds, every = self.rounds, self.experiment.evaluate_every
        parts, personal_bytes = yield from self.measure_parts(seconds / 6)
        results: list[RoundResult] = []
        left = seconds - (perf_counter() - self.began)
        if sum(parts.values()) < left:
            yield Status("measuring whole rounds")
            options = (left, every, self.experiment.personal, self.experiment.devices)
            for result in rounds.run_whole(*options):
                results.append(result)
                # Sent as a run sends it: the caller has to read it while the next round runs.
                yield result
        each, total = rounds.count_run([result.traffic for result in results], seconds / 6)
        # The first round pays for set-up that later rounds find done.
        steady, scale = results[1:] if len(results) > 2 else results, 1.0
        if steady:
            parts |= average_seconds(steady, every)
            scale = parts["train"] / rounds.expect_training(rounds.workers, [r.cohort for r in steady])
        train = {count: scale * rounds.expect_training(count, rounds.cohorts) for count in workers}
        personal_bytes *= self.personal_evaluations
        spent = round(perf_counter() - self.began, 3)
        figures = {
            "device": rounds.pool.actor_infos[0]["device"],
            "stack": rounds.pool.stack_size,
            "personal_evaluations": self.personal_evaluations,
            "memory": self.check_memory(),
            "seconds": self.spread_seconds(parts, train[workers[0]], scale * rounds.overhead),
            "bytes": {"round": vars(each), "total": vars(total) | {"personal": personal_bytes}},
            "measured": {"workers": rounds.workers, "whole_rounds": len(results), "seconds": spent},
        }
        if readings := [result.clock for result in results if result.clock]:
            figures["clock"] = average_clock(readings, rounds.population.settings.rounds)
        longest = scale * mean(max(map(rounds.expect_client, cohort)) for cohort in rounds.cohorts)
        busy = max(count_blocks(cohort, rounds.stack_sizes()) for cohort in rounds.cohorts)
        yield Measured(figures, self.by_node, train, longest, busy, self.stack)

    def measure_parts(self, share: float) -> Generator[Status, None, tuple[dict[str, float], int]]:
        """Time each phase of a round for about this many seconds; count a personal evaluation's bytes."""
        rounds = self.rounds
        yield Status("measuring clients")
        self.check_first_clients()
        rounds.time_training(2 * share)
        found = {"train": rounds.expect_training(rounds.workers, rounds.cohorts)}
        found |= {"survey": rounds.time_survey(share), **rounds.time_server(share)}
        yield Status("measuring the evaluation")
        evaluation, personal, personal_bytes = rounds.time_evaluation(share), 0.0, 0
        if self.personal_evaluations:
            yield Status("measuring the personal evaluation")
            personal, personal_bytes = rounds.time_personal_evaluation(share)
        training = capability(rounds.algorithm, ServerTraining)
        # The server trains while models are scored, unless the scores depend on the training.
        waits = training is not None and training.trains_before_evaluation
        meanwhile = 0.0 if waits else found["learn"]
        found["evaluate"] = max(0.0, evaluation - meanwhile)
        found["personal"] = max(0.0, evaluation + personal - max(evaluation, meanwhile))
        return found, personal_bytes

    def spread_seconds(self, parts: Mapping[str, float], train: float, overhead: float) -> dict[str, Any]:
        """Return the seconds of a plan; a round's seconds have its share of the run's evaluations."""
        rounds, every = self.rounds.population.settings.rounds, self.experiment.evaluate_every
        evaluate = parts["evaluate"] * -(-rounds // every) / rounds
        personal = parts["personal"] * self.personal_evaluations / rounds
        # Without server training, the phase takes a few microseconds: not worth a row.
        learn = parts["learn"] if capability(self.rounds.algorithm, ServerTraining) else 0.0
        each = {**parts, "train": train, "learn": learn, "evaluate": evaluate, "personal": personal}
        total = sum(each.values())
        return {
            "startup": round(self.startup, 3),
            "round": {name: round(value, 6) for name, value in (each | {"total": total}).items()},
            "overhead": round(overhead, 6),
            "evaluation": round(parts["evaluate"], 6),
            "personal": round(parts["personal"], 6),
            "total": round(self.startup + rounds * total, 3),
        }

    def check_first_clients(self) -> None:
        """Train the largest client for one step, then a stack of each worker for two: the peak of memory."""
        rounds, models = self.rounds, len(self.rounds.population.nets)
        ranked = sorted(rounds.cohorts[0], key=rounds.population.partition.size, reverse=True)
        kinds = [[client for client in ranked if client % models == model] for model in range(models)]
        largest = [client for kind in kinds for client in kind[: rounds.few]]
        for count, steps in ((1, 1), (len(largest), 2)):
            rounds.train(largest[:count], steps)
            self.check_memory()

    def check_memory(self) -> dict[str, int | None]:
        """Return the peak memory of the largest actor; raises DoesNotFit if a node has too little."""
        usage, nodes = self.rounds.pool.actor_group.measure_memory(), parse_ray_nodes(ray.nodes())
        placed = [(node, self.by_node[node.id]) for node in nodes if node.id in self.by_node]
        check_memory(placed, usage.private, self.shared)
        return {"worker": usage.private, "gpu": usage.gpu, "gpu_cap": usage.gpu_cap, "shared": self.shared}


def average_clock(readings: Sequence[ClockReading], rounds: int) -> dict[str, float]:
    """Return the mean simulated seconds of a round, and the seconds and joules of a run of such rounds."""
    seconds, joules = (mean(getattr(each, name) for each in readings) for name in ("round", "joules"))
    return {"round": seconds, "total": rounds * seconds, "joules": rounds * joules}


def average_seconds(results: Sequence[RoundResult], every: int) -> dict[str, float]:
    """Return the mean seconds by phase; of an evaluation, the mean over the rounds that have one."""
    having = {phase: list(results) for phase in ("survey", "train", "server", "learn")}
    having["evaluate"] = [result for result in results if result.round % every == 0]
    having["personal"] = [result for result in results if result.personal is not None]
    return {phase: mean(r.seconds[phase] for r in some) for phase, some in having.items() if some}


def measure_size(population: Population) -> int:
    """Return the size of a federation in the object store, in bytes."""
    buffers: list[Any] = []
    body: bytes = ray.cloudpickle.dumps(population, protocol=5, buffer_callback=buffers.append)
    return len(body) + sum(int(buffer.raw().nbytes) for buffer in buffers)
