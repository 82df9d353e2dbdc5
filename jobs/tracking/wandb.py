"""Weights & Biases: a run in the project of `WANDB_PROJECT`; `WANDB_MODE=offline` writes files only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import wandb

from jobs.tracking.tracked_run import EndState, TrackedRun


class WandbTracker:
    """Writes config, history and files. W&B itself adds the figures of the machine.

    Args:
        run: to track; its id is the id of the W&B run.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "fedsim",
            id=run.id,
            name=run.name,
            config=dict(run.parameters),
            resume="allow",
            dir=None if run.folder is None else str(run.folder),
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=False),
            reinit="create_new",
        )

    def log_round(self, round: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a round, with the round as the step."""
        if round >= self._run.step:
            self._run.log(dict(figures), step=round)

    def end(self, state: EndState, files: Mapping[str, bytes]) -> None:
        """Write the files as one artifact, and finish the run."""
        with tempfile.TemporaryDirectory() as folder:
            if files:
                artifact = wandb.Artifact(f"run-{self._run.id}", type="run")
                for name, content in files.items():
                    (Path(folder) / name).write_bytes(content)
                    artifact.add_file(str(Path(folder) / name))
                self._run.log_artifact(artifact)
            self._run.finish(exit_code=0 if state == "FINISHED" else 1)


def has_credentials() -> bool:
    """Return whether a run can begin without a question to the user: offline, or with an API key."""
    return wandb.setup().settings.mode != "online" or bool(wandb.login(prompt=False))
