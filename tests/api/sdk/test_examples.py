"""The examples in the docstrings of the SDK, run against a real service whose cluster is played here."""

from __future__ import annotations

import pytest

from jobs.store.states import JobState
from tests.api.service import RunningService, play_cluster
from tests.docstring_examples import run_examples


@pytest.mark.parametrize("module", ["api.sdk.client", "api.sdk.async_client"])
def test_the_examples_run(service: RunningService, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_URL", service.url)
    cluster = play_cluster(service, "demo", JobState.SUCCEEDED, rounds=3)
    run_examples(module)
    cluster.join()
