"""How fast the service answers with many jobs in its store: percentiles over HTTP, one request after another.

    python benchmarks/service.py                         # 10,000 jobs on SQLite; prints one JSON line
    python benchmarks/service.py --database postgresql://user@host/empty --rounds 1000 --long 20

The store is filled directly: jobs of all states, methods and labels, each with its events. `--long` jobs have
`--rounds` rounds each, the others `--short`. The server is a process of its own on loopback with a queue that
does nothing, and each kind of request is sent by one client that has its connection already. Beside what the
clock says stands the server's processor time, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import numpy as np
from sqlalchemy import insert, text

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import here
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.store.database import make_write_engine
from jobs.store.job_store import JobStore
from jobs.store.tables import events, jobs, labels, rounds
from tests.api.service import a_round

METHODS = ("fedavg", "fedprox", "scaffold", "fednova")
STATES = (*["SUCCEEDED"] * 17, "FAILED", "CANCELLED", "QUEUED")
BATCH = 5_000
SERVER = """
import sys
from api.app import create_app
from api.serving import bind, serve
from jobs.settings import Settings
from jobs.store import JobStore
from tests.api.service import IdleQueue

settings = Settings(sys.argv[1], database_url=sys.argv[2])
with JobStore.open(settings.database_url) as store:
    app, listener = create_app(settings, store, IdleQueue()), bind("127.0.0.1", 0)
    serve(app, settings, "127.0.0.1", listener, idle_exit=None, announce=lambda url: print(url, flush=True))
"""


def fill(store: JobStore, asked: argparse.Namespace) -> None:
    """Write the jobs, their labels, rounds and events."""
    engine = make_write_engine(store._engine)
    rows = [job_row(number, asked) for number in range(asked.jobs)]
    with engine.begin() as connection:
        connection.execute(insert(jobs), rows)
        pairs = [
            {"job_id": row["id"], "key": k, "value": v} for row in rows for k, v in row["labels"].items()
        ]
        connection.execute(insert(labels), pairs)
    for batch in batches(row for job in rows for row in history(job)):
        with engine.begin() as connection:
            connection.execute(insert(events), [event for event, _ in batch])
            if kept := [record for _, record in batch if record]:
                connection.execute(insert(rounds), kept)
    with engine.begin() as connection:
        connection.execute(text("ANALYZE"))


def job_row(number: int, asked: argparse.Namespace) -> dict[str, Any]:
    """One job, a minute younger than the one before it."""
    method, state = METHODS[number % len(METHODS)], STATES[number % len(STATES)]
    done = 0 if state == "QUEUED" else asked.rounds if number < asked.long else asked.short
    spec = parse_spec({"algorithm": method, "name": f"{method}-{number}", "seed": number})
    created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)
    return {
        "id": f"{number:012d}",
        "name": spec.name,
        "algorithm": method,
        "state": state,
        "priority": number % 3,
        "labels": {"team": f"t{number % 20}", "sweep": f"s{number // 50}"},
        "spec": spec.model_dump(mode="json"),
        "rounds_total": max(done, 1),
        "rounds_done": done,
        "last_metrics": a_round(max(done, 1)).metrics,
        "restarts": 0,
        "resumes": 0,
        "body_hash": "0" * 64,
        "events": done + 1,
        "created_at": created,
        "finished_at": None if state == "QUEUED" else created,
    }


def history(job: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """The events of a job, each with the row of its round where it tells of one."""
    at = job["created_at"]
    for number in range(1, job["rounds_done"] + 1):
        event = {"job_id": job["id"], "id": number, "type": "round", "round": number, "data": {}, "at": at}
        record = a_round(number)
        data = {"digest": record.digest, "record": record.model_dump(mode="json")}
        yield event, {"job_id": job["id"], "round": number, **data}
    state = {"state": job["state"], "previous": None, "terminal": job["state"] != "QUEUED"}
    last = job["rounds_done"] + 1
    yield {"job_id": job["id"], "id": last, "type": "state", "round": None, "data": state, "at": at}, None


def batches(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """Lists of rows that one transaction holds."""
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


@contextmanager
def served(home: Path, url: str) -> Iterator[tuple[httpx.Client, int]]:
    """A client of a server on that store, and the server's process."""
    command = [sys.executable, "-c", SERVER, str(home), url]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        with httpx.Client(base_url=server.stdout.readline().strip() + "/api/v1", timeout=60) as client:
            yield client, server.pid
    finally:
        server.terminate()
        server.wait()


def requests(client: httpx.Client, asked: argparse.Namespace) -> dict[str, Callable[[int], httpx.Response]]:
    """What is measured; the number of a request picks what it asks for."""
    token = client.get("/jobs", params={"limit": 50}).json()["next_page_token"]

    def listing(**query: Any) -> Callable[[int], httpx.Response]:
        return lambda number: client.get("/jobs", params=query)

    return {
        "GET /jobs": listing(),
        "next page": listing(page_token=token),
        "one state": listing(state="SUCCEEDED"),
        "few of a state": listing(state="CANCELLED"),
        "a label": lambda number: client.get("/jobs", params={"label": f"team=t{number % 20}"}),
        "an algorithm": lambda number: client.get("/jobs", params={"algorithm": METHODS[number % 4]}),
        "search, found": listing(search="fedavg-12"),
        "search, nothing found": listing(search="no such name"),
        "by name": listing(order_by="name"),
        "one job": lambda number: client.get(f"/jobs/{number * 7 % asked.jobs:012d}"),
        "100 rounds of a long job": lambda number: client.get(
            "/jobs/000000000000/rounds", params={"after": number * 13 % asked.rounds, "limit": 100}
        ),
    }


def processor_seconds(pid: int) -> float:
    """What a process has used so far, in the kernel and outside."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentiles(ask: Callable[[int], httpx.Response], times: int, server: int) -> dict[str, float]:
    """Milliseconds of so many requests, and the server's own for each of them."""
    took, busy = [], processor_seconds(server)
    for number in range(times):
        began = perf_counter()
        answer = ask(number)
        took.append(1000 * (perf_counter() - began))
        answer.raise_for_status()
    busy = 1000 * (processor_seconds(server) - busy) / times
    shares = {name: round(float(np.percentile(took, share)), 1) for name, share in (("p50", 50), ("p99", 99))}
    return {**shares, "processor": round(busy, 1)}


def main() -> None:
    """Fill, serve, ask, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1000, help="of each long job")
    parser.add_argument("--long", type=int, default=100, help="how many jobs are long")
    parser.add_argument("--short", type=int, default=10, help="rounds of each other job")
    parser.add_argument("--times", type=int, default=500, help="requests of each kind")
    parser.add_argument("--database", help="an empty database; by default SQLite in a temporary folder")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(Path(folder), database_url=asked.database or "")
        with JobStore.open(settings.database_url) as store:
            fill(store, asked)
            kind = store._engine.dialect.name
        with served(settings.home, settings.database_url) as (client, server):
            kinds = requests(client, asked).items()
            found = {name: percentiles(ask, asked.times, server) for name, ask in kinds}
    size = {name: getattr(asked, name) for name in ("jobs", "rounds", "long", "short", "times")}
    print(json.dumps({"database": kind, **size, "milliseconds": found, **here()}))


if __name__ == "__main__":
    main()
