"""Trials as jobs of a service: a made-up one, whose jobs end when the test says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.spec import JobSpec, parse_spec
from jobs.store.job_store import JobStore
from jobs.store.records import Job, RoundRecord
from jobs.store.states import JobState
from jobs.tune import service_trials
from jobs.tune.plan import SearchOptions, plan_search
from jobs.tune.service_trials import ServiceTrials
from jobs.tune.trial import TrialWork, make_trial_spec
from tests.api.service import a_round

BASE: dict[str, Any] = {
    "algorithm": "fedavg",
    "rounds": 8,
    "evaluation": {"validation": 0.2},
    "privacy": {"noise_multiplier": 1.0, "epsilon": 4.0},
}


class EndedJob:
    """A job that ends after so many rounds, whatever round it is asked for."""

    def __init__(self, job: Job, ends_after: int) -> None:
        self.job, self.ends_after, self.resumed = job, ends_after, list[int | None]()

    def refresh(self, *, patient: bool = False) -> Job:
        done = min(self.ends_after, self.resumed[-1] or 0) if self.resumed else 1
        self.job = self.job.model_copy(update={"state": JobState.SUCCEEDED, "rounds_done": done})
        return self.job

    def rounds(self, after: int = 0) -> Sequence[RoundRecord]:
        numbers = range(after + 1, self.job.rounds_done + 1)
        return [a_round(number, global_validation_accuracy=number / 10) for number in numbers]

    def resume(self, rounds: int | None = None) -> JobState:
        self.resumed.append(rounds)
        self.job = self.job.model_copy(update={"state": JobState.QUEUED})
        return self.job.state


class OneJob:
    def __init__(self, job: EndedJob) -> None:
        self.made = job

    def check(self, spec: JobSpec) -> None:
        pass

    def submit(self, spec: JobSpec, *, labels: Mapping[str, str], idempotency_key: str) -> EndedJob:
        return self.made


@pytest.mark.parametrize(("ends_after", "score"), [(3, 0.3), (9, 0.6)])
def test_a_trial_may_end_by_its_privacy_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_after: int, score: float
) -> None:
    monkeypatch.setattr(service_trials, "FIRST_PAUSE", 0.001)
    options = SearchOptions(
        trials=2, method="grid", first_rounds=1, reduction=3, metric=None, seed=0, processes=1
    )
    search = plan_search(BASE, {"local.lr": [0.1, 0.2]}, (), options)
    with JobStore.open(f"sqlite:///{tmp_path}/store.db") as store:
        job = EndedJob(store.create(parse_spec(BASE))[0], ends_after)
    trials = ServiceTrials(OneJob(job), search, 1)
    work = TrialWork(0, {"local.lr": 0.1}, make_trial_spec(search.make_spec({"local.lr": 0.1})), "", 6, None)
    found = trials._train(work)
    assert (found.value, found.error) == (score, "")
    assert job.resumed == [6]
