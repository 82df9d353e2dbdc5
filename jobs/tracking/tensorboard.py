"""TensorBoard: event files in the folder of the run."""

from __future__ import annotations

from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from jobs.tracking.tracked_run import EndState, TrackedRun

FOLDER = "tensorboard"


class TensorBoardTracker:
    """Writes event files into `tensorboard` in the run's folder.

    Args:
        run: with a folder.
    """

    def __init__(self, run: TrackedRun) -> None:
        if run.folder is None:
            raise ValueError("TensorBoard needs a folder")
        self._run, self._folder = run, run.folder / FOLDER
        self._writer: SummaryWriter | None = None

    def log_round(self, round: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a round as scalars; figures of an earlier attempt at this round are hidden."""
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder), purge_step=round)
            rows = [f"| {name} | {value} |" for name, value in self._run.parameters.items()]
            self._writer.add_text("spec", "\n".join(["| field | value |", "| --- | --- |", *rows]), round)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, state: EndState, files: Mapping[str, bytes]) -> None:
        """Close the file. TensorBoard keeps no other files."""
        if self._writer is not None:
            self._writer.close()
