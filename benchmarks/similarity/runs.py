"""The runs of Fig. 7: their specs, their training, and the file of finished runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict

from benchmarks.similarity.features import measure_similarity
from fedsim.algorithms import KDIA, FedAvg
from fedsim.base import rng
from fedsim.clients.population import Population
from fedsim.data.partition import Partition
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import FedsimError
from fedsim.models.net import Params
from fedsim.techniques.generator_training import LabelSource, init_generator
from jobs.grid.journal import round_metrics
from jobs.grid.one_run import find_code_version
from jobs.json_lines import read_lines, write_line
from jobs.run.without_ray.processes import open_processes
from jobs.settings import Settings
from jobs.spec import JobSpec, load_spec
from jobs.spec.grid import hash_spec
from jobs.spec.resolve import resolve_spec

LOG = logging.getLogger("benchmarks.similarity.features")

BETAS = {0.1: 0.01, 0.5: 1.0, 5.0: 0.01}
"""The paper's lambda_gen by Dirichlet's beta."""

SEEDS = (2506, 2507, 2508)
WAYS: tuple[LabelSource, ...] = ("pass", "data")
ALIKE = 0.75
"""The paper counts the classes above it."""


class Pair(NamedTuple):
    """The runs of one beta and seed: one expert, both ways.

    Attributes:
        preset: the base spec.
        sets: `--set` items of all runs.
        beta: of the partition.
        seed: of the runs and the expert.
        epochs: of the expert.
    """

    preset: str
    sets: tuple[str, ...]
    beta: float
    seed: int
    epochs: int

    def make_spec(self, way: LabelSource) -> JobSpec:
        """Make the spec of one of its runs."""
        strength = f"algorithm.lambda_gen={BETAS[self.beta]}"
        own = (f"data.partition.beta={self.beta}", strength, f"algorithm.labels={way}", f"seed={self.seed}")
        return load_spec(self.preset, [*self.sets, *own])

    def make_key(self, way: LabelSource) -> Key:
        """Make the key of one of its runs: the fingerprint of the spec, and the epochs of the expert."""
        return hash_spec(self.make_spec(way)), self.epochs


class Features(BaseModel):
    """The similarity of a generator's features to real ones, as `measure_similarity` returns it."""

    model_config = ConfigDict(frozen=True)

    same: float
    other: float
    classes: dict[str, float]

    @property
    def num_alike(self) -> int:
        """The number of classes whose similarity is above the one from which the paper counts."""
        return sum(value > ALIKE for value in self.classes.values())


class FinishedRun(BaseModel):
    """One finished run.

    Attributes:
        key: fingerprint of the spec.
        epochs: of the expert.
        central: the expert's accuracy on the test set.
        beta, seed, labels: of the run, for readers; a run is found by its key and the epochs.
        metrics: of the last round.
        trained: the similarity of the last generator's features.
        untrained: the similarity of the features of a generator before round 1.
        seconds: of the run by the clock, the expert left out.
        code: the version of the code.
    """

    model_config = ConfigDict(frozen=True)

    key: str
    epochs: int
    central: float
    beta: float
    seed: int
    labels: LabelSource
    metrics: dict[str, float]
    trained: Features
    untrained: Features
    seconds: float
    code: str


Key: TypeAlias = tuple[str, int]
Found: TypeAlias = Mapping[Key, FinishedRun]


def train_expert(population: Population, epochs: int) -> tuple[Params, float]:
    """Train a model on everybody's data, a federation of one client; return it and its test accuracy."""
    count = len(population.dataset.train)
    everything = Partition(np.arange(count), np.array([0, count]))
    local = replace(population.settings.local, epochs=1, steps=None)
    alone = replace(
        population,
        partition=everything,
        settings=replace(population.settings, cohort_size=1, rounds=epochs, local=local),
    )
    *_, last = simulate(FedAvg(), alone, SerialPool(FedAvg(), alone), evaluate_every=epochs)
    params: Params = last.state.params
    return params, float(last.metrics["global_accuracy"])


def measure_generators(method: KDIA, population: Population, expert: Params) -> dict[str, Any]:
    """Run KDIA, and compare the features of the last and of an untrained generator with an expert's."""
    rounds, seed = population.settings.rounds, population.settings.seed
    *_, last = simulate(method, population, SerialPool(method, population), evaluate_every=rounds)
    generator = method.generator(population.context(rounds))
    made = {"trained": last.state.generator, "untrained": init_generator(generator, seed)}
    return {
        "metrics": round_metrics(last.metrics.items()),
        **{
            name: measure_similarity(
                population, generator, each["params"], expert, rng.stream(seed, "similarity")
            )
            for name, each in made.items()
        },
    }


def read_runs(file: Path) -> dict[Key, FinishedRun]:
    """Read the finished runs."""
    lines = (FinishedRun.model_validate(line) for line in read_lines(file))
    return {(line.key, line.epochs): line for line in lines}


def list_pairs(preset: str, sets: Iterable[str], epochs: int) -> list[Pair]:
    """List all pairs of runs, seed by seed, so that every beta has a first figure early."""
    return [Pair(preset, tuple(sets), beta, seed, epochs) for seed in SEEDS for beta in BETAS]


def list_missing_ways(pair: Pair, found: Found) -> list[LabelSource]:
    """List the ways of a pair that have no finished run."""
    return [way for way in WAYS if pair.make_key(way) not in found]


def finish_pair(pair: Pair, file: Path, code: str) -> None:
    """Make the missing runs of a pair, and append each to the file as it ends."""
    ways = list_missing_ways(pair, read_runs(file))
    experiment = resolve_spec(pair.make_spec(ways[0]), Settings.from_env())
    method, population = experiment.algorithm, experiment.load_population()
    if not isinstance(method, KDIA):
        raise FedsimError(f"{pair.preset} has no generator", "take a preset of KDIA, or --set algorithm=kdia")
    expert, accuracy = train_expert(population, pair.epochs)
    for way in ways:
        began = perf_counter()
        said = measure_generators(replace(method, labels=way), population, expert)
        key, epochs = pair.make_key(way)
        line = FinishedRun(
            key=key,
            epochs=epochs,
            central=accuracy,
            beta=pair.beta,
            seed=pair.seed,
            labels=way,
            seconds=round(perf_counter() - began, 1),
            code=code,
            **said,
        )
        write_line(file, line.model_dump_json())


def make_missing_runs(wanted: Sequence[Pair], file: Path, *, processes: int = 2) -> int:
    """Make all missing runs in processes, each on one thread; return the number of pairs that failed."""
    found, failed = read_runs(file), 0
    waiting = [pair for pair in wanted if list_missing_ways(pair, found)]
    LOG.info("%d runs to be made", sum(len(list_missing_ways(pair, found)) for pair in waiting))
    if not waiting:
        return 0
    worker = partial(finish_pair, file=file, code=find_code_version())
    with open_processes(processes, partial, (worker,)) as submit:
        futures = {submit(pair): pair for pair in waiting}
        for future in as_completed(futures):
            pair, error = futures[future], future.exception()
            failed += error is not None
            LOG.info("Dir(%g), seed %d: %s", pair.beta, pair.seed, error or "done")
    return failed
