"""Events of a job as Server-Sent Events, for any number of watchers.

One `Feed` for each watched job polls the store a few times per second, outside the event loop. It keeps the
latest events as bytes; all watchers of the job read the same feed, each at its own pace. A watcher that is
too slow, or that starts with an old `Last-Event-ID`, reads the store instead. Watchers never slow down the
rounds.

Format: `id` is the number of the event in the store, `event` its type (state, round, warning) and `data` a
JSON object. The `data` of a round is its record; other events have the data of the store and `at`. The event
of a final state has `terminal: true` and ends the stream. If the job is deleted, a last warning has
`terminal: true`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from fedsim.errors import JobNotFound
from jobs.store.reader import count_that_fit
from jobs.store.records import JobEvent

logger = logging.getLogger("fedsim.api")

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
STOPPING_COMMENT = b": the service is stopping; reconnect with Last-Event-ID\n\n"
READ_LIMIT = 100
READ_BYTES = 2**20
"""Most events that a feed reads from the store at a time, and their bytes; at least one event."""

PAGE_LIMIT = 16
"""Most events that a watcher behind its feed reads from the store at a time."""

PAGE_BYTES = 2**16
"""Bytes of the events that a watcher holds at a time, who may never read them; at least one event."""

QUIET_PERIODS = 5
"""A job without new events is polled this much less often, so that many watched jobs cost little."""

FEED_EVENTS = 256
FEED_BYTES = 2**19
"""Latest events of a job that its feed keeps, and their bytes; at least one event."""


class EventSource(Protocol):
    """The part of a store that the streams need."""

    def events(
        self, job_id: str, after: int = 0, limit: int = READ_LIMIT, most_bytes: int | None = None
    ) -> Sequence[JobEvent]:
        """Return the events of a job with an id above `after`, oldest first; at least one if there is one."""


class Frame(NamedTuple):
    """An event in its wire format."""

    id: int
    terminal: bool
    data: bytes


def make_frame(event: JobEvent) -> Frame:
    """Convert an event to the format of Server-Sent Events."""
    data = dict(event.data)
    if event.type != "round":
        data["at"] = event.at.isoformat()
    text = json.dumps(data, separators=(",", ":"))
    wire = f"id: {event.id}\nevent: {event.type}\ndata: {text}\n\n"
    return Frame(event.id, bool(data.get("terminal")), wire.encode())


def make_deleted_frame(job_id: str, after: int) -> Frame:
    """Make the last event for watchers of a deleted job."""
    data = {"message": "the job was deleted", "terminal": True}
    return make_frame(JobEvent(id=after + 1, job_id=job_id, type="warning", at=datetime.now(UTC), data=data))


async def read_frames(
    store: EventSource, job_id: str, after: int, limit: int, most_bytes: int
) -> list[Frame]:
    """Read events from the store and convert them, apart from the event loop: a record may be large.

    Raises:
        JobNotFound: the job was deleted.
    """

    def read() -> list[Frame]:
        return [make_frame(event) for event in store.events(job_id, after, limit, most_bytes)]

    return await asyncio.to_thread(read)


def take_page(frames: Sequence[Frame]) -> list[Frame]:
    """Return the first frames, of `PAGE_BYTES` at most; at least one."""
    return list(frames[: count_that_fit((len(item.data) for item in frames), PAGE_BYTES)])


class Feed:
    """The events of one job; one task polls the store for all watchers.

    Args:
        store: the store of the events.
        job_id: id of the job.
        after: id of the event before the first event of the feed.
        period: seconds between two polls while events come; up to `QUIET_PERIODS` as many while none come.
        keep: number of latest events in memory, of `FEED_BYTES` at most.
    """

    def __init__(self, store: EventSource, job_id: str, after: int, period: float, keep: int) -> None:
        self.store, self.job_id, self.period, self.keep = store, job_id, period, keep
        self.start_id = after
        self.frames: deque[Frame] = deque()
        self._bytes = 0
        self.watchers = 0
        self.failed = False
        self._new_frames = asyncio.Event()
        self._task = asyncio.create_task(self._poll(), name=f"events of {job_id}")

    @property
    def ended(self) -> bool:
        """Whether the latest event is terminal; then polling stops.

        A resumed job has new events in the store, but not in this feed: new watchers get a new feed.
        """
        return bool(self.frames) and self.frames[-1].terminal

    @property
    def last_id(self) -> int:
        """Id of the latest event in the feed."""
        return self.frames[-1].id if self.frames else self.start_id

    async def _poll(self) -> None:
        pause = self.period
        try:
            while not self.ended:
                frames = await read_frames(self.store, self.job_id, self.last_id, READ_LIMIT, READ_BYTES)
                self._take(frames)
                is_full = len(frames) == READ_LIMIT or sum(len(item.data) for item in frames) > READ_BYTES / 2
                pause = self.period if frames else min(1.5 * pause, QUIET_PERIODS * self.period)
                await asyncio.sleep(0 if is_full else pause)
        except JobNotFound:
            self._take([make_deleted_frame(self.job_id, self.last_id)])
        except Exception:
            # The streams end, and the watchers reconnect; the store may answer by then.
            logger.exception("the events of job %s cannot be read", self.job_id)
            self.failed = True
            self._wake()

    def _take(self, frames: Sequence[Frame]) -> None:
        if not frames:
            return
        self.frames.extend(frames)
        self._bytes += sum(len(item.data) for item in frames)
        while len(self.frames) > 1 and (len(self.frames) > self.keep or self._bytes > FEED_BYTES):
            self._bytes -= len(self.frames.popleft().data)
            self.start_id = self.frames[0].id - 1
        self._wake()

    def _wake(self) -> None:
        self._new_frames.set()
        self._new_frames = asyncio.Event()

    def covers(self, after: int) -> bool:
        """Return whether all events after `after` are in memory."""
        return after >= self.start_id

    def list_frames_after(self, after: int) -> list[Frame]:
        """List the frames after the event `after`."""
        return [item for item in self.frames if item.id > after]

    async def wait_for_frames(self, seconds: float) -> bool:
        """Wait for new frames, at most `seconds`; return False after a timeout."""
        grown = self._new_frames
        try:
            await asyncio.wait_for(grown.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Stop polling, and wake all watchers."""
        self._task.cancel()
        self._wake()


class EventHub:
    """The feeds of all watched jobs.

    Args:
        store: the store of the events.
        period: seconds between two polls of one job while events come; see `Feed`.
        keep_alive: seconds without events before a comment is sent, so that no proxy closes the connection.
        keep: number of latest events of each job in memory.
    """

    def __init__(
        self, store: EventSource, *, period: float = 0.2, keep_alive: float = 15.0, keep: int = FEED_EVENTS
    ) -> None:
        self.store, self.period, self.keep_alive, self.keep = store, period, keep_alive, keep
        self.closing = False
        self._feeds: dict[str, Feed] = {}

    async def stream_events(self, job_id: str, after: int = 0) -> AsyncIterator[bytes]:
        """Yield the events of a job after the event `after`, until the terminal event.

        Args:
            job_id: id of the job.
            after: id of an event of the job, or 0.
        """
        async with self._feed(job_id, after) as feed:
            seen = after
            while not self.closing:
                frames = await self._next(feed, seen)
                for item in frames:
                    yield item.data
                if frames:
                    seen = frames[-1].id
                    if frames[-1].terminal:
                        return
                elif feed.failed or (feed.ended and seen >= feed.last_id):
                    # A resumed job has new events, which this feed does not poll: the watcher reconnects.
                    return
                elif not await feed.wait_for_frames(self.keep_alive):
                    yield KEEP_ALIVE_COMMENT
            yield STOPPING_COMMENT

    async def _next(self, feed: Feed, seen: int) -> list[Frame]:
        if feed.covers(seen):
            return take_page(feed.list_frames_after(seen))
        try:
            return take_page(await read_frames(self.store, feed.job_id, seen, PAGE_LIMIT, PAGE_BYTES))
        except JobNotFound:
            return [make_deleted_frame(feed.job_id, seen)]

    @asynccontextmanager
    async def _feed(self, job_id: str, after: int) -> AsyncIterator[Feed]:
        feed = self._feeds.get(job_id)
        if feed is None or feed.failed or feed.ended:
            feed = self._feeds[job_id] = Feed(self.store, job_id, after, self.period, self.keep)
        feed.watchers += 1
        try:
            yield feed
        finally:
            feed.watchers -= 1
            if feed.watchers == 0:
                feed.close()
                if self._feeds.get(job_id) is feed:
                    del self._feeds[job_id]

    def close(self) -> None:
        """End all streams, so that the server can stop; clients reconnect with `Last-Event-ID`."""
        self.closing = True
        for feed in self._feeds.values():
            feed.close()
