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
from actors.coordinator import Status, relay_preparation
from actors.device import acquire_device, describe_cpu_fallback
from actors.plan.short_rounds import ShortRounds
from actors.ray_pool import RayPool
from actors.resources import Placement, check_memory, parse_ray_nodes
from fedsim.clients.population import Population
from fedsim.core.capabilities import ServerTraining, capability
from fedsim.engine.blocks import count_blocks
from fedsim.engine.experiment import Experiment
from fedsim.engine.faults import Faults
from fedsim.engine.simulation import RoundResult, is_personal_evaluation_due


class Measured(NamedTuple):
    """The measured figures of an experiment, and further numbers for the planner."""

    figures: Mapping[str, Any]  # fields of a plan, as `jobs.plan.plan` has them
    by_node: Mapping[str, int]  # actors of each node, by Ray's id of the node
    train: Mapping[int, float]  # seconds of a round's training by number of workers
    longest: float  # of these, the seconds of the longest client
    pieces: int  # workers that have something to do in a round, at most
    stack: int  # clients that would train at once in an actor with more memory


class ProberProcess:
    """Measures an experiment in a process of its own, as the coordinator of a run does."""

    def __init__(self, experiment: Experiment, placement: Placement) -> None:
        torch.set_num_threads(1)
        self.device_share = acquire_device(placement.server_gpus, "resources.server_gpus")
        self.experiment, self.placement = experiment, placement

    def measure(
        self, workers: Sequence[int], seconds: float, started: float = 0.0
    ) -> Iterator[Status | RoundResult | Measured]:
        """Measure for about so many seconds: phases and whole rounds on the way, the figures at the end.

        The figures foretell a round's training for each of these numbers of `workers`; the first is the
        run's. The start of Ray took `started` seconds.

        Raises:
            DoesNotFit: if the memory of a node is too small for its actors, or a GPU cannot be used.
            NoRoomNow: if the actors got no room in time.
        """
        self.device_share.raise_if_refused()
        began, experiment = perf_counter(), self.experiment
        algorithm, stack, graphs = experiment.algorithm, experiment.stack, experiment.graphs
        yield Status(f"placing {self.placement.workers} client actors")
        actor_group = ActorGroup(self.placement, inline=not algorithm.stateful)
        try:
            population = yield from relay_preparation(experiment.prepare_population())
            yield Status("waiting for the client actors")
            never = Faults(max_retries=0)
            pool = RayPool(algorithm, population, actor_group, faults=never, stack=stack, graphs=graphs)
            if text := describe_cpu_fallback(pool.actor_infos):
                yield Status(text)
            startup = started + perf_counter() - began
            rounds = ShortRounds(algorithm, pool, self.device_share.device)
            yield from Probe(experiment, rounds, startup).measure(workers, seconds)
        finally:
            actor_group.close()


Prober = ray.remote(num_cpus=0)(ProberProcess)


class Probe:
    """One measurement of an experiment on actors that have started."""

    def __init__(self, experiment: Experiment, rounds: ShortRounds, startup: float = 0.0) -> None:
        # `startup`: seconds until the first round can begin
        self.experiment, self.rounds, self.startup, self.actor_group = (
            experiment,
            rounds,
            startup,
            rounds.pool.actor_group,
        )
        self.stack, self.shared, self.began = (
            rounds.pool.stack_size,
            measure_size(rounds.population),
            perf_counter(),
        )
        self.by_node = Counter(actor["node"] for actor in rounds.pool.actor_infos)

    def measure(self, workers: Sequence[int], seconds: float) -> Iterator[Status | RoundResult | Measured]:
        """Measure the parts of a round one by one, then whole rounds if there is time for one."""
        rounds, every, results = self.rounds, self.experiment.evaluate_every, list[RoundResult]()
        parts, personal_bytes = yield from self.measure_parts(seconds / 6)
        left = seconds - (perf_counter() - self.began)
        if sum(parts.values()) < left:
            yield Status("measuring whole rounds")
            for result in rounds.run_whole(left, every, self.experiment.personal):
                results.append(result)
                # Sent as a run sends it: somebody has to read it while the next round runs.
                yield result
        each, total = rounds.count_run([result.traffic for result in results], seconds / 6)
        # The first round still pays for what later rounds find done.
        steady, scale = results[1:] if len(results) > 2 else results, 1.0
        if steady:
            parts |= average_seconds(steady, every)
            scale = parts["train"] / rounds.expect_training(rounds.workers, [r.cohort for r in steady])
        if not capability(rounds.algorithm, ServerTraining):
            parts["learn"] = 0.0  # a few microseconds that people need not read of
        train = {count: scale * rounds.expect_training(count, rounds.cohorts) for count in workers}
        personal, spent = self.count_personal_evaluations(), round(perf_counter() - self.began, 3)
        figures = {
            "device": rounds.pool.actor_infos[0]["device"],
            "stack": rounds.pool.stack_size,
            "personal_evaluations": personal,
            "memory": self.check_memory(),
            "seconds": self.spread_seconds(parts, train[workers[0]], scale),
            "bytes": {"round": vars(each), "total": vars(total) | {"personal": personal * personal_bytes}},
            "measured": {"workers": rounds.workers, "whole_rounds": len(results), "seconds": spent},
        }
        longest = scale * mean(max(map(rounds.expect_client, cohort)) for cohort in rounds.cohorts)
        busy = max(count_blocks(cohort, rounds.stack_sizes()) for cohort in rounds.cohorts)
        yield Measured(figures, self.by_node, train, longest, busy, self.stack)

    def spread_seconds(self, parts: Mapping[str, float], train: float, scale: float) -> dict[str, Any]:
        """The seconds of a plan: of a round those of its parts, with evaluations spread over the run."""
        rounds, every = self.rounds.population.rounds, self.experiment.evaluate_every
        evaluate = parts["evaluate"] * -(-rounds // every) / rounds
        personal = parts["personal"] * self.count_personal_evaluations() / rounds
        each = {**parts, "train": train, "evaluate": evaluate, "personal": personal}
        total = sum(each.values())
        return {
            "startup": round(self.startup, 3),
            "round": {name: round(value, 6) for name, value in (each | {"total": total}).items()},
            "overhead": round(scale * self.rounds.overhead, 6),
            "evaluation": round(parts["evaluate"], 6),
            "personal": round(parts["personal"], 6),
            "total": round(self.startup + rounds * total, 3),
        }

    def measure_parts(self, share: float) -> Generator[Status, None, tuple[dict[str, float], int]]:
        """Seconds of a round by phase, about `share` for each; and the bytes of a personal evaluation."""
        rounds, (personal, size) = self.rounds, (0.0, 0)
        yield Status("measuring one client")
        self.check_first_clients()
        yield Status("measuring clients")
        rounds.time_training(2 * share)
        found = {"train": rounds.expect_training(rounds.workers, rounds.cohorts)}
        found |= {"survey": rounds.time_survey(share), **rounds.time_server(share)}
        yield Status("measuring the evaluation")
        evaluation = rounds.time_evaluation(share)
        if self.count_personal_evaluations():
            yield Status("measuring the personal evaluation")
            personal, size = rounds.time_personal_evaluation(share)
        training = capability(rounds.algorithm, ServerTraining)
        trains_first = training is not None and training.trains_before_evaluation
        # The server trains while models are scored, unless the scores depend on the training.
        meanwhile = 0.0 if trains_first else found["learn"]
        found["evaluate"] = max(0.0, evaluation - meanwhile)
        found["personal"] = max(0.0, personal - max(0.0, meanwhile - evaluation))
        return found, size

    def count_personal_evaluations(self) -> int:
        """Return the number of personal evaluations in the run."""
        population, every = self.rounds.population, self.experiment.evaluate_every
        due = (self.experiment.personal, self.rounds.algorithm, population, population.context(0))
        before = (population.rounds - 1) // every
        return before * is_personal_evaluation_due(*due, last=False) + is_personal_evaluation_due(
            *due, last=True
        )

    def check_first_clients(self) -> None:
        """Have the largest client make one step, then a full stack on each worker two: the peak of memory."""
        for few, steps in ((1, 1), (self.rounds.few, 2)):
            self.rounds.train(self.rounds.rank_clients_by_size()[:few], steps)
            self.check_memory()

    def check_memory(self) -> dict[str, int | None]:
        """The most memory that an actor needed so far; raises DoesNotFit if a node has too little."""
        usage, nodes = self.actor_group.measure_memory(), parse_ray_nodes(ray.nodes())
        placed = [(node, self.by_node[node.id]) for node in nodes if node.id in self.by_node]
        check_memory(placed, usage.private, self.shared)
        return {"worker": usage.private, "gpu": usage.gpu, "gpu_cap": usage.gpu_cap, "shared": self.shared}


def average_seconds(results: Sequence[RoundResult], every: int) -> dict[str, float]:
    """Mean seconds by phase; of `evaluate` and `personal` over the rounds that have one."""
    having = {phase: list(results) for phase in ("survey", "train", "server", "learn")}
    having["evaluate"] = [result for result in results if result.round % every == 0]
    having["personal"] = [result for result in results if result.personal is not None]
    return {phase: mean(r.seconds[phase] for r in some) for phase, some in having.items() if some}


def measure_size(population: Population) -> int:
    """Return the size of a federation in the object store, in bytes."""
    buffers: list[Any] = []
    body: bytes = ray.cloudpickle.dumps(population, protocol=5, buffer_callback=buffers.append)
    return len(body) + sum(int(buffer.raw().nbytes) for buffer in buffers)
