"""docs/compare.md: its sweep and its commands, run on a service whose cluster is played here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from jobs.store.states import JobState
from tests.api.service import Fedsim, RunningService, a_round

PAGE = (Path(__file__).parents[3] / "docs" / "compare.md").read_text("utf-8")


def end_jobs(service: RunningService) -> None:
    """End all jobs; the seeds and algorithms have different scores."""
    for place, job in enumerate(service.store.queue()):
        service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
        service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
        for number in range(1, 4):
            score = 0.1 * number + 0.01 * (place * 7 % 5)
            metrics = {"global_accuracy": score, "global_validation_accuracy": score}
            service.store.add_round(job.id, a_round(number, **metrics))
        service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)


def test_every_command_runs(
    online: Fedsim, service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    Path("kdia.yaml").write_text(text)
    [block] = re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
    block = block.replace("--on pool", "--no-wait").replace("swept/", "")  # as the page says of a service
    first, *rest = (line.removeprefix("$ fedsim ") for line in block.splitlines())
    assert online(*shlex.split(first)).code == 0
    end_jobs(service)
    printed = []
    for line in rest:
        command, _, file = line.partition(" > ")
        outcome = online(*shlex.split(command))
        assert outcome.code == 0, outcome.err
        printed.append(outcome.out)
        if file:
            Path(file).write_text(outcome.out)
    text, latex, csv, *_ = printed
    for column in re.findall(r"^\| ([^|`]+) \| (?:the|mean)", PAGE, flags=re.MULTILINE):
        assert column.split(",")[0] in text
    assert "difference from fedavg" in text
    assert "fedprox mu=1 & 3" in latex
    assert csv.count("\n") == 4
    assert Path("loss.pdf").stat().st_size > 1000
