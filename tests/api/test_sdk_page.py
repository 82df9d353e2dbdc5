"""docs/sdk.md, run from top to bottom against a real service whose cluster is played here."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs.states import JobState
from tests.api.service import RunningService, a_round

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text("utf-8")
README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@contextmanager
def cluster(service: RunningService) -> Iterator[None]:
    """Bring every job that waits to its end."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            for job in service.store.queue():
                service.store.advance(job.id, JobState.QUEUED, JobState.STARTING)
                service.store.advance(job.id, JobState.STARTING, JobState.RUNNING)
                for number in range(1, job.rounds_total + 1):
                    service.store.add_round(job.id, a_round(number))
                service.store.advance(job.id, JobState.RUNNING, JobState.SUCCEEDED)
            time.sleep(0.02)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("page", [PAGE, README], ids=["docs/sdk.md", "README.md"])
def test_every_block_runs(
    service: RunningService, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.setenv("FEDSIM_URL", service.url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("algorithm: {name: fedprox, mu: 0.01}\n")
    names: dict[str, Any] = {"__name__": "page"}
    with cluster(service):
        for block in BLOCK.findall(page):
            exec(block, names)
    names["client"].close()
    assert names["job"].job.state == "SUCCEEDED"
    assert list(tmp_path.glob("*.csv"))
