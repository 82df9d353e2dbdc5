"""Runs whose workers find no room, or a cluster that is coming up again: which wait, and what they say."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.resources import Placement
from fedsim.errors import DoesNotFit, FedsimError, NoCapacityNow, NodeLost
from jobs.run import restarts
from jobs.run import startup as setting_up
from jobs.run.job_watcher import JobWatcher
from jobs.run.listener import RunListener
from jobs.run.restarts import RunWithRestarts
from jobs.run.startup import StartupWaiter
from jobs.spec import parse_spec
from jobs.store.job_store import JobStore
from jobs.store.states import JobState

TAKEN = NoCapacityNow("2 workers x 1 CPU and 0 GPU did not come free within 10 s")
UNFIT = DoesNotFit("2 workers x 1 CPU asked, 1 fit (head has 1 CPU and 0 GPU: 1 fit)")
LOST = NodeLost("10.0.0.3", 1, "its heartbeat stopped")


def tried(
    *ends: FedsimError | str,
    wait: Callable[[NoCapacityNow], bool] = lambda _: False,
    after_loss: bool = False,
) -> list[tuple[bool, bool]]:
    """Of a run whose attempts end so: whether each was after a loss, and whether it might shrink."""
    left, attempts = list(ends), list[tuple[bool, bool]]()

    class Patient(RunListener):
        def may_restart(self, error: FedsimError) -> bool:
            return True

        def may_wait_for_capacity(self, error: NoCapacityNow) -> bool:
            return wait(error)

    class Tried(RunWithRestarts):
        def _run_attempt(self, resumed: bool, shrink: bool) -> dict[str, Any]:
            attempts.append((resumed, shrink))
            end = left.pop(0)
            if isinstance(end, FedsimError):
                raise end
            return {}

    unused: Any = None
    Tried(unused, unused, None, unused, Patient(), after_loss=after_loss).run_to_end()
    return attempts


def test_a_run_waits_for_room_as_long_as_it_is_told_to() -> None:
    asked: list[NoCapacityNow] = []

    def no_room(error: NoCapacityNow) -> bool:
        asked.append(error)
        return len(asked) < 3

    assert tried(TAKEN, TAKEN, "done", wait=no_room) == [(False, False)] * 3
    with pytest.raises(NoCapacityNow):
        tried(TAKEN, "done", wait=no_room)


@pytest.mark.parametrize("error", [TAKEN, UNFIT])
def test_by_default_a_run_that_does_not_fit_fails_at_once(error: FedsimError) -> None:
    with pytest.raises(DoesNotFit):
        tried(error, "done")


def test_what_never_fits_is_not_waited_for() -> None:
    with pytest.raises(DoesNotFit):
        tried(UNFIT, "done", wait=lambda _: True)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that runs make, which pass at once; the clock goes on by them."""
    made: list[float] = []

    class Clock:
        sleep: Callable[[float], None] = made.append
        monotonic: Callable[[], float] = staticmethod(lambda: 100.0 + sum(made))

    monkeypatch.setattr(restarts, "time", Clock)
    return made


@pytest.mark.parametrize("error", [TAKEN, UNFIT])
def test_a_run_that_another_process_lost_waits_until_its_cluster_has_come_up(
    error: FedsimError, pauses: list[float]
) -> None:
    assert tried(error, error, "done", after_loss=True) == [(True, False)] * 3
    assert len(pauses) == 2


def test_a_cluster_that_comes_up_smaller_is_what_there_is(pauses: list[float]) -> None:
    drives = tried(*[UNFIT] * 62, "done", after_loss=True)
    assert drives[-2:] == [(True, False), (True, True)]
    assert sum(pauses) == pytest.approx(restarts.CLUSTER_RECOVERY_SECONDS, abs=1.0)


def test_a_run_without_any_node_left_waits_for_new_ones_for_a_while(pauses: list[float]) -> None:
    assert tried(LOST, *[UNFIT] * 80, "done")[-1] == (True, True)
    assert restarts.CLUSTER_RECOVERY_SECONDS < sum(pauses) < restarts.NODE_REPLACEMENT_SECONDS
    pauses.clear()
    with pytest.raises(DoesNotFit):
        tried(LOST, *[UNFIT] * 1000, "done")
    assert sum(pauses) == pytest.approx(restarts.NODE_REPLACEMENT_SECONDS, abs=restarts.NODE_POLL_SECONDS)


def test_after_a_loss_of_its_own_a_run_takes_the_nodes_that_are_left(pauses: list[float]) -> None:
    assert tried(LOST, UNFIT, "done") == [(False, False), (True, True), (True, True)]


@pytest.fixture
def rounds_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_up, "POLL_SECONDS", 0.0)


@pytest.mark.usefixtures("rounds_of_waiting")
def test_a_job_says_once_that_it_waits_and_tries_when_there_seems_to_be_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="fedsim.runner")
    warnings, looks = list[str](), [False, False, True, True]
    waiting = StartupWaiter(warnings.append, lambda: False, lambda: looks.pop(0))
    for left in (1, 0):
        waiting.log_status("placing 2 workers")
        assert waiting.wait_for_capacity(TAKEN)
        assert len(looks) == left
    waiting.log_status("loading the data")
    said = f"waiting for free resources: {TAKEN.message}"
    assert warnings == [said]
    assert caplog.messages == ["placing 2 workers", said, "loading the data"]


@pytest.mark.usefixtures("rounds_of_waiting")
def test_a_job_that_is_cancelled_waits_no_more(tmp_path: Path) -> None:
    with JobStore.open(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        job_id = store.create(parse_spec({"algorithm": "fedavg"}))[0].id
        store.change_state(job_id, JobState.QUEUED, JobState.STARTING)
        watch = JobWatcher(store, job_id)

        def cancelled() -> bool:
            store.request_cancel(job_id)
            watch.check_store()
            return False

        waiting = StartupWaiter(
            lambda text: store.add_warning(job_id, text), lambda: watch.is_stopped, cancelled
        )
        try:
            assert not waiting.wait_for_capacity(TAKEN)
        finally:
            watch.close()
        assert [event.type for event in store.events(job_id)].count("warning") == 1


def test_a_job_tries_now_and_then_whatever_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_up, "RETRY_SECONDS", 0.0)
    assert StartupWaiter(lambda _: None, lambda: False, lambda: False).wait_for_capacity(TAKEN)


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        ({"CPU": 1.0, "GPU": 1.0}, True),
        ({"CPU": 0.9, "GPU": 1.0}, False),
        ({"CPU": 1.0, "GPU": 0.9}, False),
        ({}, False),
    ],
)
def test_room_is_what_the_workers_and_the_server_take(free: dict[str, float], expected: bool) -> None:
    # 2 x 0.5 CPU; 2 x 0.3 + 0.4 GPU
    assert setting_up.is_enough(free, Placement(2, 0.5, 0.3, server_gpus=0.4)) == expected
