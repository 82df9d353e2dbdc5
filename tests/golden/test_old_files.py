"""What was written by the fedsim of before is read by this one: a checkpoint and a store."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np

from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.engine.initial_state import make_initial_state
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import load_spec
from jobs.spec.resolve import resolve_spec
from jobs.store.job_store import JobStore
from jobs.store.states import JobState

OLD = Path(__file__).parent / "old"
"""Written by `fedsim run spec.yaml --set rounds=2`, and by a service that ran two jobs."""


def test_an_old_checkpoint_is_resumed(tmp_path: Path) -> None:
    shutil.copytree(OLD / "checkpoints", tmp_path / "checkpoints")
    spec = load_spec(OLD / "spec.yaml")
    experiment = resolve_spec(spec, Settings.from_env())
    population = experiment.load_population()
    algorithm, pool = experiment.algorithm, SerialPool(experiment.algorithm, population)
    checkpoint = Checkpoints(str(tmp_path / "checkpoints"), describe_experiment(spec)).load(
        lambda: make_initial_state(algorithm, population)
    )
    assert checkpoint is not None
    assert checkpoint.round == 2
    assert len(list(checkpoint.records)) == 2
    assert sum(len(memories) for memories in checkpoint.client_states) == 5
    resumed = list(simulate(algorithm, population, pool, resume=checkpoint))
    assert [result.round for result in resumed] == [3, 4]
    undisturbed = list(simulate(algorithm, population, SerialPool(algorithm, population)))
    losses = [
        [run[-1].metrics["train_loss"], run[-1].metrics["global_loss"]] for run in (resumed, undisturbed)
    ]
    # Only near, since another processor than the one that wrote the checkpoint may differ in the last bit.
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)


def test_an_old_store_is_read(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "fedsim.db") as database:
        database.executescript((OLD / "store.sql").read_text())
    database.close()
    with JobStore.open(f"sqlite:///{tmp_path}/fedsim.db") as store:
        job = store.get("6am5wp0f67d9")
        assert (job.state, job.name, job.labels) == (JobState.SUCCEEDED, "before-the-move", {"group": "old"})
        first, *_, last = store.rounds(job.id)
        assert (first.round, last.round) == (1, 4)
        assert last.digest.startswith("75baebb0bafed0b7")
        assert [event.type for event in store.events(job.id)][-1] == "state"
        assert store.totals()
