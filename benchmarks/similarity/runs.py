"""The runs of Fig. 7: which there are, how each is made, and where it is written down."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict

from benchmarks.similarity.features import similarity
from fedsim.algorithms import KDIA, FedAvg
from fedsim.base import rng
from fedsim.clients.population import Population
from fedsim.data.partition import Partition
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import FedsimError
from fedsim.models.net import Params
from fedsim.techniques.generator_training import LabelSource, init_generator
from jobs.grid.journal import read_lines, round_metrics, write_line
from jobs.grid.process_pool import find_code_version, settle
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

    def spec(self, way: LabelSource) -> JobSpec:
        """The spec of one of its runs."""
        strength = f"algorithm.lambda_gen={BETAS[self.beta]}"
        own = (f"data.partition.beta={self.beta}", strength, f"algorithm.labels={way}", f"seed={self.seed}")
        return load_spec(self.preset, [*self.sets, *own])

    def key(self, way: LabelSource) -> Key:
        """What a run of it is known by."""
        return hash_spec(self.spec(way)), self.epochs


class Features(BaseModel):
    """What `benchmarks.similarity.features` says of a generator."""

    model_config = ConfigDict(frozen=True)

    same: float
    other: float
    classes: dict[str, float]

    @property
    def alike(self) -> int:
        """How many classes are as like the real ones as the paper counts."""
        return sum(value > ALIKE for value in self.classes.values())


class Measured(BaseModel):
    """One finished run.

    Attributes:
        key: fingerprint of the spec.
        epochs: of the expert.
        central: the expert's accuracy on the test set.
        beta, seed, labels: what the run is of, for people; the key and the epochs are what counts.
        metrics: of the last round.
        trained: how like real features the last generator's are.
        untrained: the same of a generator that has not learnt.
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
Found: TypeAlias = Mapping[Key, Measured]


def central(population: Population, epochs: int) -> tuple[Params, float]:
    """A model trained on everybody's data, a federation of one client; and its accuracy on the test set."""
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


def measured(method: KDIA, population: Population, expert: Params) -> dict[str, Any]:
    """Run, and compare the features of the last generator and of an untrained one with an expert's."""
    rounds, seed = population.settings.rounds, population.settings.seed
    *_, last = simulate(method, population, SerialPool(method, population), evaluate_every=rounds)
    generator = method.generator(population.context(rounds))
    made = {"trained": last.state.generator, "untrained": init_generator(generator, seed)}
    return {
        "metrics": round_metrics(last.metrics.items()),
        **{
            name: similarity(population, generator, each["params"], expert, rng.stream(seed, "similarity"))
            for name, each in made.items()
        },
    }


def read(file: Path) -> dict[Key, Measured]:
    """The finished runs."""
    lines = (Measured.model_validate(line) for line in read_lines(file))
    return {(line.key, line.epochs): line for line in lines}


def pairs(preset: str, sets: Iterable[str], epochs: int) -> list[Pair]:
    """All of them, seed by seed, so that every beta has a first figure early."""
    return [Pair(preset, tuple(sets), beta, seed, epochs) for seed in SEEDS for beta in BETAS]


def missing(pair: Pair, found: Found) -> list[LabelSource]:
    """The ways in which a pair is still to be run."""
    return [way for way in WAYS if pair.key(way) not in found]


def work(pair: Pair, file: Path, code: str) -> None:
    """Make the runs of a pair that the file does not have, and write each down as it ends."""
    ways = missing(pair, read(file))
    experiment = resolve_spec(pair.spec(ways[0]), Settings.from_env())
    method, population = experiment.algorithm, experiment.load_population()
    if not isinstance(method, KDIA):
        raise FedsimError(f"{pair.preset} has no generator", "take a preset of KDIA, or --set algorithm=kdia")
    expert, accuracy = central(population, pair.epochs)
    for way in ways:
        began = perf_counter()
        said = measured(replace(method, labels=way), population, expert)
        key, epochs = pair.key(way)
        line = Measured(
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


def make(wanted: Sequence[Pair], file: Path, *, processes: int = 2) -> int:
    """Make all runs that the file does not have, each on one thread; how many pairs did not work."""
    found, failed = read(file), 0
    waiting = [pair for pair in wanted if missing(pair, found)]
    LOG.info("%d runs to be made", sum(len(missing(pair, found)) for pair in waiting))
    if not waiting:
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=settle) as executor:
        code = find_code_version()
        futures = {executor.submit(work, pair, file, code): pair for pair in waiting}
        for future in as_completed(futures):
            pair, error = futures[future], future.exception()
            failed += error is not None
            LOG.info("Dir(%g), seed %d: %s", pair.beta, pair.seed, error or "done")
    return failed
