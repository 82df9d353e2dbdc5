"""A run whose client memories outgrow the object store, in a Ray of its own; prints what it took, as JSON.

    python -m tests.reference.spilling CLIENTS BYTES STORE

CLIENTS clients come in turns, 100 a round, each twice; each keeps BYTES of its own. The object store holds
STORE bytes.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import ray
import torch

from actors.coordinator import Coordinator
from actors.resources import Placement
from fedsim.algorithms import FedAvg
from fedsim.checkpoints.experiment_run import Status
from fedsim.core import ClientTask, ClientUpdate, Context, LocalTraining, RunSettings
from fedsim.core.capabilities import ClientInstructions, CohortSelection
from fedsim.engine.experiment import Experiment

COHORT = 100


@dataclass(frozen=True, kw_only=True)
class Diaries(FedAvg, ClientInstructions, CohortSelection):
    """Every client adds its own number to all of its diary, and says how far it is from what it ought to be.

    Attributes:
        floats: in a diary.
    """

    stateful: ClassVar[bool] = True
    floats: int = 1

    def select_cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> Sequence[int]:
        """Everybody in turn."""
        first = ctx.round * ctx.cohort_size % ctx.num_clients
        return range(first, first + ctx.cohort_size)

    def instruct_client(self, ctx: Context, state: Any, client: int) -> Mapping[str, Any]:
        """Its number, and how often it was here."""
        visits = ctx.round * ctx.cohort_size // ctx.num_clients
        return {"about": {"number": torch.tensor(float(client)), "visits": torch.tensor(float(visits))}}

    def init_client_state(self, ctx: Context, broadcast: Any) -> Any:
        """An empty diary."""
        return {"diary": torch.zeros(self.floats)}

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        """Nothing is learned."""
        about, diary = task.instruction["about"], task.client_state["diary"]
        wrong = (diary - about["number"] * about["visits"]).abs().max()
        return ClientUpdate(
            {"params": task.broadcast["params"]}, {"diary": diary + about["number"]}, {"wrong": wrong}
        )


def experiment(clients: int, size: int) -> Experiment:
    """Two visits of everybody."""
    return Experiment(
        algorithm=Diaries(floats=size // 4),
        settings=RunSettings(
            rounds=2 * clients // COHORT, cohort_size=COHORT, local=LocalTraining(steps=1, batch_size=4)
        ),
        num_clients=clients,
        dataset=("synthetic", {"examples": 1000, "test_examples": 100}),
        partition=("sampled", {"size": 8}),
        models=(("logistic", {}),),
        evaluate_every=10**6,
    )


def peak(process: str) -> float:
    """MB that a process held at most."""
    lines = Path("/proc", process, "status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6


def on_disk(folder: Path) -> float:
    """MB in a folder; files that go while one looks do not count."""
    sizes = []
    for file in folder.glob("**/ray_spilled_objects*/*"):
        try:
            sizes.append(file.stat().st_size)
        except FileNotFoundError:
            continue
    return sum(sizes) / 1e6


def run(clients: int, size: int, temporary: Path) -> dict[str, Any]:
    """The rounds, and what they took."""
    coordinator: Any = Coordinator.remote(experiment(clients, size), Placement(2, 1, 0))
    process = str(ray.get(coordinator.get_pid.remote()))
    wrong, spilled, rounds = 0.0, 0.0, 0
    for reference in coordinator.run.options(num_returns="streaming").remote():
        step = ray.get(reference)
        if isinstance(step, Status):
            continue
        rounds, wrong = step.round, max(wrong, step.metrics["wrong"])
        if rounds % 10 == 0:
            spilled = max(spilled, on_disk(temporary))
    return {
        "rounds": rounds,
        "wrong": wrong,
        "spilled_mb": round(spilled),
        "coordinator_mb": round(peak(process)),
        "driver_mb": round(peak("self")),
    }


def main(clients: int, size: int, store: int) -> None:
    """Start a Ray, run, end it, and look at what is left."""
    temporary = Path(tempfile.mkdtemp(prefix="spill-", dir="/tmp"))
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=store,
        _temp_dir=str(temporary),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        found = run(clients, size, temporary)
        ray.shutdown()
        print(json.dumps({**found, "left_mb": round(on_disk(temporary))}))
    finally:
        ray.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
