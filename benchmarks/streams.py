"""What 200 watchers of one job's event stream add to its rounds.

    python benchmarks/streams.py        # prints one JSON line; wants an otherwise idle machine

Starts a service with a Ray of its own and runs one spec several times, by turns without anybody watching and
with 200 connections on `/events`, held by another process. A round's time is that between its event and the
one before, as the store has them: training, evaluation, writing, everything. Each watcher hangs up now and
then and comes again with `Last-Event-ID`; it must have heard every round exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from api.sdk.client import FedSimClient
from api.server.local_service import find_free_port, identify_service
from benchmarks.machine import here
from jobs.local_ray.embedded_ray import stop_ray
from jobs.settings import Settings
from jobs.store.job_store import JobStore
from jobs.store.states import FINAL, JobState

ROOT = Path(__file__).parents[1]
WARM = 5
"""Rounds at the beginning that do not count."""


def spec(rounds: int) -> dict[str, Any]:
    """Rounds of about a tenth of a second on one core, the other cores left to the service."""
    return {
        "name": "streams",
        "rounds": rounds,
        "clients": {"total": 100, "fraction": 0.1},
        "data": {"dataset": "digits", "partition": {"kind": "iid"}},
        "model": "mlp",
        "local": {"epochs": 20, "batch_size": 5, "lr": 0.01},
        "algorithm": "fedavg",
        "resources": {"workers": 1},
        "checkpoint": {"every": 0},
    }


async def watch(url: str, hang_up: float, draw: random.Random) -> list[tuple[str, int]]:
    """Watch a job to its end; hang up with this probability after each event, and come again.

    Args:
        url: of the stream.
        hang_up: from 0 to below 1.
        draw: of this watcher.

    Returns:
        Type and id of every event, in the order in which they came.
    """
    heard: list[tuple[str, int]] = []
    while True:
        last = heard[-1][1] if heard else 0
        with suppress(OSError, asyncio.IncompleteReadError):
            if await _listen(url, last, heard, hang_up, draw):
                return heard
        await asyncio.sleep(0.05)


async def _listen(
    url: str, last: int, heard: list[tuple[str, int]], hang_up: float, draw: random.Random
) -> bool:
    """One connection; True when the last event of the job came."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nLast-Event-ID: {last}\r\n\r\n"
    try:
        writer.write(head.encode())
        if not (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"):
            return False
        fields: dict[str, str] = {}
        async for line in reader:
            name, _, value = line.decode().rstrip("\r\n").partition(": ")
            if name in ("id", "event", "data"):
                fields[name] = value
            elif not name and "data" in fields:
                heard.append((fields["event"], int(fields["id"])))
                if json.loads(fields["data"]).get("terminal"):
                    return True
                fields = {}
                if draw.random() < hang_up:
                    return False
        return False
    finally:
        writer.close()


async def watch_all(url: str, watchers: int, hang_up: float) -> dict[str, int]:
    """Have so many watch a job to its end.

    Returns:
        How many events came, and how many watchers missed one or heard one twice.
    """
    crowd = [watch(url, hang_up, random.Random(number)) for number in range(watchers)]
    heard = await asyncio.gather(*crowd)
    most = max(ids[-1][1] for ids in heard)
    right = sum([number for _, number in ids] == list(range(1, most + 1)) for ids in heard)
    return {"events": most, "wrong": watchers - right}


class Service:
    """A service of this benchmark's own.

    Args:
        home: its home.
    """

    def __init__(self, home: Path) -> None:
        self.settings = Settings(home=home)
        self.url = f"http://127.0.0.1:{(port := find_free_port())}"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "FEDSIM_HOME": str(home)}
        command = [sys.executable, "-m", "api.cli.main", "serve", "--port", str(port)]
        self.environment = environment
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        self.client = FedSimClient(self.url)
        while identify_service(self.url) != "fedsim":
            if self.process.poll() is not None:
                raise RuntimeError(f"`{' '.join(command)}` ended with {self.process.returncode}")
            time.sleep(0.1)

    def run(self, rounds: int, watchers: int, hang_up: float) -> tuple[list[float], dict[str, int]]:
        """Run one job to its end; gives the seconds of its rounds, and what its watchers heard."""
        job = self.client.submit(spec(rounds))
        heard: dict[str, int] = {}
        if watchers:
            command = [
                sys.executable,
                str(Path(__file__)),
                "--url",
                f"{self.url}/api/v1/jobs/{job.id}/events",
            ]
            command += ["--watchers", str(watchers), "--hang-up", str(hang_up)]
            answer = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, check=True)
            heard = json.loads(answer.stdout)
        while (state := job.refresh()).state not in FINAL:
            time.sleep(1.0)
        if state.state is not JobState.SUCCEEDED:
            raise RuntimeError(f"the job ended {state.state}: {state.message}")
        with JobStore.open(self.settings.database_url) as store:
            ends = [event.at for event in store.events(job.id, 0, 10 * rounds) if event.type == "round"]
        return [(b - a).total_seconds() for a, b in zip(ends[WARM:], ends[WARM + 1 :], strict=False)], heard

    def close(self) -> None:
        """End the service and its Ray."""
        self.client.close()
        self.process.terminate()
        self.process.wait(30)
        stop_ray(self.settings)


def measure(rounds: int, times: int, watchers: int, hang_up: float) -> dict[str, Any]:
    """Run by turns without and with watchers, and compare the medians of all their rounds."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        quiet: list[float] = []
        watched: list[float] = []
        wrong = 0
        try:
            service.run(WARM + 2, 0, 0.0)
            for _ in range(times):
                quiet += service.run(rounds, 0, 0.0)[0]
                seconds, heard = service.run(rounds, watchers, hang_up)
                watched += seconds
                wrong += heard["wrong"]
        finally:
            service.close()
    return {
        "watchers": watchers,
        "rounds": times * rounds,
        "round_ms": round(1000 * median(quiet), 1),
        "round_ms_watched": round(1000 * median(watched), 1),
        "growth_percent": round(100 * (median(watched) / median(quiet) - 1), 1),
        "watchers_that_missed_or_repeated": wrong,
    }


def main() -> None:
    """Measure, and print one line; with --url only watch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--watchers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=60, help="of each job")
    parser.add_argument("--times", type=int, default=3, help="pairs of jobs")
    parser.add_argument("--hang-up", type=float, default=0.02, help="probability after each event")
    parser.add_argument("--url", help="watch this stream to its end, and print what was heard")
    given = parser.parse_args()
    if given.url:
        figures: dict[str, Any] = asyncio.run(watch_all(given.url, given.watchers, given.hang_up))
    else:
        figures = measure(given.rounds, given.times, given.watchers, given.hang_up) | here()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
