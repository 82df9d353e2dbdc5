"""The folder of a search: its plan, every trial with its scores, and the checkpoints of the trials."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsim.base.files import open_aside
from fedsim.checkpoints.checkpoint import list_differences
from fedsim.errors import SettingsError
from jobs.file_locks import lock_folder
from jobs.json_lines import read_lines, write_line

SEARCH, TRIALS, BEST = "search.json", "trials.jsonl", "best.yaml"


@dataclass
class Trial:
    """One trial: a set of values, trained for some rounds.

    Attributes:
        number: counted from 0.
        values: of the searched fields, by path.
        scores: the metric on the validation set, by round; None where the run failed or had no finite score.
        error: why it failed; "" if it did not.
        digest: of the server state after the last of these rounds.
        job: the id of its job on a service; "" without one.
    """

    number: int
    values: dict[str, Any]
    scores: dict[int, float | None] = field(default_factory=dict)
    error: str = ""
    digest: str = ""
    job: str = ""

    @property
    def rounds(self) -> int:
        """The rounds that the trial has trained."""
        return max(self.scores, default=0)

    @property
    def score(self) -> float | None:
        """The metric after the last trained round; None without a score."""
        return self.scores.get(self.rounds)


@contextmanager
def open_record(folder: Path, search: Mapping[str, Any]) -> Iterator[SearchRecord]:
    """Read the record of a search, and keep a second search out of its folder; see `SearchRecord`.

    Raises:
        SettingsError: the folder has another search, or another process works in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, "search"):
        yield SearchRecord(folder, search)


class SearchRecord:
    """The record of a search in a folder, written line by line; a killed search goes on from it.

    Args:
        folder: of the search; it exists.
        search: the fields on which the results depend, as plain data.

    Attributes:
        trials: in order.
        metric: the metric of the scores; "" before the first score.
        test: the metrics on the test set by the number of the trial; {} before that run.
        test_job: the id of the job of that run; "" without one.

    Raises:
        SettingsError: the folder has another search.
    """

    def __init__(self, folder: Path, search: Mapping[str, Any]) -> None:
        self.folder, self.trials = folder, list[Trial]()
        self.metric, self.test, self.test_job = "", dict[int, dict[str, Any]](), ""
        text, file = json.dumps(search, indent=2, ensure_ascii=False) + "\n", folder / SEARCH
        if not file.is_file():
            with open_aside(file) as opened:  # a search that is killed meanwhile can begin again
                opened.write(text.encode())
        elif found := list_differences(json.loads(file.read_text("utf-8")), json.loads(text)):
            raise SettingsError(
                f"--out {str(folder)!r} has another search: {'; '.join(found)}", "name another folder"
            )
        for line in read_lines(folder / TRIALS):
            self._take(line)

    def checkpoint_url(self, trial: int) -> str:
        """Return the folder of a trial's checkpoints."""
        return str(self.folder.absolute() / "trials" / f"{trial:04d}")

    def add(self, line: Mapping[str, Any]) -> None:
        """Write a line: a new trial (`values`), a score (`round`, `value`), or metrics of the `test` set."""
        write_line(self.folder / TRIALS, json.dumps(line, ensure_ascii=False))
        self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        number = line["trial"]
        if "values" in line:
            self.trials.append(Trial(number, dict(line["values"])))
        elif "test" in line:
            self.test[number], self.test_job = dict(line["test"]), line.get("job", "")
        else:
            trial = self.trials[number]
            trial.scores[line["round"]] = line["value"]
            trial.error, trial.digest = line.get("error", ""), line.get("digest", "")
            trial.job = line.get("job", "")
            self.metric = line.get("metric") or self.metric
