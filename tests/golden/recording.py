"""Running the cases, and the file that holds their digests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from actors.actor_group import ActorGroup
from actors.ray_pool import RayPool
from actors.resources import Placement
from fedsim.engine.experiment import Experiment
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.simulation import simulate
from jobs.grid.one_run import name_device
from jobs.settings import Settings
from jobs.spec import load_spec, parse_spec
from jobs.spec.resolve import resolve_spec
from tests.golden.cases import PRESETS, method_specs, preset_overrides

FILE = Path(__file__).parent / "digests.json"
STACK = 3
"""How many clients train at once in the stacked runs."""


def processor() -> str:
    """The kind of processor, since another one may differ in the last bit."""
    version = torch.__version__.partition("+")[0]
    return f"{name_device('cpu')}, {torch.backends.cpu.get_cpu_capability()}, torch {version}"


def recorded() -> dict[str, Any]:
    """{processor: {case: {pool: digests}}}."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def method_experiments(settings: Settings) -> dict[str, Experiment]:
    """The small cases, by name."""
    return {name: resolve_spec(parse_spec(spec), settings) for name, spec in method_specs().items()}


def preset_experiments(settings: Settings) -> dict[str, Experiment]:
    """One preset of each paper, by name; they need Fashion-MNIST."""
    return {name: resolve_spec(load_spec(name, preset_overrides(name)), settings) for name in PRESETS}


def serial_digests(experiment: Experiment) -> list[str]:
    """The digests of a run in this process, one client after the other."""
    population = experiment.load_population()
    return _digests(experiment, population, SerialPool(experiment.algorithm, population))


def stacked_digests(experiment: Experiment) -> list[str]:
    """The digests of a run in this process, three clients at once."""
    population = experiment.load_population()
    return _digests(experiment, population, StackedPool(experiment.algorithm, population, STACK))


def ray_digests(experiment: Experiment, actor_group: ActorGroup) -> list[str]:
    """The digests of a run on these actors."""
    population = experiment.load_population()
    return _digests(experiment, population, RayPool(experiment.algorithm, population, actor_group))


def _digests(experiment: Experiment, population: Any, pool: Any) -> list[str]:
    """Of every round: of the server's state, and of what the clients keep."""
    return [
        f"{result.digest[:16]} {(result.memory_digest or '')[:16]}".rstrip()
        for result in simulate(experiment.algorithm, population, pool, personal="last")
    ]


def record(settings: Settings) -> None:
    """Record all cases on this processor, in the place of what was recorded there."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    found = dict(_recorded_now(settings, {n: ActorGroup(Placement(n, 0.5, 0)) for n in (1, 2)}))
    ray.shutdown()
    FILE.write_text(json.dumps(recorded() | {processor(): found}, indent=1, sort_keys=True) + "\n")


def _recorded_now(
    settings: Settings, actor_groups: dict[int, ActorGroup]
) -> Iterator[tuple[str, dict[str, Any]]]:
    cases = method_experiments(settings) | preset_experiments(settings)
    for name, experiment in cases.items():
        serial = serial_digests(experiment)
        for workers, actor_group in actor_groups.items():
            if (there := ray_digests(experiment, actor_group)) != serial:
                raise AssertionError(f"{name}: {workers} workers gave {there}, one process {serial}")
        print(name, serial[-1], flush=True)
        yield name, {"one by one": serial, "stacked": stacked_digests(experiment)}
