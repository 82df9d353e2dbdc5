"""Groups of runs: one experiment with different seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from api.comparison.compared_run import ComparedRun
from api.comparison.group_names import name_groups
from api.comparison.run_scores import ends_not_finite
from jobs.spec.grid import FIELDS_WITHOUT_EFFECT
from jobs.store.states import RESUMABLE


class RunGroup(NamedTuple):
    """Runs of one experiment with different seeds.

    Attributes:
        name: what differs from the other groups: `kdia`, `lr=0.1`.
        members: all its runs.
        counted: the runs of its figures: the complete ones; if no run is complete, all with rounds. Of these
            it leaves out those of `not_finite`, unless all are so.
        not_finite: the runs with rounds whose final value of the metric is not finite.
    """

    name: str
    members: list[ComparedRun]
    counted: list[ComparedRun]
    not_finite: list[ComparedRun]

    @property
    def note(self) -> str:
        """What follows the name: `, failed, 1 of 4 rounds`, ` (3 seeds)`, ` (2 of 3 seeds, 1 cancelled)`."""
        if len(self.members) == 1:
            return self._describe_run(self.members[0])
        left = [word for run in self.members if (word := self._find_lack(run))]
        size = len(self.members)
        counts = f"{len(self.counted)} of {size} seeds" if 0 < len(self.counted) < size else f"{size} seeds"
        words = [f"{'all' if count == size else count} {word}" for word, count in Counter(left).items()]
        return f" ({', '.join([counts, *words])})"

    def _find_lack(self, run: ComparedRun) -> str:
        """Return what a run lacks: `not finite`, `cancelled`, `unfinished`; "" of a complete run."""
        if run in self.not_finite:
            return "not finite"
        if run.is_complete:
            return ""
        return run.state.lower() if run.state in RESUMABLE else "unfinished"

    def _describe_run(self, run: ComparedRun) -> str:
        """Describe the only run: `, not finite`, `, failed, 1 of 4 rounds`."""
        words = ["not finite"] if self.not_finite else []
        if not run.is_complete and run.num_rounds:
            words += [run.state.lower()] if run.state in RESUMABLE else []
            words += [f"{len(run.records)} of {run.num_rounds} rounds"]
        return "".join(f", {word}" for word in words)


def group_runs(runs: Sequence[ComparedRun], metric: str, together: bool = True) -> list[RunGroup]:
    """Group the runs of one experiment, one run for each seed, in the order of the runs.

    Specs of one experiment differ only in seed, name, resources, faults and checkpoints. If a seed ran twice,
    the longer run counts, and the other one has a group of its own.

    Args:
        runs: to group; a run without a spec has a group of its own.
        metric: of the comparison; runs whose final value is not finite do not count.
        together: False makes one group of each run.
    """
    keys = [_make_key(run, place) for place, run in enumerate(runs)]
    first: dict[tuple[str, int | None], int] = {}
    for place, run in enumerate(runs):
        other = first.setdefault((keys[place], run.seed), place)
        if _rank(run) > _rank(runs[other]):
            first[keys[place], run.seed] = place
    found: dict[str, list[ComparedRun]] = {}
    for place, run in enumerate(runs):
        is_shared = together and first[keys[place], run.seed] == place
        found.setdefault(keys[place] if is_shared else f"alone {place}", []).append(run)
    rows = list(found.values())
    return [_make_group(name, row, metric) for name, row in zip(name_groups(rows), rows, strict=True)]


def _make_group(name: str, row: list[ComparedRun], metric: str) -> RunGroup:
    begun = [run for run in row if run.records]
    complete = [run for run in begun if run.is_complete] or begun
    not_finite = [run for run in begun if ends_not_finite(run.records, metric)]
    return RunGroup(name, row, [run for run in complete if run not in not_finite] or complete, not_finite)


def _make_key(run: ComparedRun, place: int) -> str:
    """Return a text that two runs share if they are of one experiment."""
    without = (*FIELDS_WITHOUT_EFFECT, "seed")
    spec = {name: value for name, value in run.fields.items() if name not in without}
    return json.dumps(spec, sort_keys=True, default=str) if spec else f"unknown {place}"


def _rank(run: ComparedRun) -> tuple[bool, int]:
    return run.state == "SUCCEEDED", len(run.records)
