"""MLflow: a run on the tracking server of `MLFLOW_TRACKING_URI`."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from jobs.tracking.tracked_run import EndState, TrackedRun

ID_TAG = "fedsim.id"
"""A run that goes on finds its MLflow run by this tag."""

MANY = 100
"""Parameters in one call; MLflow takes no more."""


class MlflowTracker:
    """Writes parameters, metrics and files into the experiment `MLFLOW_EXPERIMENT_NAME`, by default fedsim.

    Args:
        run: to track.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._client = MlflowClient()
        self._id, self._last = self._find_or_create(run)
        there = self._client.get_run(self._id).data.params
        # MLflow never changes a parameter, such as the rounds of a run that got more of them.
        named = {_make_name(name): str(value) for name, value in run.parameters.items()}
        new = [Param(name, value) for name, value in named.items() if name not in there]
        for start in range(0, len(new), MANY):
            self._client.log_batch(self._id, params=new[start : start + MANY])

    def _find_or_create(self, run: TrackedRun) -> tuple[str, int]:
        """Return MLflow's id of the run, and the last round that is there."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedsim"
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        found = self._client.search_runs([number], f"tags.`{ID_TAG}` = '{run.id}'", max_results=1)
        if not found:
            tags = {ID_TAG: run.id, "mlflow.runName": run.name}
            return self._client.create_run(number, tags=tags).info.run_id, 0
        id = found[0].info.run_id
        self._client.update_run(id, status="RUNNING")
        steps = [metric.step for metric in self._client.get_metric_history(id, "bytes/down")]
        return id, max(steps, default=0)

    def log_round(self, round: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a round as metrics, with the round as the step."""
        if round <= self._last:
            return
        now = int(time.time() * 1000)
        metrics = [Metric(_make_name(name), value, now, round) for name, value in figures.items()]
        self._client.log_batch(self._id, metrics=metrics, tags=[RunTag("fedsim.round", str(round))])
        self._last = round

    def end(self, state: EndState, files: Mapping[str, bytes]) -> None:
        """Write the files as artifacts, and set the status of the run."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            if files:
                self._client.log_artifacts(self._id, folder)
        self._client.set_terminated(self._id, state)


def _make_name(name: str) -> str:
    """Replace the signs that MLflow refuses in names, such as brackets in the name of a block."""
    return re.sub(r"[^\w./ -]", "-", name)
