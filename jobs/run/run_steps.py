"""The steps of a run as its listeners see them, and what every kind of attempt offers; imports no Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from fedsim.checkpoints.experiment_run import Progress, RecalledRecords, ResumeNotice, Status
from fedsim.core.personal_scores import PersonalScores
from fedsim.engine.evaluation.model_selection import ChosenModel
from jobs.store.records import RoundRecord


@dataclass(frozen=True)
class NewPersonalScores:
    """The scores of the clients' personal models after a round; the round's record follows."""

    scores: PersonalScores


Step: TypeAlias = Status | ResumeNotice | NewPersonalScores | RoundRecord


class Attempt(Protocol):
    """One attempt of a run: iterate over its steps, and always close it.

    `jobs.run.run_attempts.RunAttempt` trains on Ray,
    `jobs.run.without_ray.in_process_attempt.InProcessAttempt` in this process.
    """

    def __iter__(self) -> Iterator[Step]:
        """Yield a status for each step of the set-up and of long rounds, and one record per round."""

    def get_global_model(self) -> dict[str, Any]:
        """Return the global model after the last finished round."""

    def get_chosen_model(self) -> ChosenModel | None:
        """Return the model that validation chose, as NumPy arrays; None without a validation split."""

    def get_partition(self) -> dict[str, Any]:
        """Return `indices` and `offsets` of the partition; {} if clients sample their examples on demand."""

    def get_dataset_metadata(self) -> dict[str, Any]:
        """Return the metadata that a user of the model needs; see `Dataset.to_metadata`."""

    def close(self) -> None:
        """End the attempt; another thread may call it."""


def read_progress(event: Progress) -> Iterator[Step]:
    """Yield the steps of one event of a run."""
    if isinstance(event, RecalledRecords):
        yield from map(RoundRecord.model_validate, event.records)
    elif isinstance(event, Status | ResumeNotice):
        yield event
    else:
        if event.personal is not None:
            yield NewPersonalScores(event.personal)
        yield RoundRecord.model_validate(event.record())
