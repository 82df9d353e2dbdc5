"""200 watchers of one job over HTTP, who hang up and come again: every event once, in order."""

from __future__ import annotations

import asyncio
import threading
import time

from benchmarks.streams import watch_all
from jobs.store.states import JobState
from tests.api.service import RunningService, a_round

ROUNDS = 12


def test_two_hundred_watchers_hear_every_event_once(service: RunningService) -> None:
    job = service.running(rounds=ROUNDS)

    def work() -> None:
        for number in range(1, ROUNDS + 1):
            service.store.add_round(job.id, a_round(number))
            time.sleep(0.03)
        service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)

    worker = threading.Thread(target=work)
    worker.start()
    url = f"{service.url}/api/v1/jobs/{job.id}/events"
    heard = asyncio.run(asyncio.wait_for(watch_all(url, watchers=200, hang_up=0.05), 60))
    worker.join()
    # Three states before the rounds, one after.
    assert heard == {"events": ROUNDS + 4, "wrong": 0}
