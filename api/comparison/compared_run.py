"""`ComparedRun`: a run to compare, of a job or in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from jobs.store.records import Job, RoundRecord


class ComparedRun(NamedTuple):
    """A run to compare.

    Attributes:
        run: its id or file.
        name: name in the spec.
        records: in order.
        spec: as plain data; {} if it is unknown.
        labels: of the job, or of the run of a sweep; {} for another run in files.
        state: of the job; "" for a run in files.
        rounds_total: rounds of the whole job; None for a run in files.
    """

    run: str
    name: str
    records: Sequence[RoundRecord]
    spec: Mapping[str, Any] = MappingProxyType({})
    labels: Mapping[str, str] = MappingProxyType({})
    state: str = ""
    rounds_total: int | None = None

    @classmethod
    def from_job(cls, job: Job, records: Sequence[RoundRecord]) -> ComparedRun:
        """Make the run of a job."""
        return cls(job.id, job.name, records, job.spec, job.labels, job.state, job.rounds_total)

    @property
    def seed(self) -> int | None:
        """The seed of the spec; None if it is unknown."""
        seed = self.spec.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def num_rounds(self) -> int | None:
        """Rounds of the whole run, those to come included; None if it is unknown."""
        rounds = self.rounds_total or self.spec.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def fields(self) -> dict[str, Any]:
        """The spec without the name; {} if it is unknown."""
        return {field: value for field, value in self.spec.items() if field != "name"}

    @property
    def dataset(self) -> str:
        """The name of the data set; "" if it is unknown."""
        data = self.spec.get("data")
        dataset = data.get("dataset") if isinstance(data, Mapping) else None
        return str(dataset.get("name", "") if isinstance(dataset, Mapping) else dataset or "")

    @property
    def is_complete(self) -> bool:
        """Whether the run has all its rounds, or ended early by its own stop rule."""
        if not self.records or self.state == "SUCCEEDED":
            return self.state == "SUCCEEDED"
        return len(self.records) >= (self.num_rounds or 0) or self.records[-1].end is not None
