"""The outcome of a search."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from fedsim.learning_tasks.metrics import is_lower_better
from jobs.run.run_result import RunResult
from jobs.spec import JobSpec
from jobs.spec.spec_text import dump_spec, set_fields
from jobs.tune.plan import Search
from jobs.tune.record import Trial


@dataclass
class TuneResult:
    """The outcome of a search.

    Attributes:
        search: the plan.
        trials: all trials in order.
        metric: the metric of the scores, on the validation set.
        test: the metrics of the best spec on the test set; {} without that run.
        run: the run of the best spec with the test set; None if an earlier call made it, or a service.
        job: the id of the job of this run; "" without a service.
        label: of the jobs of all trials, such as `group=demo-1a2b3c4d`; "" without a service.
    """

    search: Search
    trials: list[Trial]
    metric: str
    test: dict[str, Any] = field(default_factory=dict)
    run: RunResult | None = None
    job: str = ""
    label: str = ""

    @property
    def ranked(self) -> list[Trial]:
        """The trials, best first: those with more rounds before those with fewer."""
        sign = 1 if is_lower_better(self.metric) else -1
        rows = [(trial.score is None, -trial.rounds, sign * (trial.score or 0)) for trial in self.trials]
        return [self.trials[place] for place in sorted(range(len(rows)), key=lambda place: rows[place])]

    @property
    def best(self) -> Trial:
        """The best of the trials that have trained all rounds."""
        return self.ranked[0]

    @property
    def spec(self) -> JobSpec:
        """The spec with the best values."""
        return self.search.make_spec(self.best.values)

    @property
    def rounds(self) -> int:
        """The rounds that all trials together have trained; without halving each trains all of the spec."""
        return sum(trial.rounds for trial in self.trials)

    def to_yaml(self) -> str:
        """Return the spec with the best values as YAML."""
        return dump_spec(set_fields(self.search.base, self.best.values))

    def list_rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the heads and the rows of a table of the trials, best first."""
        heads = ["trial", *self.search.spaces, "rounds", self.metric]
        rows = [
            [
                *(str(trial.number), *(str(trial.values[path]) for path in self.search.spaces)),
                *(str(trial.rounds), f"{trial.score:.4f}" if trial.score is not None else "failed"),
            ]
            for trial in self.ranked
        ]
        return heads, rows

    def _repr_html_(self) -> str:
        heads, rows = self.list_rows()
        lines = ["".join(f"<th>{escape(head)}</th>" for head in heads)]
        lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
