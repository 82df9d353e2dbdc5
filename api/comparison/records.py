"""The values of a comparison: runs, groups of runs, and what a reader must know.

The REST route answers a `Comparison` as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import Field

from api.comparison.curves import Along, GroupCurve
from api.comparison.group_names import FieldDifference
from api.comparison.measures import Measure, Spread
from api.comparison.run_scores import RoundScore
from jobs.store.records import FrozenRecord

LAST = 5
"""Scores in the mean of the last rounds."""

MeasureName: TypeAlias = Literal["final", "last_rounds", "validated"]
MEASURES: tuple[MeasureName, ...] = ("final", "last_rounds", "validated")


@dataclass(frozen=True)
class RunCost:
    """A cost: rounds, simulated bytes in both directions, computing time in seconds.

    With devices also `clock`, the simulated seconds, and `joules`, the energy of the clients; else None.
    """

    rounds: int
    bytes: int
    seconds: float
    clock: float | None = None
    joules: float | None = None


class ComparisonRow(FrozenRecord):
    """One run of a comparison."""

    run: str = Field(description="The id of the job, or the file, as the caller gave it.")
    name: str = Field(description="Name in the spec.")
    seed: int | None = Field(description="Of the spec; null if it is unknown.")
    dataset: str = Field(
        description="Name of the data set, with what differs between data of this name: "
        "`synthetic classes=10`, `digits (tests: matched)`; empty if it is unknown."
    )
    state: str = Field(description="Of the job; empty for a run in files.")
    rounds: int = Field(description="Number of rounds so far.")
    final: RoundScore | None = Field(
        description="The metric in the round of the result, by default the last evaluated one; null without "
        "an evaluation, and if the value is not finite, as after divergence."
    )
    last_rounds: float | None = Field(description="Mean of the last scores up to the final one.")
    validated: RoundScore | None = Field(
        description="The metric in the round that was best on the validation set; null without such a set."
    )
    best: RoundScore | None = Field(description="The best round on the test set: an optimistic value.")
    cost_to_target: RunCost | None = Field(description="Cost until the target was reached; null if never.")
    bytes: int = Field(description="Simulated bytes of the whole run, in both directions.")
    seconds: float = Field(description="Computing time of the rounds.")
    clock: float | None = Field(None, description="Simulated seconds; null without devices.")
    joules: float | None = Field(None, description="Energy of the clients; null without devices.")


class TargetCost(FrozenRecord):
    """The cost to reach the target, over the runs of a group that reached it."""

    rounds: Spread | None
    bytes: Spread | None
    seconds: Spread | None
    clock: Spread | None = Field(None, description="Simulated seconds, of runs with devices.")
    joules: Spread | None = Field(None, description="Energy of the clients, of runs with devices.")
    missed: int = Field(description="Runs that never reached the target.")


class ComparisonGroup(FrozenRecord):
    """Runs that differ by their seeds alone."""

    name: str = Field(description="What differs from the other groups: `kdia`, `lr=0.1`.")
    note: str = Field(description="What follows the name: ` (2 of 3 seeds, 1 not finite)`; may be empty.")
    members: list[str] = Field(description="All runs of the group.")
    runs: list[str] = Field(
        description="The runs that count: complete ones; without complete ones all with rounds. Runs whose "
        "final value is not finite count only if all are so."
    )
    seeds: list[int | None] = Field(description="Of the runs that count.")
    dataset: str
    final: Measure | None = Field(description="The metric in the round of the result.")
    last_rounds: Measure | None = Field(description="The mean of the last scores.")
    validated: Measure | None = Field(description="The metric in the round chosen by validation.")
    best: Spread | None = Field(description="The best round on the test set: an optimistic value.")
    cost_to_target: TargetCost
    bytes: Spread | None
    seconds: Spread | None
    clock: Spread | None = Field(None, description="Simulated seconds, of runs with devices.")
    joules: Spread | None = Field(None, description="Energy of the clients, of runs with devices.")
    curve: GroupCurve

    @property
    def title(self) -> str:
        """The name and what follows it."""
        return self.name + self.note

    @property
    def num_scores(self) -> str:
        """The number of final scores: `3`, or `2 of 3` if runs have none."""
        found, size = len(self.final.values) if self.final else 0, len(self.members)
        return str(size) if found == size else f"{found} of {size}"


class Comparison(FrozenRecord):
    """Several runs, compared with one target."""

    metric: str
    lower_is_better: bool
    metrics: list[str] = Field(description="All metrics of the runs.")
    target: float | None = Field(description="Null if no run was evaluated, or the data differ.")
    last: int = Field(description="Scores in the mean of the last rounds.")
    along: Along = Field(description="The horizontal axis of the curves.")
    baseline: str | None = Field(description="Name of the group from which differences are taken.")
    groups: list[ComparisonGroup] = Field(description="In the order of the runs.")
    lines: list[ComparisonRow] = Field(description="One row for each run, in the order of the runs.")
    differences: list[FieldDifference] = Field(
        description="Fields of the specs that differ, with a text for each group."
    )
    notes: list[str] = Field(description="What a reader must know, as sentences.")

    @property
    def counted(self) -> list[ComparisonGroup]:
        """The groups with results."""
        return [group for group in self.groups if group.runs]

    def list_measures(self) -> list[tuple[MeasureName, str]]:
        """List the measures that any group has, with their titles."""
        titles = {
            "final": "last round",
            "last_rounds": f"mean of the last {self.last}",
            "validated": "best by validation",
        }
        return [
            (name, titles[name]) for name in MEASURES if any(getattr(group, name) for group in self.counted)
        ]
