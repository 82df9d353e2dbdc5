"""Event streams inside: how often the store is asked, whoever watches, and the frames that are sent."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from api.sdk.transport.stream import Message
from api.server.events import (
    FEED_BYTES,
    FEED_EVENTS,
    KEEP_ALIVE_COMMENT,
    PAGE_LIMIT,
    READ_LIMIT,
    EventHub,
    Feed,
    make_frame,
    take_page,
)
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.store.job_store import JobStore
from jobs.store.records import JobEvent
from jobs.store.states import JobState
from tests.api.service import a_round, read_messages

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class CountingStore:
    """A store that counts how often it is asked for events."""

    def __init__(self, store: JobStore) -> None:
        self.store, self.asked, self.broken = store, 0, False
        self.limits: list[int] = []

    def events(
        self, job_id: str, after: int = 0, limit: int = 1000, most_bytes: int | None = None
    ) -> Sequence[JobEvent]:
        self.asked += 1
        self.limits.append(limit)
        if self.broken:
            raise OSError("the disk is gone")
        return self.store.events(job_id, after, limit, most_bytes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    settings = Settings(home=tmp_path)
    with JobStore.open(settings.database_url) as opened:
        yield opened


@pytest.fixture
def job_id(store: JobStore) -> str:
    job, _ = store.create(parse_spec({"algorithm": "fedavg"}))
    store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
    store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
    return job.id


def heard_rounds(stream: Sequence[bytes]) -> list[int]:
    lines = b"".join(stream).decode().splitlines()
    return [message.data["round"] for message in read_messages(lines) if message.type == "round"]


async def collect(stream: AsyncIterator[bytes], heard: list[bytes] | None = None) -> list[bytes]:
    """Read a stream to its end; what it has sent so far stands in `heard` meanwhile."""
    heard = [] if heard is None else heard
    async for data in stream:
        heard.append(data)
    return heard


async def all_heard(*streams: list[bytes]) -> None:
    """Wait until each of the streams has sent something."""
    while not all(streams):
        await asyncio.sleep(0.01)


def test_many_watchers_share_one_poller(store: JobStore, job_id: str) -> None:
    counting = CountingStore(store)

    async def scene() -> list[list[bytes]]:
        hub = EventHub(counting, period=0.05)
        watchers = [asyncio.create_task(collect(hub.stream_events(job_id))) for _ in range(200)]
        for number in range(1, 6):
            await asyncio.sleep(0.05)
            await asyncio.to_thread(store.add_round, job_id, a_round(number))
        await asyncio.to_thread(store.change_state, job_id, JobState.RUNNING, JobState.SUCCEEDED)
        return await asyncio.gather(*watchers)

    began = time.monotonic()
    streams = asyncio.run(scene())
    seconds = time.monotonic() - began
    assert all(heard_rounds(stream) == [1, 2, 3, 4, 5] for stream in streams)
    # A poll every 0.05 s, whatever the number of watchers.
    assert counting.asked <= seconds / 0.05 + 5


def test_a_quiet_job_is_asked_for_less_often(
    store: JobStore, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, sleep = list[float](), asyncio.sleep

    async def pass_at_once(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            store.add_round(job_id, a_round(1))
        if len(pauses) == 12:
            store.change_state(job_id, JobState.RUNNING, JobState.SUCCEEDED)
        await sleep(0)

    monkeypatch.setattr("api.server.events.asyncio.sleep", pass_at_once)
    asyncio.run(collect(EventHub(store, period=0.2).stream_events(job_id)))
    assert pauses[:3] == pytest.approx([0.2, 0.3, 0.45])  # the first poll finds the events so far
    assert pauses[9] == pytest.approx(1.0)
    assert pauses[10:12] == pytest.approx([0.2, 0.3])


def test_a_watcher_who_missed_the_end_of_a_resumed_job_reconnects(
    store: JobStore, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed of this job began late, and ended; the slow watcher reads the store up to the feed's end."""
    monkeypatch.setattr("api.server.events.PAGE_LIMIT", 2)
    last = store.events(job_id)[-1].id

    async def scene() -> list[bytes]:
        hub = EventHub(store, period=0.02)
        late, slow = hub.stream_events(job_id, last), hub.stream_events(job_id)
        heard = asyncio.create_task(collect(late))
        await asyncio.sleep(0)
        first = [await anext(slow)]
        store.change_state(job_id, JobState.RUNNING, JobState.FAILED)
        await heard
        store.resume(job_id)
        return first + await collect(slow)

    messages = list(read_messages(b"".join(asyncio.run(scene())).decode().splitlines()))
    assert [message.id for message in messages] == [1, 2, 3, 4]
    assert (messages[-1].data["state"], messages[-1].data["terminal"]) == ("FAILED", False)


def test_a_job_that_is_resumed_has_one_end_for_who_comes_then(store: JobStore, job_id: str) -> None:
    """Also while somebody who heard of the first end, and is slow to read, keeps that in memory."""
    store.change_state(job_id, JobState.RUNNING, JobState.FAILED)

    async def scene() -> list[list[bytes]]:
        hub = EventHub(store, period=0.02)
        slow = hub.stream_events(job_id)
        first = [await anext(slow)]
        store.resume(job_id)
        watcher = asyncio.create_task(collect(hub.stream_events(job_id)))
        await asyncio.sleep(0.1)
        store.request_cancel(job_id)
        return [first + await collect(slow), await watcher]

    heard = [read_messages(b"".join(stream).decode().splitlines()) for stream in asyncio.run(scene())]
    ends = [[message.id for message in stream if message.data["terminal"]] for stream in heard]
    assert ends == [[4], [6]]


def test_of_a_job_that_has_ended_nothing_more_is_asked(store: JobStore, job_id: str) -> None:
    counting = CountingStore(store)
    store.change_state(job_id, JobState.RUNNING, JobState.SUCCEEDED)

    async def scene() -> int:
        slow = EventHub(counting, period=0.01).stream_events(job_id)
        await anext(slow)
        await asyncio.sleep(0.2)
        await slow.aclose()  # type: ignore[attr-defined]
        return counting.asked

    assert asyncio.run(scene()) == 1


def test_a_watcher_behind_the_memory_of_the_feed_reads_the_store(store: JobStore, job_id: str) -> None:
    for number in range(1, 31):
        store.add_round(job_id, a_round(number))

    async def scene() -> tuple[list[int], list[int]]:
        hub = EventHub(store, period=0.02, keep=8)
        first = asyncio.create_task(collect(hub.stream_events(job_id)))
        await asyncio.sleep(0.2)
        late = asyncio.create_task(collect(hub.stream_events(job_id, after=10)))
        await asyncio.sleep(0.1)
        store.change_state(job_id, JobState.RUNNING, JobState.SUCCEEDED)
        return heard_rounds(await first), heard_rounds(await late)

    first, late = asyncio.run(scene())
    assert first == list(range(1, 31))
    # Events 1 to 3 are states, so event 10 is round 7.
    assert late == list(range(8, 31))


def test_a_watcher_that_does_not_read_holds_few_events(store: JobStore, job_id: str) -> None:
    """Neither it, behind the feed or beside it, nor the feed keeps more bytes than they may."""
    large = {"text": "x" * 20_000}
    frames = [
        make_frame(JobEvent(id=n, job_id=job_id, type="round", at=NOW, data=large)) for n in range(1, 101)
    ]
    assert take_page(frames) == frames[:3]
    assert take_page([frames[0]._replace(data=b"x" * 2**20)]) != []
    assert take_page([]) == []
    counting = CountingStore(store)
    for number in range(1, 101):
        store.add_round(job_id, a_round(number))

    async def scene() -> list[int]:
        feed = Feed(counting, job_id, 0, 60, FEED_EVENTS)
        feed._take(frames)
        assert sum(len(frame.data) for frame in feed.frames) <= FEED_BYTES
        assert feed.covers(feed.frames[0].id - 1)
        assert not feed.covers(feed.frames[0].id - 2)
        feed.close()
        hub = EventHub(counting, period=60, keep=8)
        readers = [hub.stream_events(job_id) for _ in range(3)]
        for reader in readers:
            await anext(reader)
        store.change_state(job_id, JobState.RUNNING, JobState.SUCCEEDED)
        hub.close()
        return [limit for limit in counting.limits if limit != READ_LIMIT]

    assert set(asyncio.run(scene())) == {PAGE_LIMIT}


def test_a_late_watcher_of_a_deleted_job_hears_of_it(store: JobStore, job_id: str) -> None:
    async def scene() -> list[bytes]:
        store.change_state(job_id, JobState.RUNNING, JobState.FAILED)
        store.delete(job_id)
        return await collect(EventHub(store).stream_events(job_id, 3))

    [message] = read_messages(b"".join(asyncio.run(scene())).decode().splitlines())
    assert (message.id, message.type) == (4, "warning")
    assert message.data["terminal"]


def test_silence_is_broken_by_comments(store: JobStore, job_id: str) -> None:
    async def scene() -> list[bytes]:
        hub, heard = EventHub(store, period=0.02, keep_alive=0.05), list[bytes]()
        stream = asyncio.create_task(collect(hub.stream_events(job_id), heard))
        while heard.count(KEEP_ALIVE_COMMENT) < 2 and not stream.done():
            await asyncio.sleep(0.01)
        hub.close()
        return await stream

    assert asyncio.run(asyncio.wait_for(scene(), 30)).count(KEEP_ALIVE_COMMENT) >= 2


def test_a_store_that_fails_ends_the_streams_and_is_asked_again_later(
    store: JobStore, job_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    counting = CountingStore(store)

    async def scene() -> list[int]:
        hub, heard = EventHub(counting, period=0.02), [list[bytes]() for _ in range(3)]
        watchers = [asyncio.create_task(collect(hub.stream_events(job_id), each)) for each in heard]
        await all_heard(*heard)
        counting.broken = True
        await asyncio.gather(*watchers)
        counting.broken = False
        store.add_round(job_id, a_round(1))
        store.change_state(job_id, JobState.RUNNING, JobState.SUCCEEDED)
        return heard_rounds(await collect(hub.stream_events(job_id)))

    assert asyncio.run(scene()) == [1]
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 1


def test_when_nobody_watches_nobody_asks(store: JobStore, job_id: str) -> None:
    counting = CountingStore(store)

    async def scene() -> int:
        hub, heard = EventHub(counting, period=0.02), list[bytes]()
        watcher = asyncio.create_task(collect(hub.stream_events(job_id), heard))
        await all_heard(heard)
        watcher.cancel()
        await asyncio.sleep(0.1)
        before = counting.asked
        await asyncio.sleep(0.1)
        return counting.asked - before

    assert asyncio.run(scene()) == 0


def test_a_frame_is_one_event_of_the_stream_format(store: JobStore, job_id: str) -> None:
    store.add_warning(job_id, "two\nlines: ünd a colon")
    event = store.events(job_id)[-1]
    text = make_frame(event).data.decode()
    assert text.startswith(f"id: {event.id}\nevent: warning\ndata: ")
    assert text.endswith("\n\n")
    assert len(text.splitlines()) == 4
    assert json.loads(text.splitlines()[2].removeprefix("data: "))["message"] == "two\nlines: ünd a colon"


def test_an_event_cut_off_by_a_lost_connection_is_not_heard() -> None:
    lines = ["id: 1", "event: state", 'data: {"state": "QUEUED"}', "", ": keep-alive", "", "id: 2", "data: {"]
    assert list(read_messages(lines)) == [Message(1, "state", {"state": "QUEUED"})]
