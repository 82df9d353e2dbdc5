"""Event streams over HTTP, as a watcher sees them; and logs, how they are read and followed."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import httpx
import pytest

from api.sdk.transport.stream import Message
from api.server.job_log import EndedJobs, find_last_lines, follow_file, read_piece
from jobs.store.states import JobState
from tests.api.service import JOBS, RunningService, a_round, read_messages


def watch(service: RunningService, job_id: str, after: int | None = None) -> list[Message]:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    url = f"{service.url}{JOBS}/{job_id}/events"
    with httpx.stream("GET", url, headers=headers, timeout=20) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return list(read_messages(response.iter_lines()))


def test_a_watcher_hears_the_past_then_the_present_until_the_end(service: RunningService) -> None:
    job = service.running()
    service.store.add_round(job.id, a_round(1))

    def work() -> None:
        for number in (2, 3):
            time.sleep(0.1)
            service.store.add_round(job.id, a_round(number))
        service.store.add_warning(job.id, "one actor was replaced")
        service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)

    worker = threading.Thread(target=work)
    worker.start()
    heard = watch(service, job.id)
    worker.join()
    assert [message.id for message in heard] == list(range(1, len(heard) + 1))
    states = [message.data["state"] for message in heard if message.type == "state"]
    assert states == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
    rounds = [message.data for message in heard if message.type == "round"]
    assert rounds == [a_round(number).model_dump(mode="json") for number in range(1, 4)]
    assert [message.data["message"] for message in heard if message.type == "warning"] == [
        "one actor was replaced"
    ]
    assert [bool(message.data.get("terminal")) for message in heard] == [False] * (len(heard) - 1) + [True]


def test_a_watcher_goes_on_where_it_was(service: RunningService) -> None:
    job = service.ended(rounds=3)
    everything = watch(service, job.id)
    for message in everything[:-1]:
        assert watch(service, job.id, after=message.id) == everything[message.id :]


@pytest.mark.parametrize("after", ["-1", "soon", "5", "2147483648", "9" * 40])
@pytest.mark.parametrize("ended", [True, False])
def test_an_id_that_is_no_event_of_the_job_is_refused(
    service: RunningService, after: str, ended: bool
) -> None:
    """The last event is 3, or 4: an id beyond it must not send everything again, nor wait for ever."""
    job = service.running()
    if ended:
        service.store.change_state(job.id, JobState.RUNNING, JobState.FAILED)
    response = httpx.get(f"{service.url}{JOBS}/{job.id}/events", headers={"Last-Event-ID": after}, timeout=20)
    (error,) = response.json()["errors"]
    assert (response.status_code, error["path"], error["value"]) == (422, "Last-Event-ID", after)


def test_nothing_follows_the_last_event(service: RunningService) -> None:
    job = service.ended(rounds=1)
    url = f"{service.url}{JOBS}/{job.id}/events"
    last = watch(service, job.id)[-1].id
    assert httpx.get(url, headers={"Last-Event-ID": str(last)}).status_code == 204


def test_a_watched_job_that_is_deleted_is_said_to_be(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    job = service.queued()
    url = f"{service.url}{JOBS}/{job.id}"
    with (
        httpx.stream("GET", f"{url}/events", timeout=20) as events,
        httpx.stream("GET", f"{url}/logs?follow=true", timeout=20) as log,
    ):
        # Between two questions to the store: nobody hears of the cancellation.
        service.store.request_cancel(job.id)
        service.store.delete(job.id)
        last = list(read_messages(events.iter_lines()))[-1]
        assert list(log.iter_lines()) == []
    assert last.data["terminal"]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_proxies_are_asked_not_to_buffer_what_is_streamed(service: RunningService) -> None:
    url = f"{service.url}{JOBS}/{service.ended().id}"
    answers = [httpx.get(f"{url}/{rest}") for rest in ("events", "logs?follow=true")]
    assert [answer.headers["x-accel-buffering"] for answer in answers] == ["no", "no"]


def test_a_log_is_followed_to_its_end(service: RunningService) -> None:
    job = service.running()
    path = service.settings.log_path(job.id)
    path.write_text("before\n")

    def work() -> None:
        for number in range(3):
            time.sleep(0.1)
            with path.open("a") as file:
                file.write(f"line {number}\n")
        service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)

    worker = threading.Thread(target=work)
    url = f"{service.url}{JOBS}/{job.id}/logs?follow=true&tail=1"
    with httpx.stream("GET", url, timeout=20) as response:
        worker.start()
        lines = list(response.iter_lines())
    worker.join()
    assert lines == ["before", "line 0", "line 1", "line 2"]


def test_last_lines_of_files_of_all_kinds(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def read_last_lines(count: int) -> tuple[bytes, int]:
        first, end = find_last_lines(path, count)

        async def read() -> bytes:
            return b"".join([block async for block in read_piece(path, first, end)])

        return asyncio.run(read()), end

    assert read_last_lines(5) == (b"", 0)
    for content in (
        b"",
        b"one",
        b"one\n",
        b"one\ntwo",
        b"\n\n\n",
        b"x" * 200_000 + b"\nend\n",
        b"line\n" * 30_000,
    ):
        path.write_bytes(content)
        for count in range(4):
            lines = content.splitlines(keepends=True)
            expected = b"".join(lines[max(0, len(lines) - count) :])
            assert read_last_lines(count) == (expected, len(content))


def test_a_file_that_comes_later_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    looks = iter([False, False, True, True])

    async def ended() -> bool:
        if not path.exists():
            path.write_bytes(b"a" * 100_000)
        return next(looks)

    async def scene() -> bytes:
        return b"".join([block async for block in follow_file(path, 0, ended, period=0.01)])

    assert asyncio.run(scene()) == b"a" * 100_000


def test_all_who_follow_a_log_ask_the_store_once() -> None:
    asked: list[str] = []

    def ended(job_id: str) -> bool:
        asked.append(job_id)
        time.sleep(0.05)
        return job_id == "b"

    async def scene() -> None:
        endings = EndedJobs(ended, seconds=0.1)
        found = await asyncio.gather(*(endings.has_ended(each) for each in "ab" * 20))
        assert found == [False, True] * 20
        assert sorted(asked) == ["a", "b"]
        await asyncio.sleep(0.15)
        assert await endings.has_ended("b")
        assert sorted(asked) == ["a", "b", "b"]

    asyncio.run(scene())
